"""The messages of a queue that were read again, which the lagging cursors of a stream share. Pure.

Owns `RereadMessages`, and the limits of these messages. `cursor` knows which message a cursor
needs, and `reading.catch_up` reads them.

Invariants:

- A message leaves when no cursor pins it or an earlier message of its lane.
- These messages have at most half of the cache, except for the first one of each lane.
- A lane has every message of its stream from its head to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

from .lane import REREAD, Lane, Slot, chain
from .positions import BEGINNING, following
from .queue_cache import QueueCache

__all__ = ["RereadMessages"]


class RereadMessages:
    """The messages of one queue that were read again, in lanes by stream."""

    def __init__(self, cache: QueueCache) -> None:
        self._cache = cache
        self._lanes: dict[StreamId, list[Lane]] = {}

    def enter(
        self,
        stream: StreamId,
        start: Token,
        messages: Sequence[QueueMessage],
        end: Token,
        must: Token = BEGINNING,
    ) -> tuple[Slot | None, Token]:
        """Return the first message of a stream at or above `start`, pinned once, or None if there
        is none.

        Adds the messages in [start, end), as far as there is room. The messages up to `must` are
        added without room. So is the first one, if no other message is here for the caller. The
        second result is the token up to which everything is here.
        """
        lanes = self._lanes.get(stream, ())
        lane = next((one for one in lanes if one.begin <= start <= one.end), None)
        if lane is not None:
            self.extend(lane, messages, end, must)
            slot = next((one for one in chain(lane) if one.message.token >= start), None)
            if slot is not None:
                slot.holds += 1
                return slot, lane.end
        first = next((one for one in messages if start <= one.token < end and one.items), None)
        if first is None:
            return None, max(start, end)
        slot = Slot(first, REREAD, None)
        lane = slot.lane = Lane(slot, slot, begin=start, end=following(first.token))
        slot.holds = 1
        self._lanes.setdefault(stream, []).append(lane)
        self._count(lane, slot, 1)
        self.extend(lane, messages, end, must)
        return slot, lane.end

    def extend(
        self, lane: Lane, messages: Iterable[QueueMessage], end: Token, must: Token = BEGINNING
    ) -> None:
        """Add the messages of the stream in [lane.end, end), as far as there is room, and those up
        to `must` in any case."""
        for message in messages:
            if not lane.end <= message.token < end or not message.items:
                continue
            slot = Slot(message, REREAD, None)
            if message.token > must and not self._has_room(lane, slot):
                lane.end = message.token
                return
            slot.lane, lane.tail.next, lane.tail = lane, slot, slot
            self._count(lane, slot, 1)
        lane.end = max(lane.end, end)

    def _has_room(self, lane: Lane, slot: Slot) -> bool:
        cache, events, size_bytes = self._cache, slot.events, slot.size_bytes
        limits = cache.limits
        return (
            lane.events + events <= limits.stream_events_max
            and lane.size_bytes + size_bytes <= limits.stream_bytes_max
            and 2 * (cache.chained_events + events) <= limits.events_max
            and 2 * (cache.chained_bytes + size_bytes) <= limits.bytes_max
        )

    def release(self, slot: Slot) -> None:
        """Undo a pin. Amortised O(1)."""
        slot.holds -= 1
        assert slot.holds >= 0, f"{slot.message.token} is not held"
        lane = slot.lane
        if slot.holds or lane is None or lane.head is not slot:
            return
        leading: Slot | None = slot
        while leading is not None and not leading.holds:
            self._count(lane, leading, -1)
            self._cache.note_passed(leading.message)
            lane.begin = following(leading.message.token)
            leading = leading.next
        if leading is not None:
            lane.head = leading
            return
        lanes = self._lanes[slot.message.stream]
        lanes.remove(lane)
        if not lanes:
            del self._lanes[slot.message.stream]

    def _count(self, lane: Lane, slot: Slot, sign: int) -> None:
        events, size_bytes = sign * slot.events, sign * slot.size_bytes
        lane.events += events
        lane.size_bytes += size_bytes
        self._cache.chained_events += events
        self._cache.chained_bytes += size_bytes

    def lanes(self) -> Sequence[Lane]:
        """Return all lanes."""
        return [lane for lanes in self._lanes.values() for lane in lanes]

    def check(self) -> None:
        """Assert the invariants. Cost: O(messages)."""
        assert all(self._lanes.values())
        for lane in self.lanes():
            slots = list(chain(lane))
            tokens = [slot.message.token for slot in slots]
            assert lane.head.holds > 0 and tokens == sorted(set(tokens))
            assert lane.begin <= tokens[0] and tokens[-1] < lane.end
            assert lane.events == sum(slot.events for slot in slots)
            assert lane.size_bytes == sum(slot.size_bytes for slot in slots)
        assert self._cache.chained_events == sum(lane.events for lane in self.lanes())
        assert self._cache.chained_bytes == sum(lane.size_bytes for lane in self.lanes())
