"""The event of a queue at each number, as a pure calculation.

This module owns `QueueSequence`. Numbers begin at 1. In each round every stream of the queue has
one event, in an order that depends on seed, queue and round. So the events of a stream appear in
the order of their numbers, and any event is found without computing earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import xxhash

from millstream.streams.contracts.identity import QueueId, StreamId

__all__ = ["QueueSequence"]

HALF = 1 << 64


class QueueSequence:
    """The events of one queue. Cost: O(1) per event, and memory only for the names of streams."""

    __slots__ = ("_events_per_stream", "_name", "_order", "streams")

    def __init__(
        self,
        seed: int,
        queue: QueueId,
        streams: Iterable[StreamId],
        events_per_stream: int | None,
    ) -> None:
        self.streams = tuple(sorted(streams))
        self._events_per_stream = events_per_stream
        self._name = f"{seed}\0{queue}"
        self._order = (-1, 1, 0)  # of the last requested round: round, step, first stream

    @property
    def count(self) -> int:
        """The number of events of the queue; of an endless sequence, the highest number."""
        rounds = self._events_per_stream
        return (
            (1 << 64) - 1 if rounds is None and self.streams else (rounds or 0) * len(self.streams)
        )

    def has(self, seq: int) -> bool:
        """Whether the queue has an event of this number."""
        if not self.streams or seq < 1:
            return False
        rounds = self._events_per_stream
        return rounds is None or seq <= rounds * len(self.streams)

    def at(self, seq: int) -> tuple[StreamId, int]:
        """Return the stream of an event of the queue, and its number in the stream, from 0."""
        assert self.has(seq), f"the queue has no event {seq}"
        number, within = divmod(seq - 1, len(self.streams))
        if self._order[0] != number:
            self._order = (number, *self._shuffle(number))
        _, step, first = self._order
        return self.streams[(first + step * within) % len(self.streams)], number

    def _shuffle(self, number: int) -> tuple[int, int]:
        """Return step and first stream of a round; a coprime step reaches every stream."""
        count = len(self.streams)
        name = f"{self._name}\0{number}"
        high, low = divmod(xxhash.xxh3_128_intdigest(name.encode()), HALF)
        step = high % count
        while math.gcd(step, count) != 1:
            step += 1
        return step, low % count

    def check(self) -> None:
        """Assert the invariants."""
        assert len(set(self.streams)) == len(self.streams)
        assert not self.streams or math.gcd(self._order[1], len(self.streams)) == 1
