"""The `@on_gap` mark: a method that hears that events of its grain's streams are gone.

Owns: the mark, finding the marked method, and what a delivery's gap is for a consumer. Not: when a
gap is told (`run`), finding gaps (`agent`). Invariants: one method of a class for the streams of a
name; what the consumer has seen beyond is no gap for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from millstream.runtime import DefinitionError
from millstream.runtime.extending import Mark, add_mark, marks_of, source_of
from millstream.streams.api.event import Gap
from millstream.streams.api.handlers import parameter_of, text_of
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.api.subscribe import SubscribeMark
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .batch import WireBatch

__all__ = ["GapMark", "gap_handler", "gap_of", "on_gap"]

G = TypeVar("G")


class GapMark(Mark):
    """What `@on_gap` says of a method."""

    makes_local = True

    def __init__(self, namespace: StreamNamespace[Any]) -> None:
        self.namespace = namespace

    @property
    def part(self) -> str:
        """The stream provider, without which nothing would ever be heard."""
        return self.namespace.provider if isinstance(self.namespace, StreamNamespace) else ""

    def __str__(self) -> str:
        return f"`@on_gap({self.namespace!r})`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the method. Raises DefinitionError with file and line."""
        subject = f"{source_of(fn)}: {owner.__name__}.{name}"
        if not isinstance(self.namespace, StreamNamespace):
            raise DefinitionError(
                f"{subject}: `@on_gap` takes a namespace, such as "
                f'StreamNamespace("arrivals", Item), not {self.namespace!r}'
            )
        parameter = parameter_of(fn, subject, "Gap")
        self._check_annotation(subject, parameter, fn)
        self._check_alone(subject, owner, name)
        self._check_subscribed(subject, owner)

    def _check_annotation(self, subject: str, parameter: str, fn: Callable[..., Any]) -> None:
        try:
            hint = get_type_hints(fn).get(parameter)
        except NameError:
            return  # not defined yet: a type checker sees it
        if hint is not Gap:
            given = "nothing" if hint is None else text_of(hint)
            raise DefinitionError(f"{subject}: annotate `{parameter}: Gap`, not {given}")

    def _check_alone(self, subject: str, owner: type, name: str) -> None:
        others = [one for one in gap_methods(owner, self.namespace.name) if one != name]
        if others:
            raise DefinitionError(
                f"{subject}: `{others[0]}` hears of gaps in streams named "
                f"{self.namespace.name!r} already: keep one"
            )

    def _check_subscribed(self, subject: str, owner: type) -> None:
        """Grains may subscribe at run time, unless the namespace says that they do not."""
        if self.namespace.subscriptions == "implicit" and not is_subscribed(owner, self.namespace):
            raise DefinitionError(
                f"{subject}: {self.namespace!r} takes implicit subscriptions only, and "
                f"{owner.__name__} has no method with `@subscribe({self.namespace!r})`"
            )


def on_gap(
    namespace: StreamNamespace[Any], /
) -> Callable[
    [Callable[[G, Gap], Coroutine[Any, Any, None]]], Callable[[G, Gap], Coroutine[Any, Any, None]]
]:
    """Mark the method that hears of gaps in the streams of a namespace: `on_gap(ARRIVALS)`.

    It is called with a `Gap` when events of a stream may be missing, just before the first event
    that follows, for each subscription of the grain to that stream, marked or made at run time.
    If it raises, it gets the gap again, together with that event: it is part of handling it, in
    attempts, in `handler_timeout_s`, and in what `commit_with` writes. Without it, what is gone is
    logged and counted only.

    Raises DefinitionError when the class is defined.
    """
    if inspect.isfunction(namespace):
        raise DefinitionError(
            f"{source_of(namespace)}: `@on_gap` takes a namespace, not a function: "
            "write `@on_gap(NAMESPACE)`"
        )
    mark = GapMark(namespace)

    def marked(
        method: Callable[[G, Gap], Coroutine[Any, Any, None]],
    ) -> Callable[[G, Gap], Coroutine[Any, Any, None]]:
        add_mark(method, mark)
        return method

    return marked


def gap_methods(cls: type, namespace: str) -> list[str]:
    """Names of the methods that hear of gaps in streams of this name."""
    return [
        name
        for name in dir(cls)
        for mark in marks_of(cls, name)
        if isinstance(mark, GapMark) and mark.namespace.name == namespace
    ]


def is_subscribed(cls: type, namespace: StreamNamespace[Any]) -> bool:
    """Has the class a marked handler for streams of this name?"""
    return any(
        isinstance(mark, SubscribeMark) and mark.namespace.name == namespace.name
        for name in dir(cls)
        for mark in marks_of(cls, name)
    )


def gap_handler(grain: Any, namespace: str) -> Callable[[Gap], Coroutine[Any, Any, None]] | None:
    """The method of a grain that hears of gaps in streams of this name, if it has one."""
    names = gap_methods(type(grain), namespace)
    return getattr(grain, names[0]) if names else None


def gap_of(batch: WireBatch, last: Token | None) -> Gap | None:
    """The gap before a delivery; None: there is none, or the consumer has seen beyond it. Pure.

    `last`: the last event of the queue that the consumer has done, if known.
    """
    if batch.gap is None:
        return None
    after, first = batch.gap
    if batch.has_positions and last is not None:
        if last >= first:
            return None
        after = last
    stream = StreamId(batch.namespace, batch.key)
    return Gap(stream, batch.subscription, after, first)
