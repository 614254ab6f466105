"""The states of a delivery, the outcomes of its calls, and the actions that it returns.

Owns `DeliveryState`, and the values between `Delivery` and its driver. `delivery` has the
transitions.
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
    READY = "ready"  # has items, and waits for its turn
    IN_FLIGHT = "in_flight"  # a call is in flight
    GIVING_UP = "giving_up"  # the failure handler has the item
    BACKOFF = "backoff"  # waits for a time
    UNACKED = "unacked"  # the limit of unacknowledged events is reached
    LAGGING = "lagging"  # its items have left the cache, and are read again
    FAULTED = "faulted"  # given up with "pause", or paused; the cursor keeps the rest
    CLOSED = "closed"  # the subscription, or its agent, has ended


class FailureKind(Enum):
    """The kinds of failures that count as attempts."""

    HANDLER = "handler"  # the handler raised
    TIMEOUT = "timeout"  # the handler exceeded its deadline
    ACTIVATION = "activation"  # on_activate raised
    FILTER = "filter"  # the subscription's filter raised, or gave no answer
    DEATH = "death"  # the silo crashed that ran the handler


class Failure(msgspec.Struct, frozen=True):
    """The failure of the item at the cursor. `is_final`: it must not be retried."""

    kind: FailureKind
    text: str
    is_final: bool = False


# The outcomes of a call. `at_s` is the loop's clock; `roll` is a random number in [0, 1) for the
# back-off.


class CallReply(msgspec.Struct, frozen=True):
    """A reply: the first `done` items are done, then came `error`, if any.

    `is_heard` says that the handler finished one of them, not only a filter.
    """

    done: int
    error: Failure | None
    at_s: float
    roll: float
    is_heard: bool = True
    acked: Token | None = None  # acknowledged by hand, up to here
    is_anew: bool = False  # a new activation, without the earlier unacknowledged events


class Unreachable(msgspec.Struct, frozen=True):
    """A failure that is not the handler's fault: overload, a lost silo, grain or reply, or storage.

    It also answers `GiveUp` if the item could not be stored. `silo` is the receiver of the call if
    its connection broke. `is_fenced` says that the consumer knows an owner with a newer epoch.
    """

    reason: str
    at_s: float
    roll: float
    silo: str = ""
    is_fenced: bool = False


Outcome = CallReply | Unreachable


class Died(msgspec.Struct, frozen=True):
    """The silo crashed that had the item at the cursor.

    `times` is the number of crashes. `sent` is the number of items in the call, any of which may be
    the cause. `is_alone` says that no other call of the queue was in flight.
    """

    times: int = 1
    sent: int = 1
    is_alone: bool = False


# The actions of a delivery.


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
    """Return the message of this item to the queue, to be delivered again after a delay.

    `attempts` is the number of attempts, which the queue counts.
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
    """Read the items again; answer with `on_fetched`."""


Action = Deliver | GiveUp | HandBack | WaitUntil | AckBy | Fetch
