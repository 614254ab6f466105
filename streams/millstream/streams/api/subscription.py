"""Handles of subscriptions.

Owns: `Subscription`, where one may start. Not: the row behind it (`rendezvous`). Invariants: a
subscription belongs to the grain's identity and survives its activations; a handle has the state
of the moment in which it was made.
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


class LocalConsumer(Protocol):
    """The end of a grain's deliveries, in its own silo: its extension `streams`."""

    async def on_joining(self, subscription: str, /) -> None: ...
    def on_added(self, row: SubscriptionRow, /) -> None:
        """It is stored: every later event is its."""
        ...

    def left(self, subscription: str, /) -> None:
        """It is to end: nothing more of it is handled."""
        ...

    def on_removed(self, subscription: str, /) -> None:
        """It is stored no more."""
        ...


def start_text(start: object) -> str:
    """A start as it is stored. Raises ConfigError for what is none."""
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
    """The end of a grain's deliveries, if it has had one."""
    found: LocalConsumer | None = extension_of(grain, "streams")
    return found


class Subscription(Generic[T]):
    """A handle of a subscription; equal by id, valid in any activation and program."""

    __slots__ = ("_grain", "_label", "_rendezvous", "_row")

    def __init__(
        self,
        rendezvous: Rendezvous,
        label: str,
        row: SubscriptionRow,
        grain: Grain | None = None,
    ) -> None:
        self._rendezvous = rendezvous
        self._label = label  # of the stream
        self._row = row
        self._grain = grain  # the subscribing one, where the handle was made

    def __repr__(self) -> str:
        return f"<subscription {self.id}>"

    @property
    def id(self) -> str:
        """The same in every activation; another one for each stream, grain, handler and name."""
        return self._row.id

    @property
    def name(self) -> str:
        """The name that was given to `subscribe` or `consume`."""
        return self._row.name

    @property
    def consumer(self) -> str:
        """`Type/key` of the grain; of a program that consumes, the subscription's name."""
        row = self._row
        return row.name if row.session else f"{row.grain_type}/{row.grain_key}"

    @property
    def handler(self) -> str:
        """Name of the method; empty for a program that consumes."""
        return self._row.handler

    @property
    def is_implicit(self) -> bool:
        """Does a mark make it?"""
        return is_implicit(self.id)

    @property
    def state(self) -> SubscriptionState:
        """What it was when the handle was made: "active", "paused", "faulted" (it was paused by
        a failure), or "pending" (whoever subscribes is not answered yet)."""
        return self._row.state

    @property
    def note(self) -> str:
        """Why it is faulted."""
        return self._row.note

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def unsubscribe(self) -> None:
        """End the subscription; again is harmless.

        From the call on, the handler of the activation that made it sees no further event of it,
        also if this raises: then the activation tries again at the next event. Raises StreamError
        for an implicit one, which lasts as long as its mark; StorageError, and what calls raise.
        """
        if self.is_implicit:
            raise StreamError(f"{self.id} is implicit: pause it, or remove the mark")
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
        """Deliver nothing more until it is resumed; its events wait. Again is harmless.

        When it has returned, no handler begins; one that runs goes on. It is stored, and ends with
        `resume` only. Raises StreamError (it was unsubscribed).
        """
        self._check(await self._rendezvous.pause(self.id))

    async def resume(self, *, start: Start | None = None) -> None:
        """Go on: after a pause or a fault, or to go elsewhere. Again is harmless.

        Args:
            start: None: where it is, so that nothing is left out: what failed is tried anew; or
                where `subscribe` would begin: "next" leaves out all that waits.

        Raises ConfigError (no such start), StreamError (it was unsubscribed).
        """
        self._check(await self._rendezvous.resume(self.id, start_text(start)))

    def _check(self, is_there: bool) -> None:
        if not is_there:
            raise StreamError(f"{self.id} is not subscribed to {self._label}")
