"""The states of a delivery, how its calls end, and the actions that it returns.

Owns: `DeliveryState`, and the values between `Delivery` and its driver. Not: what follows from
what (`delivery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal

import msgspec

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = [
    "AckBy",
    "Action",
    "CallReply",
    "Deliver",
    "DeliveryState",
    "Died",
    "Failure",
    "FailureKind",
    "Fetch",
    "GiveUp",
    "GiveUpOutcome",
    "HandBack",
    "Outcome",
    "Unreachable",
    "WaitUntil",
]

GiveUpOutcome = Literal["dead_letter", "skip", "pause"]


class DeliveryState(Enum):
    """The states of a delivery."""

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
    """The kinds of failures that count as attempts."""

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


# How a call ends. `at_s` is the loop's clock; `roll` is a chance in [0, 1) for the back-off.


class CallReply(msgspec.Struct, frozen=True):
    """A reply: the first `done` items are done, then came `error`, if any.

    `is_heard`: the handler has done one of them, not only a filter.
    """

    done: int
    error: Failure | None
    at_s: float
    roll: float
    is_heard: bool = True
    acked: Token | None = None  # by hand, up to here
    is_anew: bool = False  # the consumer has not had what was delivered before, unacknowledged


class Unreachable(msgspec.Struct, frozen=True):
    """No fault of the handler: overloaded, silo gone, grain moved, storage, reply lost.

    It also answers `GiveUp` when the item could not be stored. `silo`: the call was sent there, and
    the connection broke. `is_fenced`: the consumer knows an owner of a newer epoch.
    """

    reason: str
    at_s: float
    roll: float
    silo: str = ""
    is_fenced: bool = False


Outcome = CallReply | Unreachable


class Died(msgspec.Struct, frozen=True):
    """The silo died that had the item at the cursor.

    `times`: how often; `sent`: items of the call that was out, any of which may be the reason;
    `is_alone`: nothing else of the queue was out.
    """

    times: int = 1
    sent: int = 1
    is_alone: bool = False


# Actions.


class Deliver(msgspec.Struct, frozen=True):
    """Send these items, or the first few of them, and call `on_sent`; until then nothing
    changes."""

    items: Sequence[Item]
    attempt: int


class GiveUp(msgspec.Struct, frozen=True):
    """Ask the failure handler about this item; answer with `on_given_up`."""

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
    """Call `tick` at this time."""

    when_s: float


class AckBy(msgspec.Struct, frozen=True):
    """Call `ack_due` at this time."""

    when_s: float


class Fetch(msgspec.Struct, frozen=True):
    """Read the items anew; answer with `on_fetched`."""


Action = Deliver | GiveUp | HandBack | WaitUntil | AckBy | Fetch
