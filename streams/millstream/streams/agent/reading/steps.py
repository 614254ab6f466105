"""The states of a reader, and the actions that it asks for.

Owns the values that `ReaderCore` returns. Invariant: they are immutable.
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
    "Action",
    "Bound",
    "Discard",
    "Extend",
    "Fence",
    "Forget",
    "GapFound",
    "Offer",
    "OpenReceiver",
    "Read",
    "ReaderState",
    "Release",
    "Relieve",
    "Return",
    "Say",
]


class ReaderState(Enum):
    """The state of reading a queue."""

    STARTING = "starting"  # no receiver is open
    READING = "reading"
    FULL = "full"  # messages wait for room in the cache
    PAUSED = "paused"
    FENCED = "fenced"  # another silo owns the queue; the end


class OpenReceiver(msgspec.Struct, frozen=True):
    """Make a receiver and start it after `after`; call `on_opened`, `on_gone` or `on_failed`."""

    serial: int
    after: Token | None


class Bound(msgspec.Struct, frozen=True):
    """Ask for the last stored message; call `on_bounds`, or nothing if there is no answer."""


class Read(msgspec.Struct, frozen=True):
    """Read; call `on_read` or `on_failed`."""

    events: int
    size_bytes: int
    wait_s: float


class Ack(msgspec.Struct, frozen=True):
    """Acknowledge; call `on_settled` or `on_failed`."""

    upto: Token | None
    also: Sequence[Token] = ()


class Extend(msgspec.Struct, frozen=True):
    """Extend the leases of these messages; call `on_settled` or `on_failed`."""

    tokens: Sequence[Token]
    lease_s: float


class Release(msgspec.Struct, frozen=True):
    """Return these messages to the queue; call `on_settled` or `on_failed`."""

    tokens: Sequence[Token]
    delay_s: float
    has_run: bool


class Return(msgspec.Struct, frozen=True):
    """Unpin the messages that are not being handled; call `on_returned` with them."""


class Discard(msgspec.Struct, frozen=True):
    """Close the receiver and end its calls; call `on_closed`, at the latest after a time limit."""


class Forget(msgspec.Struct, frozen=True):
    """Drop all messages and acknowledge none of them: the next receiver returns them again."""


class Offer(msgspec.Struct, frozen=True):
    """Give these messages, now in the cache, to the subscriptions of their streams."""

    slots: Sequence[Slot]


class Relieve(msgspec.Struct, frozen=True):
    """Let the slowest subscriptions of this stream lag, because it crowds or blocks the cache."""

    stream: StreamId


class Say(msgspec.Struct, frozen=True):
    """Count and log a fault of the adapter."""

    text: str


class GapFound(msgspec.Struct, frozen=True):
    """Messages that were stored between `after` and `first` can no longer be read."""

    after: Token | None
    first: Token | None


class Fence(msgspec.Struct, frozen=True):
    """Stop for good, because another silo owns the queue."""

    text: str


Action = (
    OpenReceiver
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
    | GapFound
    | Fence
)
