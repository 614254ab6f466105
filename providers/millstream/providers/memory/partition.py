"""A partition: an append-only sequence of items in memory that groups read at their own pace.

This module owns `Partition`, `PartitionOptions`, `GroupProgress` and `NothingToCommit`. Waiting,
capacity (`gate`) and the choice of a partition belong to others. There is no I/O and no asyncio:
one owner uses a partition on one loop. Invariants:

- first <= committed <= end for each group, and `released` only grows.
- A group commits the appended items in order, except after `reset` or `drop_oldest`.
- A returned batch never changes.
- A segment is recycled, and an item is dropped, only after every group has committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from millstream.runtime import ConfigError, CursorTooOld, StreamError

from .segments import Chain, Segment

__all__ = ["GroupProgress", "NothingToCommit", "Partition", "PartitionOptions"]

T = TypeVar("T")


class NothingToCommit(StreamError):
    """`commit` was called without a batch to commit.

    Either the consumer received no batch since its last commit, or the consumer commits
    automatically (`auto_commit=True`). It is a `StreamError`.
    """


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """Slots of a segment, emptied arrays kept for reuse, and the behaviour without a group.

    `on_no_group`: "retain" keeps all items for a later group; "drop_oldest" keeps at most two
    segments.
    """

    segment_size: int = 1024
    spare_max: int = 1
    on_no_group: Literal["retain", "drop_oldest"] = "retain"

    def __post_init__(self) -> None:
        if self.segment_size < 1:
            raise ConfigError(f"segment_size is {self.segment_size}, it must be at least 1")
        if self.spare_max < 0:
            raise ConfigError(f"spare_max is {self.spare_max}, it must be at least 0")


class GroupProgress(Generic[T]):
    """The progress of one group."""

    __slots__ = ("committed", "pending", "segment")

    def __init__(self, segment: Segment[T], committed: int) -> None:
        self.segment = segment
        self.committed = committed
        self.pending: tuple[int, int] | None = None

    def advance(self) -> None:
        """Leave segments that are committed to their end and have a successor."""
        segment = self.segment
        while segment.next is not None and self.committed >= segment.end:
            segment = segment.next
        self.segment = segment


class Partition(Generic[T]):
    """Items at offsets `first` to `end`, in a chain of segments.

    Costs: append O(1) amortised, pull O(batch), commit O(groups). Memory is at most the largest lag
    plus `segment_size * (2 + spare_max)` slots after an append or a trim.
    `start` is the offset of the first item. A method that releases `count` more items ends with
    `freed(count)`. Items are released when every group has committed them, or when they are
    dropped.
    """

    def __init__(
        self,
        options: PartitionOptions | None = None,
        start: int = 0,
        freed: Callable[[int], None] | None = None,
    ) -> None:
        self._options = options or PartitionOptions()
        self._freed = freed
        self._chain = Chain[T](self._options.segment_size, self._options.spare_max, start)
        self._readers: dict[str, GroupProgress[T]] = {}
        self._released = start
        self._cleared = start  # items of the first segment below this offset are dropped

    @property
    def first(self) -> int:
        """The offset of the oldest stored item."""
        return max(self._chain.head.start, self._cleared)

    @property
    def end(self) -> int:
        """The offset that the next item gets."""
        return self._chain.tail.end

    @property
    def released(self) -> int:
        """Items below this offset need no capacity; a new group starts here at the earliest."""
        return self._released

    @property
    def groups(self) -> tuple[str, ...]:
        """The registered groups."""
        return tuple(self._readers)

    @property
    def segment_count(self) -> int:
        """How many segments are in the chain."""
        return len(self._chain)

    @property
    def spare_count(self) -> int:
        """How many emptied arrays wait for reuse."""
        return self._chain.spare_count

    def append(self, item: T) -> int:
        """Store an item and return its offset."""
        tail = self._chain.tail
        count = tail.count
        if count == tail.size:
            return self._append_grown(item)
        tail.slots[count] = item  # `tail.append`, without the cost of a call
        tail.count = count + 1
        return tail.start + count

    def _append_grown(self, item: T) -> int:
        self._grow()
        tail = self._chain.tail
        tail.append(item)
        self._release_to(self.first)
        return tail.end - 1

    def extend(self, items: Sequence[T]) -> int:
        """Store items in order; returns the offset after them. Costs a slice per segment."""
        at = 0
        while at < len(items):
            grows = self._chain.tail.is_full
            if grows:
                self._grow()
            tail = self._chain.tail
            part = items[at : at + tail.size - tail.count]
            tail.extend(part)
            at += len(part)
            if grows:
                self._release_to(self.first)
        return self.end

    def _grow(self) -> None:
        self._chain.grow(self._find_needed())

    def register(self, group: str, start: Literal["earliest", "latest"] = "earliest") -> None:
        """Add a group, which limits recycling from now on. Raises StreamError if it exists."""
        if group in self._readers:
            raise StreamError(f"group {group!r} is already registered")
        offset = self.end if start == "latest" else max(self.first, self._released)
        self._readers[group] = GroupProgress(self._chain.find(offset), offset)
        self._release()

    def unregister(self, group: str) -> None:
        """Remove a group and its progress."""
        self._reader(group)
        del self._readers[group]
        self._release()

    def pull(self, group: str, count: int) -> list[T]:
        """Return up to `count` items from the group's committed offset, in a new list; [] if none.

        A second pull before a commit reads from the same place, and `commit` refers to the last
        pull.
        """
        if count < 1:
            raise ValueError(f"count is {count}, it must be at least 1")
        reader = self._readers.get(group) or self._reader(group)
        low, tail = reader.committed, self._chain.tail
        high = min(low + count, tail.start + tail.count)
        if high <= low:
            return []
        reader.pending = (low, high)
        return self._copy(reader, low, high)

    def _copy(self, reader: GroupProgress[T], low: int, high: int) -> list[T]:
        segment = reader.segment
        if high <= segment.start + segment.count:  # all in one array: one slice suffices
            items: list[Any] = segment.slots[low - segment.start : high - segment.start]
            return items
        return self._chain.copy(segment, low, high)

    def take(self, group: str, count: int) -> list[T]:
        """Pull at most `count` items for a group, and commit them."""
        reader = self._readers.get(group) or self._reader(group)
        low, tail = reader.committed, self._chain.tail
        high = min(low + count, tail.start + tail.count)
        if high <= low:
            return []
        batch = self._copy(reader, low, high)
        self._move(reader, high)
        return batch

    def commit(self, group: str, upto: int | None = None) -> int:
        """Commit the last pull, or its items below `upto`; return the new offset.

        Raises NothingToCommit, and ValueError if `upto` is outside the pull; nothing changes then.
        """
        reader = self._readers.get(group) or self._reader(group)
        if reader.pending is None:
            raise NothingToCommit(
                f"group {group!r} has pulled nothing since its last commit, at {reader.committed}"
            )
        low, high = reader.pending
        offset = high if upto is None else upto
        if not low <= offset <= high:
            raise ValueError(f"upto is {offset}, but group {group!r} has pulled {low} to {high}")
        self._move(reader, offset)
        return offset

    def find_committed(self, group: str) -> int:
        """The offset of the first item that the group has not committed."""
        return self._reader(group).committed

    def depth(self, group: str) -> int:
        """How many items the group has not committed."""
        return self.end - self._reader(group).committed

    def reset(self, group: str, offset: int) -> None:
        """Move a group's committed offset to any stored offset, and forget its last pull.

        After a move back, `released` does not fall: `freed` is not called again for these items.
        Raises CursorTooOld (the item is no longer stored), ValueError (after the end).
        """
        reader = self._reader(group)
        self._refuse_outside(offset)
        reader.segment = self._chain.find(offset)
        self._move(reader, offset)

    def read_at(self, offset: int, count: int) -> list[T]:
        """Return up to `count` items from an offset, without a group; [] at the end.

        Raises CursorTooOld, ValueError.
        """
        tail = self._chain.tail
        low = offset - tail.start
        if count >= 0 and 0 <= low <= tail.count and offset >= self._cleared:  # the common case
            items: list[Any] = tail.slots[low : min(low + count, tail.count)]
            return items
        self._refuse_outside(offset)
        if count < 0:
            raise ValueError(f"count is {count}, it must be at least 0")
        return self._chain.copy(self._chain.find(offset), offset, min(offset + count, self.end))

    def let_go(self, offset: int) -> T | None:
        """Remove one item and return it; None if it was removed before. It then reads as None.

        Callers of this method store no None. Raises as `read_at` does.
        """
        self._refuse_outside(offset)
        if offset == self.end:
            raise ValueError(f"offset is {offset}, the end: no item is there")
        return self._chain.let_go(offset)

    def first_held(self, offset: int) -> int:
        """Return this offset, or a later one after items that are all removed.

        Costs a step per segment whose items are all removed. Raises as `read_at` does.
        """
        self._refuse_outside(offset)
        return self._chain.first_held(offset)

    def trim(self) -> None:
        """Drop every item that all groups have committed; it cannot be read again."""
        needed = self._find_needed()
        self._chain.recycle(needed)
        low = self.first
        if low < needed:
            self._chain.head.clear(low, needed)
            self._cleared = needed
        self._release_to(self.first)

    def _reader(self, group: str) -> GroupProgress[T]:
        reader = self._readers.get(group)
        if reader is None:
            raise StreamError(f"group {group!r} is not registered; the groups are {self.groups}")
        return reader

    def _refuse_outside(self, offset: int) -> None:
        if offset < self.first:
            raise CursorTooOld(f"offset is {offset}, but the oldest stored offset is {self.first}")
        if offset > self.end:
            raise ValueError(f"offset is {offset}, but the end is {self.end}")

    def _move(self, reader: GroupProgress[T], offset: int) -> None:
        was_last = reader.committed <= self._released  # otherwise another group limits the release
        reader.committed, reader.pending = offset, None
        segment = reader.segment
        if offset >= segment.start + segment.count:
            reader.advance()
        if was_last and len(self._readers) > 1:
            self._release()
        elif was_last:
            self._release_to(offset)

    def _release(self) -> None:
        if self._readers:
            self._release_to(min([reader.committed for reader in self._readers.values()]))

    def _release_to(self, offset: int) -> None:
        count = offset - self._released
        if count <= 0:
            return
        self._released = offset
        if self._freed is not None:
            self._freed(count)

    def _find_needed(self) -> int:
        if not self._readers:
            return self.first if self._options.on_no_group == "retain" else self.end
        # When a group commits to the end of the last segment, that segment has no successor yet.
        for reader in self._readers.values():
            reader.advance()
        return min(reader.committed for reader in self._readers.values())

    def check(self) -> None:
        """Assert the invariants. Costs O(stored)."""
        self._chain.check()
        assert self._released <= self.end
        assert self._cleared <= self._released
        held = {id(segment) for segment in self._chain}
        for reader in self._readers.values():
            assert id(reader.segment) in held
            assert reader.segment.start <= reader.committed <= reader.segment.end
            assert reader.pending is None or (
                reader.pending[0] == reader.committed < reader.pending[1] <= self.end
            )
