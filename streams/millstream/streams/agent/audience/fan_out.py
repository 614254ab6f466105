"""Giving the messages of a stream to very many subscriptions, a part of them at a time.

Owns: `spread`. Not: giving a message to few (`subscribers`). Invariants: one message after the
other, each to all; who has left meanwhile gets none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.delivery.subscriber import Subscriber

from .stream_entry import StreamEntry, parts

__all__ = ["AT_ONCE", "follow_few", "follow_stream", "spread"]

AT_ONCE = 100
"""Subscriptions of one stream that are given a message, or are made known, without a pause."""


async def spread(
    entry: StreamEntry,
    waiting: deque[Slot],
    cache: QueueCache,
    deliveries: Dispatch,
    progressed: Callable[[], None],
) -> None:
    """Until all that waits was given to everyone, or let go."""
    while waiting:
        slot = waiting[0]
        for part in parts(list(entry.subscribers.values()), AT_ONCE):
            for subscriber in part:
                if entry.subscribers.get(subscriber.id) is subscriber:
                    deliveries.offer(subscriber, slot)
            deliveries.pump()
            await asyncio.sleep(0)
            if entry.spread is not waiting:
                return  # they were let go
        waiting.popleft()
        cache.release(slot)
    entry.spread = None
    progressed()


async def follow_stream(entry: StreamEntry, deliveries: Dispatch) -> None:
    """Let all subscriptions wait, or go on, as is known of the stream.

    What was said last holds, also for those that come meanwhile; who is paused or faulted by itself
    stays so when the stream goes on.
    """
    many = parts(list(entry.subscribers.values()), AT_ONCE)
    for number, part in enumerate(many):
        if number:
            await asyncio.sleep(0)
        _follow(part, deliveries, is_paused=entry.is_paused)


def follow_few(entry: StreamEntry, deliveries: Dispatch) -> None:
    """As `follow_stream`, for a stream with few subscriptions."""
    _follow(entry.subscribers.values(), deliveries, is_paused=entry.is_paused)


def _follow(part: Iterable[Subscriber], deliveries: Dispatch, *, is_paused: bool) -> None:
    for one in part:
        if one.is_paused is is_paused:
            continue
        one.is_paused = is_paused
        if is_paused:
            deliveries.hold(one)
        else:
            deliveries.retry(one)
