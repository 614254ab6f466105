"""One stream of a queue, as its agent knows it.

Owns: `StreamEntry`, where its subscriptions are, and pausing all of them. Not: making and ending
them (`audience`, `subscribers`), giving them messages (`fan_out`).
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
    """One stream: its subscriptions, and what waits while they are being asked for."""

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
        self.is_parked = False  # while it is cold: its messages are read anew
        self.detached: dict[str, None] = {}  # while it is cold: the answer may be older
        self.holds: dict[str, Held] = {}  # what was told of subscriptions, and of all of them
        self.spread: deque[Slot] | None = None  # being given to very many
        self.spreading: asyncio.Task[None] | None = None  # which does that
        self.asking = ""  # what a cold stream waits for, in words
        self.starts: Starts | None = None  # once somebody waits for a token
        self.is_asked_for = False  # it may have explicit subscriptions
        self.told: set[str] | None = None  # of which, while it is compared with what is stored
        self.newest: Token | None = None  # the last item that came
        self.used_s = 0.0

    @property
    def is_paused(self) -> bool:
        """Are all subscriptions to wait? They do until it is known."""
        return self.holds.get(WHOLE_STREAM, "paused") != ""

    def waits_for(self) -> str:
        """The causes that all its work waits for; empty: none, or none that is known."""
        if self.cold is not None:
            return self.asking
        is_given = self.spreading is not None and not self.spreading.done()
        return "its events are being given to very many subscriptions" if is_given else ""

    def dump(self) -> str:
        """Its state, for a report of a fault."""
        cold = None if self.cold is None else len(self.cold)
        spread = None if self.spread is None else len(self.spread)
        return (
            f"cold={cold}, is_parked={self.is_parked}, asking={self.asking!r}, spread={spread}, "
            f"subscribers={len(self.subscribers)}"
        )

    @property
    def has_deliveries(self) -> bool:
        """Is something of it not done for one of its subscriptions?"""
        return any(one.work is not None for one in self.subscribers.values())

    @property
    def first_waiting(self) -> Token | None:
        """The first message that not every subscription was given; None: there is none."""
        waiting = self.spread or self.cold
        return waiting[0].message.token if waiting else None

    def is_idle(self, before_s: float, losses: Losses) -> bool:
        """Has it had no event since then, and is nothing of it undelivered or untold?"""
        if self.used_s >= before_s or self.cold is not None or self.spread:
            return False
        all_of_them = self.subscribers.values()
        return all(one.work is None and losses.covers(one.gaps) for one in all_of_them)

    def park(self) -> list[Slot]:
        """Let the messages that wait for subscriptions be read again later; returns them."""
        waiting, self.cold, self.is_parked = self.cold or [], [], True
        return waiting

    def let_go(self) -> list[Slot]:
        """Nothing waits here any more; returns which messages did."""
        waiting = [*(self.cold or ()), *(self.spread or ())]
        self.cold, self.spread = None if self.cold is None else [], None
        return waiting

    def hear_of(self, subscription: str) -> None:
        """Something was told of a subscription: what is being read may be older."""
        if self.told is not None:
            self.told.add(subscription)


def places(entry: StreamEntry) -> Iterator[tuple[int, Subscriber]]:
    """The subscriptions that hold something in the cache, and the oldest message of each."""
    for subscriber in entry.subscribers.values():
        index = None if subscriber.work is None else subscriber.work.cursor.index
        if index is not None:
            yield index, subscriber


def has_backlog(entry: StreamEntry, upto: int) -> bool:
    """Is something up to a message of the cache, or that may be repeated, being delivered?

    Not what is held, or cannot be delivered now. While it is not known who hears the stream, there
    may be. Cost: O(subscriptions).
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
    """So many at a time."""
    for start in range(0, len(all_of_them), size):
        yield all_of_them[start : start + size]


AT_ONCE = 100
"""Subscriptions of one stream that are given a message, or are made known, without a pause."""


async def follow_stream(entry: StreamEntry, deliveries: Deliveries) -> None:
    """Let all subscriptions wait, or go on, as is known of the stream.

    The newest state of the stream applies, also to subscriptions that are added meanwhile. A
    subscription that is itself paused or faulted stays so when the stream goes on.
    """
    many = parts(list(entry.subscribers.values()), AT_ONCE)
    for number, part in enumerate(many):
        if number:
            await asyncio.sleep(0)
        _follow(part, deliveries, is_paused=entry.is_paused)


def follow_few(entry: StreamEntry, deliveries: Deliveries) -> None:
    """As `follow_stream`, for a stream with few subscriptions."""
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
