"""Gives the messages of a stream to its subscriptions.

`audience` knows the subscriptions, and `delivery` delivers to one of them.

Invariants for a stream with very many subscriptions: they get a message in several parts, so that
other tasks can run in between. The next message begins when all subscriptions have the current
one. A subscription that ends meanwhile gets nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from millstream.runtime.extending import Tasks, show_text
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.deliveries import Deliveries
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.starts import Starts
from millstream.streams.contracts.message import QueueMessage

from .stream_entry import AT_ONCE, StreamEntry, parts

__all__ = ["FanOut"]

log = logging.getLogger("millstream.subscribers")


class FanOut:
    """Gives messages of the cache to subscriptions.

    Args:
        progressed: called when all subscriptions may have finished a message.
    """

    __slots__ = ("_cache", "_deliveries", "_dispatch", "_progressed", "_tasks")

    def __init__(
        self,
        cache: QueueCache,
        deliveries: Deliveries,
        dispatch: Dispatch,
        tasks: Tasks,
        progressed: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._deliveries, self._dispatch = deliveries, dispatch
        self._tasks = tasks
        self._progressed = progressed

    def offer(self, entry: StreamEntry, slot: Slot) -> None:
        """Give a message to all subscriptions of its stream."""
        message = slot.message
        if entry.starts is not None:
            self._begin(entry, entry.starts, message)
        if entry.spread:
            entry.spread.append(slot)  # after the messages that are still being given
            return
        if len(entry.subscribers) > AT_ONCE:
            waiting = entry.spread = deque([slot])
            entry.spreading = self._tasks.start(self._spread(entry, waiting))
            return
        if not entry.subscribers:
            self._cache.unheard_count += len(message.items)
            self._cache.unheard[message.stream] = message.token.era
        if message.attempt and self._cache.gives_back:
            slot.goes_back = len(entry.subscribers) == 1
        for subscriber in entry.subscribers.values():
            self._deliveries.offer(subscriber, slot)
        self._cache.release(slot)

    def offer_cold(self, entry: StreamEntry) -> None:
        """Give the messages that waited for the subscriptions; the stream is no longer cold."""
        cold, entry.cold = entry.cold or [], None
        for slot in cold:
            self.offer(entry, slot)

    def _begin(self, entry: StreamEntry, starts: Starts, message: QueueMessage) -> None:
        """Let subscriptions begin here that waited for a token after the end of the queue."""
        for subscription, start in starts.came(message):
            subscriber = entry.subscribers.get(subscription)
            if subscriber is not None:
                text = (
                    "subscription %s should begin at %s, but the queue continues at %s; the "
                    "subscription begins there"
                )
                log.warning(text, show_text(subscription), start, message.token)
                self._deliveries.move(subscriber, before(message.token))

    async def _spread(self, entry: StreamEntry, waiting: deque[Slot]) -> None:
        """Give the waiting messages to all subscriptions, until none is left or they are
        unpinned."""
        while waiting:
            slot = waiting[0]
            for part in parts(list(entry.subscribers.values()), AT_ONCE):
                for subscriber in part:
                    if entry.subscribers.get(subscriber.id) is subscriber:
                        self._deliveries.offer(subscriber, slot)
                self._dispatch.pump()
                await asyncio.sleep(0)
                if entry.spread is not waiting:
                    return  # the messages were unpinned
            waiting.popleft()
            self._cache.release(slot)
        entry.spread = None
        self._progressed()
