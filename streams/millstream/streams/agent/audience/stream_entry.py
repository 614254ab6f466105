"""One stream of a queue, as its agent knows it.

Owns `StreamEntry`, which has the stream's subscriptions, and pausing all of them. `audience` and
`subscribers` add and end them, and `fan_out` gives them messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.delivery.deliveries import Deliveries
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import DeliveryState
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.starts import Starts
from millstream.streams.api.subscription_rows import WHOLE_STREAM, Held
from millstream.streams.contracts.token import Token

__all__ = [
    "AT_ONCE",
    "StreamEntry",
    "follow_few",
    "follow_stream",
    "has_backlog",
    "parts",
    "places",
]

P = TypeVar("P")


class StreamEntry:
    """One stream: its subscriptions, and the messages that wait while they are being read."""

    __slots__ = (
        "asking",
        "cold",
        "detached",
        "holds",
        "is_asked_for",
        "is_parked",
        "newest",
        "spread",
        "spreading",
        "starts",
        "subscribers",
        "told",
        "used_s",
    )

    def __init__(self) -> None:
        self.subscribers: dict[str, Subscriber] = {}
        self.cold: list[Slot] | None = None
        self.is_parked = False  # while cold: its messages are read again later
        self.detached: dict[str, None] = {}  # while cold: ended since the rows were read
        self.holds: dict[str, Held] = {}  # reported stops, also of the whole stream
        self.spread: deque[Slot] | None = None  # being given to very many
        self.spreading: asyncio.Task[None] | None = None  # the task that gives them
        self.asking = ""  # the reason why a cold stream waits
        self.starts: Starts | None = None  # set once a subscription waits for a token
        self.is_asked_for = False  # it may have explicit subscriptions
        self.told: set[str] | None = None  # subscriptions with messages during a comparison
        self.newest: Token | None = None  # the last item that arrived
        self.used_s = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether all subscriptions must wait; true until that is known."""
        return self.holds.get(WHOLE_STREAM, "paused") != ""

    def waits_for(self) -> str:
        """Return the reason why all work of the stream waits.

        The text is empty if it does not wait, or if the reason is unknown.
        """
        if self.cold is not None:
            return self.asking
        is_given = self.spreading is not None and not self.spreading.done()
        return "an event is being offered to very many subscriptions" if is_given else ""

    def dump(self) -> str:
        """Return the state of the stream, for a report of a fault."""
        cold = None if self.cold is None else len(self.cold)
        spread = None if self.spread is None else len(self.spread)
        return (
            f"cold={cold}, is_parked={self.is_parked}, asking={self.asking!r}, spread={spread}, "
            f"subscribers={len(self.subscribers)}"
        )

    @property
    def has_deliveries(self) -> bool:
        """Whether a subscription has unfinished events."""
        return any(one.work is not None for one in self.subscribers.values())

    @property
    def first_waiting(self) -> Token | None:
        """The first message that not every subscription was given, or None if there is none."""
        waiting = self.spread or self.cold
        return waiting[0].message.token if waiting else None

    def is_idle(self, before_s: float, losses: Losses) -> bool:
        """Whether the stream had no event since `before_s`, and has no undelivered events or
        unreported losses."""
        if self.used_s >= before_s or self.cold is not None or self.spread:
            return False
        all_of_them = self.subscribers.values()
        return all(one.work is None and losses.covers(one.gaps) for one in all_of_them)

    def park(self) -> list[Slot]:
        """Unpin the messages that wait for subscriptions, to read them again later; returns
        them."""
        waiting, self.cold, self.is_parked = self.cold or [], [], True
        return waiting

    def let_go(self) -> list[Slot]:
        """Drop all waiting messages; returns them."""
        waiting = [*(self.cold or ()), *(self.spread or ())]
        self.cold, self.spread = None if self.cold is None else [], None
        return waiting

    def hear_of(self, subscription: str) -> None:
        """Record a message about a subscription: rows that are being read may be older."""
        if self.told is not None:
            self.told.add(subscription)


def places(entry: StreamEntry) -> Iterator[tuple[int, Subscriber]]:
    """Yield the subscriptions that pin messages in the cache, each with its oldest message."""
    for subscriber in entry.subscribers.values():
        index = None if subscriber.work is None else subscriber.work.cursor.index
        if index is not None:
            yield index, subscriber


def has_backlog(entry: StreamEntry, upto: int) -> bool:
    """Return True if a delivery is at a message up to `upto`, or may repeat a message.

    Paused and faulted subscriptions do not count, and neither do subscriptions whose last call
    failed without a reply. While the subscriptions are unknown, the answer is True. Cost:
    O(subscriptions).
    """
    if entry.cold is not None:
        return True
    deliveries = [one.work for one in entry.subscribers.values()]
    return any(one is not None and _is_within(one, upto) for one in deliveries)


def _is_within(delivery: Delivery, upto: int) -> bool:
    cursor = delivery.cursor
    if delivery.losses or delivery.state is DeliveryState.FAULTED:
        return False
    may_repeat = cursor.is_lagging and cursor.may_repeat
    return may_repeat or (cursor.index is not None and cursor.index <= upto)


def parts(all_of_them: Sequence[P], size: int) -> Iterator[Sequence[P]]:
    """Yield slices of at most this size."""
    for start in range(0, len(all_of_them), size):
        yield all_of_them[start : start + size]


AT_ONCE = 100
"""Subscriptions of one stream that are handled before other tasks may run."""


async def follow_stream(entry: StreamEntry, deliveries: Deliveries) -> None:
    """Pause or resume all subscriptions of a stream, by its present state.

    The newest state of the stream applies, also to subscriptions that are added meanwhile. A
    subscription that is itself paused or faulted stays so when the stream is resumed.
    """
    many = parts(list(entry.subscribers.values()), AT_ONCE)
    for number, part in enumerate(many):
        if number:
            await asyncio.sleep(0)
        _follow(part, deliveries, is_paused=entry.is_paused)


def follow_few(entry: StreamEntry, deliveries: Deliveries) -> None:
    """Do the same as `follow_stream`, for a stream with few subscriptions."""
    _follow(entry.subscribers.values(), deliveries, is_paused=entry.is_paused)


def _follow(part: Iterable[Subscriber], deliveries: Deliveries, *, is_paused: bool) -> None:
    for one in part:
        if one.is_paused is is_paused:
            continue
        one.is_paused = is_paused
        if is_paused:
            deliveries.hold(one)
        else:
            deliveries.retry(one)
