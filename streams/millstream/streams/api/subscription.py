"""Handles of subscriptions.

Owns: `Subscription`, and the places where one may start. Not: the row behind it (`rendezvous`).
Invariants: a subscription belongs to the grain's identity and survives its activations. A handle
has the state of the moment in which it was made.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from millstream.runtime import ConfigError, Grain, StreamError
from millstream.runtime.extending import extension_of
from millstream.streams.contracts.token import Token

from .implicit import is_implicit
from .rendezvous import Rendezvous
from .subscription_rows import HERE, SubscriptionRow, SubscriptionState, time_start

__all__ = ["LocalConsumer", "Start", "Subscription", "local_consumer", "start_text"]

T = TypeVar("T")
STARTS = ("next", "earliest")
Start = Annotated[
    Literal["next", "earliest"] | Token | datetime, "where an explicit subscription begins"
]
"""The place where a subscription begins, or moves to.

- `"next"`: events from now on; waiting events are left out.
- `"earliest"`: the oldest event that the queue still has.
- A `Token`: the event of that token comes first.
- A `datetime` with a time zone: the first event accepted at that time or later. The provider needs
  `REWIND`.

Any other value is a `ConfigError`. With `REWIND`, a start may lie as far back as the provider keeps
events; without it, as far as the agent's cache reaches.
"""


class LocalConsumer(Protocol):
    """The receiving end of a grain's deliveries, in its own silo: its extension `streams`."""

    async def on_joining(self, subscription: str, /) -> None: ...
    def on_added(self, row: SubscriptionRow, /) -> None:
        """The subscription is stored: every later event is delivered to it."""
        ...

    def left(self, subscription: str, /) -> None:
        """The subscription is about to end: handle none of its events any more."""
        ...

    def on_removed(self, subscription: str, /) -> None:
        """The subscription is not stored any more."""
        ...


def start_text(start: object) -> str:
    """Return a start as it is stored. Raises ConfigError for any other value."""
    if start is None:
        return HERE
    if isinstance(start, Token) or (isinstance(start, str) and start in STARTS):
        return str(start)
    if isinstance(start, datetime) and start.tzinfo is not None:
        return time_start(start)
    raise ConfigError(
        f"start={start!r}: write 'next', 'earliest', a Token (`Token.parse(text)`), or a datetime "
        "with a time zone"
    )


def local_consumer(grain: Grain) -> LocalConsumer | None:
    """The receiving end of a grain's deliveries, if one exists."""
    found: LocalConsumer | None = extension_of(grain, "streams")
    return found


class Subscription(Generic[T]):
    """A handle of a subscription; equal by id, valid in any activation and program.

    `Stream.subscribe` and `Stream.subscriptions` return it.
    """

    __slots__ = ("_grain", "_label", "_rendezvous", "_row")

    def __init__(
        self,
        rendezvous: Rendezvous,
        label: str,
        row: SubscriptionRow,
        grain: Grain | None = None,
    ) -> None:
        self._rendezvous = rendezvous
        self._label = label  # the name of the stream
        self._row = row
        self._grain = grain  # the subscribing grain, in the activation that made the handle

    def __repr__(self) -> str:
        return f"<subscription {self.id}>"

    @property
    def id(self) -> str:
        """The id: the same in every activation, and unique for each stream, grain, handler and
        name."""
        return self._row.id

    @property
    def name(self) -> str:
        """The name that was given to `subscribe` or `consume`."""
        return self._row.name

    @property
    def consumer(self) -> str:
        """`Type/key` of the grain; for a program that consumes, the subscription's name."""
        row = self._row
        return row.name if row.session else f"{row.grain_type}/{row.grain_key}"

    @property
    def handler(self) -> str:
        """Name of the method; empty for a program that consumes."""
        return self._row.handler

    @property
    def is_implicit(self) -> bool:
        """Whether a mark creates the subscription."""
        return is_implicit(self.id)

    @property
    def state(self) -> SubscriptionState:
        """The state when the handle was made.

        `"active"`; `"paused"` by a user; `"faulted"`: paused by the runtime because of a failure;
        `"pending"`: the call that subscribes has not returned yet.
        """
        return self._row.state

    @property
    def note(self) -> str:
        """Why the subscription is faulted."""
        return self._row.note

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def unsubscribe(self) -> None:
        """End the subscription; a repeated call does no harm.

        From the call on, the handler of the activation that made this handle gets no further event
        of it, even if the call raises. In that case the activation tries to unsubscribe again at
        the next event.

        Raises:
            StreamError: the subscription is implicit, so it lasts as long as its mark.
            StorageError: the store failed.
        """
        if self.is_implicit:
            raise StreamError(
                f"{self.id} is implicit and lasts as long as its mark: pause the subscription, or "
                "remove the mark"
            )
        consumer = None if self._grain is None else local_consumer(self._grain)
        if consumer is not None:
            consumer.left(self.id)
        if self._row.session:
            await self._rendezvous.end(self.name)
        else:
            await self._rendezvous.remove(self.id)
        if consumer is not None:
            consumer.on_removed(self.id)

    async def pause(self) -> None:
        """Stop deliveries until `resume`; events wait. A repeated call does no harm.

        After the call has returned, no handler starts; a running one continues. The pause is
        stored.

        Raises:
            StreamError: the subscription has ended.
        """
        self._check(await self._rendezvous.pause(self.id))

    async def resume(self, *, start: Start | None = None) -> None:
        """Continue after a pause or a fault, or move to another position. A repeated call does no
        harm.

        Args:
            start: the new position. None: continue at the subscription's position, so that no event
                is left out and a failed event is attempted again.

        Raises:
            ConfigError: `start` is not valid.
            StreamError: the subscription has ended, or the provider cannot start at a time.
        """
        self._check(await self._rendezvous.resume(self.id, start_text(start)))

    def _check(self, is_there: bool) -> None:
        if not is_there:
            raise StreamError(
                f"{self._label} has no subscription {self.id}: the subscription has ended"
            )
