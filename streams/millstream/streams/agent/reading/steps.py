"""What the reader is told, and what it says is to be done.

Owns: the states, events and actions of `ReaderCore`. Invariant: they are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from millstream.streams.agent.cache.lane import Slot
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = [
    "Ack",
    "Acked",
    "Action",
    "Bound",
    "Bounded",
    "Closed",
    "Discard",
    "Event",
    "Extend",
    "Extended",
    "Failed",
    "Fence",
    "Forget",
    "Gap",
    "GoOn",
    "Gone",
    "Got",
    "Hold",
    "Offer",
    "Open",
    "Opened",
    "Overtaken",
    "Progressed",
    "Read",
    "ReaderState",
    "Release",
    "Released",
    "Relieve",
    "Return",
    "Returned",
    "Say",
    "Tick",
]


class ReaderState(Enum):
    """Where a reader stands."""

    STARTING = "starting"  # no receiver is open
    READING = "reading"
    FULL = "full"  # what was read has no room yet
    PAUSED = "paused"
    FENCED = "fenced"  # another silo owns the queue; the end


# Events. `serial` is that of the receiver that speaks.


class Opened(msgspec.Struct, frozen=True):
    """`start` has returned."""

    serial: int


class Gone(msgspec.Struct, frozen=True):
    """`start` has raised CursorTooOld: the receiver stands at `first`."""

    serial: int
    first: Token | None


class Bounded(msgspec.Struct, frozen=True):
    """The answer to `Bound`: the last message that was stored; None: the queue was empty."""

    last: Token | None


class Got(msgspec.Struct, frozen=True):
    """`read` has returned this, whatever it is; `where` names adapter and method."""

    serial: int
    answer: object
    where: str


class Acked(msgspec.Struct, frozen=True):
    """`ack` has returned."""

    serial: int


class Extended(msgspec.Struct, frozen=True):
    """`extend` has returned this; `where` names adapter and method."""

    serial: int
    lost: object
    where: str


class Released(msgspec.Struct, frozen=True):
    """`release` has returned."""

    serial: int


class Returned(msgspec.Struct, frozen=True):
    """Nobody here has these any more, and they are not done: they go back to the queue.

    `has_run`: a handler has tried them. `delay_s`: they are not to be given out before.
    """

    tokens: Sequence[Token]
    delay_s: float = 0.0
    has_run: bool = False


class Failed(msgspec.Struct, frozen=True):
    """A call has raised; `method` is its name, `text` says where and what."""

    serial: int
    method: str
    text: str


class Closed(msgspec.Struct, frozen=True):
    """The receiver is closed, or left behind."""

    serial: int


class Overtaken(msgspec.Struct, frozen=True):
    """A call has raised QueueFenced."""

    text: str


class Hold(msgspec.Struct, frozen=True):
    """Read no more."""


class GoOn(msgspec.Struct, frozen=True):
    """Undo a hold."""


class Progressed(msgspec.Struct, frozen=True):
    """There may be room in the cache, and something to acknowledge."""


class Tick(msgspec.Struct, frozen=True):
    """The time of `wake_s` may have come."""


Event = (
    Progressed
    | Bounded
    | Got
    | Acked
    | Extended
    | Released
    | Returned
    | Tick
    | Opened
    | Gone
    | Failed
    | Closed
    | Overtaken
    | Hold
    | GoOn
)


# Actions.


class Open(msgspec.Struct, frozen=True):
    """Make a receiver, start it behind `after`; answer with Opened, Gone or Failed."""

    serial: int
    after: Token | None


class Bound(msgspec.Struct, frozen=True):
    """Ask which message was stored last; answer with Bounded, or not at all."""


class Read(msgspec.Struct, frozen=True):
    """Read; answer with Got or Failed."""

    events: int
    size_bytes: int
    wait_s: float


class Ack(msgspec.Struct, frozen=True):
    """Acknowledge; answer with Acked or Failed."""

    upto: Token | None
    also: Sequence[Token] = ()


class Extend(msgspec.Struct, frozen=True):
    """Hold these messages for longer; answer with Extended or Failed."""

    tokens: Sequence[Token]
    lease_s: float


class Release(msgspec.Struct, frozen=True):
    """Give these messages back to the queue; answer with Released or Failed."""

    tokens: Sequence[Token]
    delay_s: float
    has_run: bool


class Return(msgspec.Struct, frozen=True):
    """Let go of what is not under way; say Returned of it."""


class Discard(msgspec.Struct, frozen=True):
    """Close the receiver, end what is out to it; answer with Closed, at last after a time limit."""


class Forget(msgspec.Struct, frozen=True):
    """Drop what is not under way, and acknowledge nothing of what is: it is given again."""


class Offer(msgspec.Struct, frozen=True):
    """These were appended to the cache: give them to the subscriptions of their streams."""

    slots: Sequence[Slot]


class Relieve(msgspec.Struct, frozen=True):
    """The cache has too much of this stream, or is held up by it: its slowest falls behind."""

    stream: StreamId


class Say(msgspec.Struct, frozen=True):
    """The adapter is at fault: count it, and say it."""

    text: str


class Gap(msgspec.Struct, frozen=True):
    """What was stored between `after` and `first` cannot be read any more."""

    after: Token | None
    first: Token | None


class Fence(msgspec.Struct, frozen=True):
    """Another silo owns the queue: stop for good."""

    text: str


Action = (
    Open
    | Bound
    | Read
    | Ack
    | Extend
    | Release
    | Return
    | Discard
    | Forget
    | Offer
    | Relieve
    | Say
    | Gap
    | Fence
)
