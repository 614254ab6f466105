"""Filters: functions that choose the events of a stream that a subscription gets.

Owns: the allowed values of `where=`, and calling a filter for one event. Not: the place of the call
(`agent`, or `consumer` where the agent's silo does not host the class), and the effects of a filter
that fails. Invariants: a filter sees the event as it was published, as the first attempt. It
answers True or False, at once. Any other behaviour is its failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from millstream.runtime import DefinitionError
from millstream.runtime.extending import Codec
from millstream.streams.api.event import Event
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.failures.policy import is_one_of

__all__ = ["EventFilter", "Where", "filter_in", "name_filter", "wrong_filter"]

Where = Callable[[Event[Any]], bool]


class EventFilter:
    """A filter, and the codec of the items of its streams; `label` is for people."""

    __slots__ = ("_codec", "_give_up_on", "_runtime", "_where", "label")

    def __init__(
        self,
        label: str,
        where: Where,
        codec: Codec[Any],
        runtime: object,
        give_up_on: tuple[str, ...] = (),
    ) -> None:
        self.label = label
        self._give_up_on = give_up_on
        self._where = where
        self._codec = codec
        self._runtime = runtime  # the target of references and streams in decoded items

    def fits(self, item: Item, stream: StreamId, subscription: str) -> bool:
        """Whether the event is for the subscription.

        Raises the filter's errors, and TypeError if the answer is neither True nor False.
        """
        value = self._codec.decode(item.body, self._runtime)
        headers = dict(item.headers) if item.headers else {}
        event = Event(value, item.token, stream.key, 1, headers, False, subscription)
        return answer_of(self._where, event, self.label)

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether the subscription's policy says that this error needs no retry."""
        return is_one_of(error, self._give_up_on)


def answer_of(where: Where, event: Event[Any], label: str) -> bool:
    """Return a filter's answer.

    Raises the filter's errors, and TypeError if the answer is neither True nor False.
    """
    answer: object = where(event)
    if answer is True or answer is False:
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise TypeError(f"{label} returned {answer!r}, not True or False")


# --- valid filters -------------------------------------------------------------------------------


def wrong_filter(where: object) -> str:
    """The reason why an object is no valid filter, or "" if it is valid."""
    fn = getattr(where, "__func__", where)
    if isinstance(where, classmethod) or not callable(fn):
        return f"where is {where!r}: give a function that takes the event and returns a bool"
    if inspect.iscoroutinefunction(fn):
        return f"where={show_filter(where)} is async: a filter must be a plain function"
    try:
        inspect.signature(where).bind(None)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return f"where={show_filter(where)} must take one argument, the event"
    return ""


def show_filter(where: object) -> str:
    """Return a text that describes a filter."""
    fn = getattr(where, "__func__", where)
    return getattr(fn, "__qualname__", repr(fn)).rpartition("<locals>.")[2]


def name_filter(cls: type, where: object, subject: str) -> str:
    """The name by which silos that host a grain class find the filter. Raises DefinitionError."""
    if wrong := wrong_filter(where):
        raise DefinitionError(f"{subject}: {wrong}")
    fn = getattr(where, "__func__", where)
    name = getattr(fn, "__name__", "")
    found = inspect.getattr_static(cls, name, None) if name else None
    if not isinstance(found, staticmethod | classmethod) or found.__func__ is not fn:
        raise DefinitionError(
            f"{subject}: where={show_filter(where)} must be a static method of {cls.__name__}, "
            "because the subscription is stored with the name of its filter"
        )
    return name


def filter_in(cls: type, name: str) -> Where | None:
    """The filter with a name, or None if this version of the class has none."""
    found = inspect.getattr_static(cls, name, None)
    if not isinstance(found, staticmethod | classmethod):
        return None
    where: Where = getattr(cls, name)
    return where
