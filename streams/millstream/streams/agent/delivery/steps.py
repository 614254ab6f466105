"""What happens to a delivery, and what follows: its states, events and actions.

Owns: `DeliveryState`, and the messages between `Delivery` and its driver. Not: what follows from
what (`delivery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal

import msgspec

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = [
    "AckBy",
    "AckDue",
    "Acked",
    "Action",
    "Arrived",
    "Deliver",
    "DeliveryState",
    "Died",
    "Event",
    "Failure",
    "FailureKind",
    "Fetch",
    "Fetched",
    "GiveUp",
    "GiveUpOutcome",
    "GivenUp",
    "HandBack",
    "Pause",
    "Progress",
    "Resume",
    "Retry",
    "Sent",
    "Tick",
    "Unreachable",
    "WaitUntil",
    "Wake",
]

GiveUpOutcome = Literal["dead_letter", "skip", "pause"]


class DeliveryState(Enum):
    """Where a delivery stands."""

    IDLE = "idle"  # nothing is left
    READY = "ready"  # has items; waits for its turn
    IN_FLIGHT = "in_flight"  # a call is out
    GIVING_UP = "giving_up"  # the failure handler has the item
    BACKOFF = "backoff"  # waits for a time
    UNACKED = "unacked"  # all that may be out is out, and is to be acknowledged by hand
    LAGGING = "lagging"  # its items have left the cache, and are read anew
    FAULTED = "faulted"  # given up with "pause", or paused; its cursor keeps what is not done
    CLOSED = "closed"  # the subscription, or its agent, has ended


class FailureKind(Enum):
    """What counts as an attempt."""

    HANDLER = "handler"  # the handler raised
    TIMEOUT = "timeout"  # the handler ran past its deadline
    ACTIVATION = "activation"  # on_activate raised
    FILTER = "filter"  # the subscription's filter raised, or gave no answer
    DEATH = "death"  # the silo died that ran the handler


class Failure(msgspec.Struct, frozen=True):
    """Why the item at the cursor was not done; `is_final`: it is not to be tried again."""

    kind: FailureKind
    text: str
    is_final: bool = False


# Events. `at_s` and `now_s` are the loop's clock; `roll` is a chance in [0, 1) for the back-off.


class Wake(msgspec.Struct, frozen=True):
    """A call may be made now."""


class Sent(msgspec.Struct, frozen=True):
    """The first `count` items of the last `Deliver` are on their way."""

    count: int
    at_s: float


class Progress(msgspec.Struct, frozen=True):
    """The reply: the first `done` items are done, then came `error`, if any.

    `is_heard`: the handler has done one of them, not only a filter.
    """

    done: int
    error: Failure | None
    at_s: float
    roll: float
    is_heard: bool = True
    acked: Token | None = None  # by hand, up to here
    is_anew: bool = False  # the consumer has not had what was delivered before, unacknowledged


class Acked(msgspec.Struct, frozen=True):
    """The consumer has acknowledged up to a token, by hand."""

    upto: Token


class AckDue(msgspec.Struct, frozen=True):
    """The time of `AckBy` has come."""

    now_s: float


class Arrived(msgspec.Struct, frozen=True):
    """Another message of the stream is here; `is_held`: the subscription is paused or faulted."""

    slot: Slot
    is_held: bool = False


class Unreachable(msgspec.Struct, frozen=True):
    """No fault of the handler: overloaded, silo gone, grain moved, storage, reply lost.

    It also answers `GiveUp` when the item could not be stored. `silo`: the call was sent there, and
    the connection broke.
    """

    reason: str
    at_s: float
    roll: float
    silo: str = ""


class Died(msgspec.Struct, frozen=True):
    """The silo died that had the item at the cursor.

    `times`: how often; `sent`: items of the call that was out, any of which may be the reason;
    `is_alone`: nothing else of the queue was out.
    """

    times: int = 1
    sent: int = 1
    is_alone: bool = False


class Tick(msgspec.Struct, frozen=True):
    """The time of `WaitUntil` has come."""

    now_s: float


class GivenUp(msgspec.Struct, frozen=True):
    """The answer to `GiveUp`; what was to be stored is stored."""

    outcome: GiveUpOutcome


class Resume(msgspec.Struct, frozen=True):
    """Go on behind `token` (None: at the oldest event held), from wherever it is now.

    `cursor`: it lags there.
    """

    token: Token | None
    cursor: Cursor | None = None


class Pause(msgspec.Struct, frozen=True):
    """Deliver nothing more; what is out ends first."""


class Retry(msgspec.Struct, frozen=True):
    """Go on where it is, after a fault or a pause too: what failed is tried as if it were new."""


class Fetched(msgspec.Struct, frozen=True):
    """The answer to `Fetch`: the items are here, or lost, or not yet."""


Event = (
    Wake
    | Sent
    | Progress
    | Unreachable
    | Died
    | Tick
    | GivenUp
    | Resume
    | Pause
    | Retry
    | Fetched
    | Acked
    | AckDue
    | Arrived
)


# Actions.


class Deliver(msgspec.Struct, frozen=True):
    """Send these items, or the first few of them, and say `Sent`; until then nothing changed."""

    items: Sequence[Item]
    attempt: int


class GiveUp(msgspec.Struct, frozen=True):
    """Ask the failure handler about this item; answer with `GivenUp`."""

    item: Item
    error: Failure
    attempts: int


class HandBack(msgspec.Struct, frozen=True):
    """The queue is to give the message of this item out again, after a while.

    `attempts`: how often it was tried; the queue counts them.
    """

    token: Token
    delay_s: float
    attempts: int
    error: Failure


class WaitUntil(msgspec.Struct, frozen=True):
    """Give a `Tick` at this time."""

    when_s: float


class AckBy(msgspec.Struct, frozen=True):
    """Give an `AckDue` at this time."""

    when_s: float


class Fetch(msgspec.Struct, frozen=True):
    """Read the items anew; answer with `Fetched`."""


Action = Deliver | GiveUp | HandBack | WaitUntil | AckBy | Fetch
