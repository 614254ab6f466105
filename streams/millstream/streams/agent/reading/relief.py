"""Which stream holds up its queue, so that its slowest subscription is to fall behind.

Owns: `Relief`. Not: which subscription that is (`subscribers`). Pure. Invariant: a queue is held up
for `RELIEVE_AFTER_S` by one message before any subscription falls behind because of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache

from .steps import Relieve

__all__ = ["RELIEVE_AFTER_S", "SPAN_MAX", "Relief"]

SPAN_MAX = 10_000  # messages from the oldest that is not done on, before who holds it falls behind
RELIEVE_AFTER_S = 1.0  # for a subscription to move that holds up its queue


class Relief:
    """Decides which streams are to be relieved, in a queue that can be read again.

    Attributes:
        at_s: when the queue is held up for too long; infinite: it is not held up.
        is_long: many messages follow the oldest that is not done.
    """

    __slots__ = ("_cache", "_held_up_at", "at_s", "is_long")

    def __init__(self, cache: QueueCache) -> None:
        self._cache = cache
        self._held_up_at: int  # the oldest message, while `at_s` is finite
        self.at_s = math.inf
        self.is_long = False

    def on_appended(self, slots: Sequence[Slot]) -> list[Relieve]:
        """These messages were appended: the streams that have too much of the cache now."""
        cache = self._cache
        self.is_long = cache.span > SPAN_MAX
        if not cache.is_half_full:
            return []
        streams = dict.fromkeys(slot.message.stream for slot in slots)
        return [Relieve(stream) for stream in streams if cache.is_crowded(stream)]

    def ask(self, now_s: float, is_reading: bool, has_waiting: bool) -> list[Relieve]:
        """The stream that has held up the queue for too long, if any.

        While the queue is read this is to be called only if `is_long`, or `at_s` is finite.

        Args:
            is_reading: a read is out, or none is wanted.
            has_waiting: a message was read that has no room.
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
