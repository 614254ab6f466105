"""Segments: fixed arrays of slots, linked into a chain that grows at one end.

This module owns `Segment` and `Chain`. `partition` owns the readers, and decides how far the chain
may be recycled. Invariants:

- Offsets are contiguous over the chain, and every segment but the last is full.
- Slots below `count` are stored, and those above are empty.
- A recycled segment has lost its array, so a reader that still points at it fails and does not read
  newer items.
- Full segments whose items are all removed share one empty array, so that one old item does not
  keep the slots after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

__all__ = ["Chain", "Segment", "Slots"]

T = TypeVar("T")

Slots = list[T | None]


@cache
def nothing(size: int) -> list[Any]:
    """Return an empty array of a size. All callers share it, and nobody writes to it."""
    return [None] * size


class Segment(Generic[T]):
    """An array with the items at offsets `start` to `end` (exclusive)."""

    __slots__ = ("count", "gone", "next", "size", "slots", "start")

    def __init__(self, start: int, slots: Slots[T]) -> None:
        self.slots: Slots[T] = slots  # the array; deleted when the segment is recycled
        self.size = len(slots)
        self.start = start
        self.count = 0
        self.gone = 0  # number of items that were removed singly
        self.next: Segment[T] | None = None

    @property
    def end(self) -> int:
        """The offset after the last stored item."""
        return self.start + self.count

    @property
    def is_full(self) -> bool:
        """Whether the next item needs another segment."""
        return self.count == self.size

    def append(self, item: T) -> None:
        """Store an item in the next slot, which must exist."""
        self.slots[self.count] = item
        self.count += 1

    def extend(self, items: Sequence[T]) -> None:
        """Store items in the next slots, which must suffice."""
        end = self.count + len(items)
        assert end <= self.size, f"{len(items)} items for {self.size - self.count} slots"
        self.slots[self.count : end] = items
        self.count = end

    def copy(self, low: int, high: int) -> list[T]:
        """Return the items at offsets low..high-1, in a new list."""
        assert self.start <= low <= high <= self.end, f"{low}..{high} is not in this segment"
        items: list[Any] = self.slots[low - self.start : high - self.start]
        return items

    def let_go(self, offset: int) -> T | None:
        """Remove one stored item and return it; None if it was removed before."""
        assert self.start <= offset < self.end, f"{offset} is not in this segment"
        item, self.slots[offset - self.start] = self.slots[offset - self.start], None
        self.gone += item is not None
        return item

    @property
    def is_hollow(self) -> bool:
        """Whether the segment is full and all its items are removed."""
        return self.gone == self.size

    def clear(self, low: int, high: int) -> None:
        """Drop the items at offsets low..high-1, which nobody reads again."""
        assert self.start <= low <= high <= self.end, f"{low}..{high} is not in this segment"
        for at in range(low - self.start, high - self.start):
            self.slots[at] = None

    def strip(self) -> Slots[T]:
        """Take the array away, emptied so that the items can be collected."""
        slots = self.slots
        slots[:] = [None] * len(slots)
        del self.slots
        return slots

    def check(self) -> None:
        """Assert the invariants."""
        assert 0 <= self.count <= len(self.slots)
        assert all(slot is None for slot in self.slots[self.count :])


class Chain(Generic[T]):
    """Segments of one size from `head` to `tail`, and up to `spare_max` emptied arrays."""

    def __init__(self, segment_size: int, spare_max: int, start: int) -> None:
        self._segment_size = segment_size
        self._spare_max = spare_max
        self._spares: list[Slots[T]] = []
        self._nothing: Slots[T] = nothing(segment_size)  # the shared array of hollow segments
        self.head: Segment[T] = Segment(start, [None] * segment_size)
        self.tail = self.head
        self._segments = [self.head]

    def __iter__(self) -> Iterator[Segment[T]]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def spare_count(self) -> int:
        """How many emptied arrays wait for reuse."""
        return len(self._spares)

    def grow(self, needed: int) -> None:
        """Add a segment after the full tail, in an array that ends at `needed` or below.

        All segments that end there are emptied.
        """
        assert self.tail.is_full, "only a full tail gets a successor"
        self._strip(needed)
        # The array that was emptied last is most likely still in the processor's cache.
        slots: Slots[T] = self._spares.pop() if self._spares else [None] * self._segment_size
        self._drop_spares()
        segment: Segment[T] = Segment(self.tail.end, slots)
        self.tail.next = segment
        self.tail = segment
        self._segments.append(segment)

    def recycle(self, needed: int) -> None:
        """Empty the segments that end at `needed` or below, except the tail."""
        self._strip(needed)
        self._drop_spares()

    def _strip(self, needed: int) -> None:
        count = 0
        while self.head.next is not None and self.head.end <= needed:
            self._reuse(self.head.strip())
            self.head = self.head.next
            count += 1
        del self._segments[:count]

    def _reuse(self, slots: Slots[T]) -> None:
        if slots is not self._nothing:
            self._spares.append(slots)

    def let_go(self, offset: int) -> T | None:
        """Remove one stored item and return it; None if it was removed before."""
        segment = self.find(offset)
        item = segment.let_go(offset)
        if segment.is_hollow and segment.slots is not self._nothing:
            self._reuse(segment.slots)
            segment.slots = self._nothing
            self._drop_spares()
        return item

    def _drop_spares(self) -> None:
        del self._spares[: max(0, len(self._spares) - self._spare_max)]

    def find(self, offset: int) -> Segment[T]:
        """Return the segment that has the offset; the tail for the end of the chain."""
        at = (offset - self.head.start) // self._segment_size
        return self._segments[min(at, len(self._segments) - 1)]

    def first_held(self, offset: int) -> int:
        """Return this offset, or the start of the next segment that is not hollow or the tail."""
        segment = self.find(offset)
        while segment.is_hollow and segment.next is not None:
            segment = segment.next
            offset = segment.start
        return offset

    def copy(self, segment: Segment[T], low: int, high: int) -> list[T]:
        """Return the items at offsets low..high-1; `segment` has the item at `low`."""
        items: list[T] = []
        while low < high:
            stop = min(high, segment.end)
            items += segment.copy(low, stop)
            low = stop
            if low < high:
                assert segment.next is not None, f"{high} is beyond the tail"
                segment = segment.next
        return items

    def check(self) -> None:
        """Assert the invariants. Costs O(stored)."""
        assert self._segments[0] is self.head and self._segments[-1] is self.tail
        assert all(slot is None for slot in self._nothing)
        for segment in self:
            segment.check()
            if segment.next is None:
                assert segment is self.tail
            else:
                assert segment.is_full and segment.end == segment.next.start
        assert len(self._spares) <= self._spare_max
        assert all(slot is None for slots in self._spares for slot in slots)
