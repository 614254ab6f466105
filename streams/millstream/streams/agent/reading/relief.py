"""Finds the stream that delays its queue, so that its slowest subscription must lag. Pure.

`subscribers` chooses the subscription. Invariant: one message delays the queue for
`RELIEVE_AFTER_S` before a subscription lags because of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache

from .steps import Relieve

__all__ = ["RELIEVE_AFTER_S", "SPAN_MAX", "Relief"]

SPAN_MAX = 10_000  # messages since the oldest unfinished one; with more, its subscription lags
RELIEVE_AFTER_S = 1.0  # seconds for a subscription that delays its queue to make progress


class Relief:
    """Chooses the streams to relieve, in a queue that can be read again.

    Attributes:
        at_s: the time when the delay becomes too long; infinite: there is no delay.
        is_long: whether many messages follow the oldest unfinished one.
    """

    __slots__ = ("_cache", "_held_up_at", "at_s", "is_long")

    def __init__(self, cache: QueueCache) -> None:
        self._cache = cache
        self._held_up_at: int  # the oldest message, while `at_s` is finite
        self.at_s = math.inf
        self.is_long = False

    def on_appended(self, slots: Sequence[Slot]) -> list[Relieve]:
        """Handle appended messages; returns the streams that have too much of the cache."""
        cache = self._cache
        self.is_long = cache.span > SPAN_MAX
        if not cache.is_half_full:
            return []
        streams = dict.fromkeys(slot.message.stream for slot in slots)
        return [Relieve(stream) for stream in streams if cache.is_crowded(stream)]

    def ask(self, now_s: float, is_reading: bool, has_waiting: bool) -> list[Relieve]:
        """Return the stream that has delayed the queue for too long, if any.

        During reading, call this only if `is_long`, or `at_s` is finite.

        Args:
            is_reading: whether a read is in flight, or none is wanted.
            has_waiting: whether a message was read that has no room.
        """
        cache = self._cache
        self.is_long = cache.span > SPAN_MAX
        has_room = is_reading or (not has_waiting and any(cache.room()))
        if has_room and not self.is_long:
            self.at_s = math.inf
        elif self.at_s == math.inf or cache.base != self._held_up_at:
            self.at_s, self._held_up_at = now_s + RELIEVE_AFTER_S, cache.base
        elif now_s >= self.at_s:
            self.at_s = now_s + RELIEVE_AFTER_S
            stream = cache.oldest_stream
            return [] if stream is None else [Relieve(stream)]
        return []
