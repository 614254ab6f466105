"""The `@subscribe` mark: implicit subscriptions, by a mark on the handler.

Owns: the mark, and its checks when the class is defined and when its silo starts. Not: the data
that other silos learn of it (`implicit`). Invariants: the id of an implicit subscription consists
of the grain type and the handler's name. Its stream key is the grain key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import FunctionType
from typing import Any, Generic, Literal, TypeVar, get_type_hints, overload

from millstream.runtime import ConfigError, DefinitionError, State, StateField
from millstream.runtime.extending import (
    Backoff,
    Declaration,
    GrainType,
    add_mark,
    marks_of,
    source_of,
)
from millstream.streams.contracts.capability import Capability
from millstream.streams.failures.handler import GiveUpDecision
from millstream.streams.failures.policy import type_names, wrong_policy

from .event import Event
from .filters.event_filter import EventFilter, Where, show_filter, wrong_filter
from .filters.key_pattern import wrong_pattern
from .handlers import (
    HandlerMark,
    accepts,
    events_of,
    label_of,
    parameter_of,
    show_wanted,
    text_of,
)
from .implicit import ImplicitSubscription
from .namespace import StreamNamespace

__all__ = ["SubscribeMark", "check_marks", "item_type_of", "subscribe"]

T = TypeVar("T")
G = TypeVar("G")

EVENTS_MAX = 100


class SubscribeMark(HandlerMark):
    """The data of `@subscribe` on a handler."""

    makes_local = True

    def __init__(
        self,
        namespace: StreamNamespace[Any],
        *,
        is_batch: bool,
        max_events: int,
        commit_with: StateField[Any] | State[Any] | None,
        retries: int | None,
        dead_letter: bool,
        backoff: Backoff | None = None,
        give_up_on: tuple[type[Exception], ...] = (),
        on_give_up: GiveUpDecision | None = None,
        key: str = "*",
        where: Where | None = None,
        ack: Literal["auto", "manual"] = "auto",
    ) -> None:
        self.namespace = namespace
        self.is_batch = is_batch
        self.max_events = max_events
        self.commit_with = commit_with
        self.retries = retries
        self.dead_letter = dead_letter
        self.backoff = backoff
        self.give_up_on = give_up_on
        self.on_give_up: GiveUpDecision | None = on_give_up
        self.key = key
        self.where = where
        self.ack = ack

    @property
    def part(self) -> str:
        """The stream provider that the silo needs, because no other part delivers events."""
        is_namespace = isinstance(self.namespace, StreamNamespace)
        return self.namespace.provider if is_namespace else ""

    def __str__(self) -> str:
        return f"`@subscribe({self.namespace!r})`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the handler. Raises DefinitionError with file and line."""
        subject = f"{_source_of(owner, fn)}: {owner.__name__}.{name}"
        self._check_namespace(subject)
        self._check_twice(subject, owner, name)
        self._check_numbers(subject)
        self._check_choice(subject)
        self._check_ack(subject)
        _check_method(subject, name, fn)
        wanted = show_wanted(self.namespace.item, is_batch=self.is_batch)
        self._check_item(subject, fn, parameter_of(fn, subject, wanted), wanted)
        if self.commit_with is not None:
            self._check_commit(subject, owner)

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """The data that the owners of queues need, whichever grains they host. None: the namespace
        has only explicit subscriptions, which are stored."""
        namespace = self.namespace
        if namespace.subscriptions == "explicit":
            return None
        return ImplicitSubscription(
            namespace.provider,
            namespace.name,
            namespace.subscriptions,
            grain_type,
            method,
            self.retries,
            self.dead_letter,
            self.backoff,
            self.on_give_up,
            "" if self.key == "*" else self.key,
            "" if self.where is None else show_filter(self.where),
            self.ack == "manual",
        ).declaration()

    def commits(self, namespace: str) -> bool:
        """Whether a write of a state acknowledges the events of such streams."""
        return self.commit_with is not None and self.namespace.name == namespace

    def filter_for(self, runtime: object) -> EventFilter | None:
        """The filter, if there is one; `runtime`: the target of decoded references and streams."""
        if self.where is None:
            return None
        names = type_names(self.give_up_on)
        return EventFilter(
            show_filter(self.where), self.where, self.namespace.codec, runtime, names
        )

    def _check_namespace(self, subject: str) -> None:
        """Refuse an item type that is missing or has no encoding."""
        if not isinstance(self.namespace, StreamNamespace):
            raise DefinitionError(
                f"{subject}: `@subscribe` takes a namespace, such as "
                f'StreamNamespace("arrivals", Item), not {self.namespace!r}'
            )
        try:
            self.namespace.codec  # noqa: B018  builds it
        except DefinitionError as error:
            raise DefinitionError(f"{subject}: {error}") from None
        except NameError as error:
            raise DefinitionError(f"{subject}: items of {self.namespace!r}: {error}") from None

    def _check_twice(self, subject: str, owner: type, name: str) -> None:
        """Refuse two marks for one namespace name: it identifies the subscription for every
        provider."""
        streams = [
            mark.namespace.name
            for mark in marks_of(owner, name)
            if isinstance(mark, SubscribeMark) and isinstance(mark.namespace, StreamNamespace)
        ]
        if streams.count(self.namespace.name) > 1:
            raise DefinitionError(
                f"{subject}: the method has two marks for streams named {self.namespace.name!r}: "
                "keep one, or mark another method"
            )

    def _check_numbers(self, subject: str) -> None:
        if type(self.max_events) is not int or self.max_events < 1:
            raise DefinitionError(
                f"{subject}: max_events is {self.max_events!r}; it must be a whole number of at "
                "least 1"
            )
        if self.max_events != EVENTS_MAX and not self.is_batch:
            raise DefinitionError(
                f"{subject}: max_events={self.max_events} is for lists of events: "
                "write `batch=True`"
            )
        wrong = wrong_policy(self.retries, self.backoff, self.give_up_on, self.on_give_up)
        if wrong:
            raise DefinitionError(f"{subject}: {wrong}")

    def _check_choice(self, subject: str) -> None:
        """Check the options that choose streams and events."""
        wrong = wrong_pattern(self.key)
        if self.where is not None:
            wrong = wrong or wrong_filter(self.where)
        if wrong:
            raise DefinitionError(f"{subject}: {wrong}")
        has_any = self.key != "*" or self.where is not None
        if has_any and self.namespace.subscriptions == "explicit":
            name = "key" if self.where is None else "where"
            raise DefinitionError(
                f"{subject}: {name} is for implicit subscriptions, and {self.namespace!r} takes "
                "explicit ones only"
            )

    def _check_ack(self, subject: str) -> None:
        """Refuse manual acknowledgement together with options that acknowledge or leave out
        events."""
        if self.ack not in ("auto", "manual"):
            raise DefinitionError(f"{subject}: ack is {self.ack!r}: write 'auto' or 'manual'")
        if self.ack == "auto":
            return
        if self.commit_with is not None:
            raise DefinitionError(
                f"{subject}: commit_with acknowledges the events that it has written and so "
                'excludes ack="manual": remove one of them'
            )
        if self.where is not None:
            raise DefinitionError(
                f'{subject}: ack="manual" excludes `where`, because nothing would acknowledge the '
                "events that the filter drops: filter in the handler"
            )

    def _check_item(
        self, subject: str, fn: Callable[..., Any], parameter: str, wanted: str
    ) -> None:
        try:
            hint = get_type_hints(fn, include_extras=True).get(parameter)
        except NameError:
            return  # not defined yet, or local to a function: a type checker checks it
        if hint is None:
            raise DefinitionError(f"{subject}: annotate the event: `{parameter}: {wanted}`")
        events, item = events_of(hint), self.namespace.item
        is_as_marked = events is not None and events.is_batch is self.is_batch
        if events is None or not is_as_marked or not accepts(events.item, item):
            advice = ", or write `batch=True`" if events is not None and events.is_batch else ""
            raise DefinitionError(
                f"{subject}: {self.namespace!r} has items of {text_of(item)}: annotate "
                f"`{parameter}: {wanted}`, not {text_of(hint)}{'' if self.is_batch else advice}"
            )

    def _check_commit(self, subject: str, owner: type) -> None:
        field = self.commit_with
        name = self.commit_name
        if name is None or inspect.getattr_static(owner, name, None) is not field:
            raise DefinitionError(
                f"{subject}: commit_with must be a state field of {owner.__name__}, such as "
                f"`tally = state(Tally)`, not {field!r}"
            )

    @property
    def commit_name(self) -> str | None:
        """Attribute name of the state that is written with the position. None: no state is."""
        return self.commit_with.attribute if isinstance(self.commit_with, StateField) else None


def _source_of(owner: type, fn: object) -> str:
    """File and line of the handler, or of the class if the marked object is no method."""
    is_method = isinstance(fn, FunctionType | staticmethod | classmethod)
    return source_of(fn if is_method else owner)


def _check_method(subject: str, name: str, fn: object) -> None:
    if isinstance(fn, staticmethod | classmethod):
        kind = type(fn).__name__
        raise DefinitionError(
            f"{subject}: a stream handler is a method of the grain: remove `@{kind}` and "
            "take `self`"
        )
    if not isinstance(fn, FunctionType):
        raise DefinitionError(
            f"{subject}: `{name}` is a stream handler, in this class or in one that it inherits "
            f"from, so it must be `async def`, not {fn!r}"
        )


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
    commit_with: StateField[Any] | State[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
    backoff: Backoff | None = None,
    give_up_on: tuple[type[Exception], ...] = (),
    on_give_up: GiveUpDecision | None = None,
    key: str = "*",
    where: Callable[[Event[T]], bool] | None = None,
    ack: Literal["auto", "manual"] = "auto",
) -> _Single[T]: ...
@overload
def subscribe(
    namespace: StreamNamespace[T],
    /,
    *,
    batch: Literal[True],
    max_events: int = EVENTS_MAX,
    commit_with: StateField[Any] | State[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
    backoff: Backoff | None = None,
    give_up_on: tuple[type[Exception], ...] = (),
    on_give_up: GiveUpDecision | None = None,
    key: str = "*",
    where: Callable[[Event[T]], bool] | None = None,
    ack: Literal["auto", "manual"] = "auto",
) -> _Batch[T]: ...
def subscribe(
    namespace: StreamNamespace[Any],
    /,
    *,
    batch: bool = False,
    max_events: int = EVENTS_MAX,
    commit_with: StateField[Any] | State[Any] | None = None,
    retries: int | None = None,
    dead_letter: bool = True,
    backoff: Backoff | None = None,
    give_up_on: tuple[type[Exception], ...] = (),
    on_give_up: GiveUpDecision | None = None,
    key: str = "*",
    where: Where | None = None,
    ack: Literal["auto", "manual"] = "auto",
) -> Any:
    """Subscribe every grain of the class to the stream with the grain's own key.

    The method is `async def` and has one argument that may be given by position: `Event[T]`, or
    with `batch=True` `list[Event[T]]`, `Sequence[Event[T]]` or another type that a list fits. T is
    the namespace's item or a wider type: a base class, a union, `object`. The first event activates
    the grain. A method has one mark per name of streams, even if their providers differ.

    Args:
        namespace: the streams to subscribe to.
        batch: the handler takes a list of events.
        max_events: largest number of events in a list, at least 1; only with `batch=True`.
        commit_with: a state field of the class. The state and the position are stored in one write
            after each delivered batch, so effects on the state happen exactly once.
        retries: attempts after the first, before an event is given up. None: the provider's.
        dead_letter: False: skip an event that would become a dead letter.
        backoff: the wait before each retry. None: the provider's.
        give_up_on: exception types after which an event is given up at once: `(ValueError,)`.
        on_give_up: `"dead_letter"`, `"skip"` or `"pause"`: the fate of a given-up event. None: the
            provider's `on_give_up` decides.
        key: a pattern of keys, at most 200 characters: `*` any characters, `?` one, `[ab]` one of
            these, `[!ab]` none of these.
        where: a filter: takes an event, and returns True or False at once. Other events count as
            processed. It may run in the silo that reads the queue, so it may use the event only.
        ack: `"manual"`: an event is processed when the grain calls `self.context.ack(event)` for it
            or for a later one. Unacknowledged events, `max_unacked` at most, are delivered again
            after `ack_timeout_s`, to another activation, and after a hand-over. Needs `ORDERED` and
            `STABLE_TOKENS`; excludes `commit_with` and `where`.

    Raises:
        DefinitionError: a rule is broken; raised with file and line when the class is defined.
    """
    _check_parentheses(namespace)
    mark = SubscribeMark(
        namespace,
        is_batch=batch,
        max_events=max_events,
        commit_with=commit_with,
        retries=retries,
        dead_letter=dead_letter,
        backoff=backoff,
        give_up_on=give_up_on,
        on_give_up=on_give_up,
        key=key,
        where=where,
        ack=ack,
    )
    return _Batch(mark) if batch else _Single(mark)


def _check_parentheses(namespace: Any) -> None:
    fn = inspect.unwrap(namespace)
    if inspect.isfunction(fn):
        raise DefinitionError(
            f"{source_of(fn)}: {label_of(fn)}: `@subscribe` takes a namespace, not a function: "
            "write `@subscribe(NAMESPACE)`"
        )


def check_marks(
    grain_types: Iterable[GrainType], provider: str, capabilities: frozenset[Capability]
) -> None:
    """Raise ConfigError for a handler with an option that the provider cannot support."""
    for grain_type in grain_types:
        for handler, marks in grain_type.marks.items():
            for mark in marks:
                if isinstance(mark, SubscribeMark) and mark.namespace.provider == provider:
                    _check_provided(f"{grain_type.name}.{handler}", mark, grain_type, capabilities)


def item_type_of(grain_types: Iterable[GrainType], provider: str, namespace: str) -> Any:
    """The type of a namespace's events, as the handlers of these grains say, or None if no handler
    says it."""
    for grain_type in grain_types:
        for mark in (mark for marks in grain_type.marks.values() for mark in marks):
            if isinstance(mark, SubscribeMark) and mark.namespace.provider == provider:
                if mark.namespace.name == namespace:
                    return mark.namespace.item
    return None


def _check_provided(
    label: str, mark: SubscribeMark, grain_type: GrainType, capabilities: frozenset[Capability]
) -> None:
    if mark.commit_with is None and mark.ack == "auto":
        return
    needed = (Capability.ORDERED, Capability.STABLE_TOKENS)
    missing = [one.name for one in needed if one not in capabilities]
    if missing:
        what = 'ack="manual"' if mark.commit_with is None else "commit_with"
        raise ConfigError(
            f"{label}: {what} needs ORDERED and STABLE_TOKENS, because it uses positions; stream "
            f"provider {mark.namespace.provider!r} lacks {' and '.join(missing)}"
        )
    if mark.commit_with is not None and grain_type.options.reentrant:
        raise ConfigError(
            f"{label}: commit_with excludes every other turn, so the grain cannot be reentrant"
        )
