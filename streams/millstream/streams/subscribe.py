"""The `@subscribe` mark: implicit subscriptions, declared on handlers.

Owns: the mark, its checks when the class is defined, and the index of implicit subscribers.
Invariants: an implicit subscription's id is made of the grain type and the handler's name, so it
is the same everywhere and needs no storage; its stream key is the grain key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints, overload

from millstream.runtime.definition import GrainType, place_of
from millstream.runtime.errors import DefinitionError
from millstream.runtime.markers import Mark, add_mark
from millstream.runtime.state import StateField

from .event import Event
from .namespace import StreamNamespace

__all__ = ["SubscribeMark", "implicit_subscribers", "subscribe"]

T = TypeVar("T")
G = TypeVar("G")


class SubscribeMark(Mark):
    """What `@subscribe` says of a handler."""

    makes_local = True

    def __init__(
        self,
        namespace: StreamNamespace[Any],
        *,
        is_batch: bool,
        max_events: int,
        commit_with: StateField[Any] | None,
        retries: int | None,
        dead_letter: bool,
    ) -> None:
        self.namespace = namespace
        self.is_batch = is_batch
        self.max_events = max_events
        self.commit_with = commit_with
        self.retries = retries
        self.dead_letter = dead_letter

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the handler. Raises DefinitionError with file and line."""
        place = f"{place_of(fn)}: {owner.__name__}.{name}"
        if not inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"{place}: a stream handler must be `async def`")
        parameters = list(inspect.signature(fn).parameters.values())[1:]
        if len(parameters) != 1:
            raise DefinitionError(
                f"{place}: a stream handler takes one argument, the event"
                + ("s" if self.is_batch else "")
            )
        self.namespace.codec  # noqa: B018  an item type that cannot be encoded is refused here
        self._check_item(place, fn, parameters[0].name)
        if self.commit_with is not None:
            self._check_commit(place, owner)

    def _check_item(self, place: str, fn: Callable[..., Any], parameter: str) -> None:
        try:
            hint = get_type_hints(fn).get(parameter)
        except NameError:
            return  # not defined yet, or local to a function: a type checker sees it
        if hint is None:
            raise DefinitionError(f"{place}: annotate the event: `{parameter}: {self._wanted()}`")
        event = hint
        if self.is_batch:
            event = next(iter(get_args(hint)), None)
            if get_origin(hint) is None or not isinstance(get_origin(hint), type):
                event = None
        items = get_args(event) if get_origin(event) is Event else ()
        if not items or not _accepts(items[0], self.namespace.item):
            raise DefinitionError(
                f"{place}: {self.namespace!r} has items of {_name(self.namespace.item)}: "
                f"annotate `{parameter}: {self._wanted()}`, not {_name(hint)}{self._advice(hint)}"
            )

    def _advice(self, hint: Any) -> str:
        takes_list = get_origin(hint) is list
        return ", or write `batch=True`" if takes_list and not self.is_batch else ""

    def _wanted(self) -> str:
        item = _name(self.namespace.item)
        return f"list[Event[{item}]]" if self.is_batch else f"Event[{item}]"

    def _check_commit(self, place: str, owner: type) -> None:
        found = [name for name in dir(owner) if getattr(owner, name, None) is self.commit_with]
        if not found:
            raise DefinitionError(f"{place}: commit_with must be a state field of {owner.__name__}")

    @property
    def commit_name(self) -> str | None:
        """Attribute name of the state that is written with the cursor."""
        return None if self.commit_with is None else self.commit_with.attribute


def _accepts(wanted: Any, item: Any) -> bool:
    if wanted is Any or wanted == item:
        return True
    return isinstance(wanted, type) and isinstance(item, type) and issubclass(item, wanted)


def _name(hint: Any) -> str:
    if get_args(hint):
        return str(hint)
    return getattr(hint, "__name__", None) or str(hint)


class _Single(Generic[T]):
    def __init__(self, mark: SubscribeMark) -> None:
        self._mark = mark

    def __call__(
        self, method: Callable[[G, Event[T]], Coroutine[Any, Any, None]], /
    ) -> Callable[[G, Event[T]], Coroutine[Any, Any, None]]:
        add_mark(method, self._mark)
        return method


class _Batch(Generic[T]):
    def __init__(self, mark: SubscribeMark) -> None:
        self._mark = mark

    def __call__(
        self, method: Callable[[G, list[Event[T]]], Coroutine[Any, Any, None]], /
    ) -> Callable[[G, list[Event[T]]], Coroutine[Any, Any, None]]:
        add_mark(method, self._mark)
        return method


@overload
def subscribe(
    namespace: StreamNamespace[T],
    /,
    *,
    batch: Literal[False] = False,
    commit_with: StateField[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
) -> _Single[T]: ...
@overload
def subscribe(
    namespace: StreamNamespace[T],
    /,
    *,
    batch: Literal[True],
    max_events: int = 100,
    commit_with: StateField[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
) -> _Batch[T]: ...
def subscribe(
    namespace: StreamNamespace[Any],
    /,
    *,
    batch: bool = False,
    max_events: int = 100,
    commit_with: StateField[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
) -> Any:
    """Subscribe every grain of the class to the stream with its own key.

    Args:
        namespace: whose streams; the first event wakes the grain.
        batch: the handler takes a list of up to `max_events` events.
        commit_with: a state field; its value and the position in the stream are stored in one
            write after each delivered batch, so effects on that state happen exactly once.
        retries: attempts after the first before an event is given up; None: the provider's.
        dead_letter: store an event that was given up; False skips it.
    """
    mark = SubscribeMark(
        namespace,
        is_batch=batch,
        max_events=max_events,
        commit_with=commit_with,
        retries=retries,
        dead_letter=dead_letter,
    )
    return _Batch(mark) if batch else _Single(mark)


def implicit_subscribers(
    grain_types: Iterable[GrainType], provider: str
) -> Mapping[str, list[tuple[str, str, SubscribeMark]]]:
    """By namespace: (grain type, handler name, mark) of every implicit subscription."""
    found: dict[str, list[tuple[str, str, SubscribeMark]]] = {}
    for grain_type in grain_types:
        for handler, marks in grain_type.marks.items():
            for mark in marks:
                if isinstance(mark, SubscribeMark) and mark.namespace.provider == provider:
                    entry = (grain_type.name, handler, mark)
                    found.setdefault(mark.namespace.name, []).append(entry)
    return found
