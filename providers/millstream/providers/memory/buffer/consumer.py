"""Taking batches from the partitions of one consumer.

This module owns `MemoryConsumer`, the order in which it serves its partitions, and its wait.
`partition` owns the positions. Invariants:

- One loop iterates over a consumer at a time.
- A batch has items of one partition and never changes. Until a batch is committed, its
  partition delivers it again.
- A partition with items is served within as many batches as the consumer has partitions.
- A wait leaves nothing registered, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

from millstream.providers.memory.offset import Offset
from millstream.providers.memory.partition import NothingToCommit, Partition

from .errors import ConcurrentUse
from .options import GroupOptions
from .producer import DONE

__all__ = ["MemoryBatchSource", "MemoryConsumer", "Wakeable"]

T = TypeVar("T")
BATCHES_BEFORE_YIELD = 64  # then a consumer that always finds items lets other tasks run


class Wakeable(Protocol):
    """An object that waits for an item."""

    def wake(self, at: int, /) -> None: ...


class MemoryBatchSource(Protocol[T]):
    """The source of a consumer: a topic."""

    partitions: list[Partition[T]]
    waiting: list[dict[Any, None]]
    is_closed: bool


class MemoryConsumer(Generic[T]):
    """One consumer of a group: `async for batch in consumer`.

    `MemoryTopic.consumers` creates consumers. A batch is a list of items of one partition, at most
    `batch_size` of them. The loop waits while there are no items. It ends when the topic is closed
    and all items are delivered, or when the group is removed. An uncommitted batch is delivered
    again, while other partitions continue. A batch can be committed once, as a whole or in part.
    Only one loop may iterate over a consumer at a time; for more throughput, create more consumers.
    It implements the `BufferConsumer` Protocol of `millstream.streams`.
    """

    def __init__(
        self, topic: MemoryBatchSource[T], group: str, partitions: range, options: GroupOptions
    ) -> None:
        self._topic = topic
        self._group = group
        self._mine = tuple(partitions)
        self._batch_size = options.batch_size
        self._is_auto = options.auto_commit is True
        self._commits_after = options.auto_commit == "after"
        self._turn = 0  # index of the partition that is asked first
        self._given: int | None = None  # the partition of the last batch
        self._loop: ReferenceType[MemoryBatches[T]] | None = None
        self._wait: asyncio.Future[None] | None = None
        self._is_ended = False
        self._unbroken = 0
        self._last: dict[int, int] = {}  # by partition: the beginning of its last batch
        self.again_count = 0  # batches that were delivered more than once

    def __repr__(self) -> str:
        ends = f"{self._mine[0]} to {self._mine[-1]}"
        return f"consumer of group {self._group!r} for partitions {ends} of {self._topic!r}"

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._group

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions of this consumer."""
        return self._mine

    @property
    def given(self) -> tuple[int, int] | None:
        """Partition and first offset of the uncommitted batch, or None without one."""
        return None if self._given is None else (self._given, self._last[self._given])

    def offsets(self) -> dict[int, Offset]:
        """Return, by partition, the offset of the first item that the group has not committed."""
        partitions, group = self._topic.partitions, self._group
        return {at: Offset.of(partitions[at].find_committed(group)) for at in self._mine}

    # -- loop

    def __aiter__(self) -> MemoryBatches[T]:
        """Begin a loop over batches.

        Raises:
            ConcurrentUse: Another loop over this consumer is running.
        """
        running = None if self._loop is None else self._loop()
        if running is not None and not running.is_over:
            raise ConcurrentUse(
                f"{self!r} is already in a loop: leave it first, or create the group with "
                "more consumers"
            )
        if self._commits_after:
            self._given = None  # an earlier loop may have left in the middle of its batch
        batches = MemoryBatches(self)
        self._loop = ref(batches)
        return batches

    async def next_batch(self) -> list[T] | None:
        """Return the next batch, as soon as there is one; None at the end.

        Loops call this method. With `auto_commit="after"` it commits the previous batch.

        Raises:
            ConcurrentUse: Another task waits for a batch of this consumer.
        """
        if self._wait is not None:
            raise ConcurrentUse(f"{self!r} another task already waits for a batch")
        if self._commits_after and self._given is not None:
            self.commit()
        if self._unbroken >= BATCHES_BEFORE_YIELD:
            await self._yield()
        while True:
            if batch := self._pull():
                return batch
            if self._is_ended or self._topic.is_closed:
                return None
            await self._arrival()

    def _quick_batch(self) -> list[T] | None:
        """Return the next batch if it is available and needs no other work; else None."""
        if self._wait is not None or self._unbroken >= BATCHES_BEFORE_YIELD or self._commits_after:
            return None
        return self._pull()

    def _pull(self) -> list[T] | None:
        """Take a batch from the first partition that has items, beginning with the next in turn."""
        mine, group, size = self._mine, self._group, self._batch_size
        count, turn = len(mine), self._turn
        self._given = None
        for step in range(turn, turn + count if not self._is_ended else turn):
            at = mine[step % count]
            partition = self._topic.partitions[at]
            batch = partition.take(group, size) if self._is_auto else partition.pull(group, size)
            if batch:
                self._turn = (step + 1) % count
                self._unbroken += 1
                if not self._is_auto:
                    self._note_given(at, partition.find_committed(group))
                return batch
        return None

    def _note_given(self, at: int, start: int) -> None:
        """Record an uncommitted batch."""
        self._given = at
        self.again_count += self._last.get(at) == start
        self._last[at] = start

    async def _yield(self) -> None:
        """Let other tasks run."""
        self._unbroken = 0
        self._wait = asyncio.get_running_loop().create_future()  # refuses a second request
        try:
            await asyncio.sleep(0)
        finally:
            self._wait = None

    async def _arrival(self) -> None:
        """Wait until an item arrives in one of the partitions, or until the end."""
        self._unbroken = 0
        wait = self._wait = asyncio.get_running_loop().create_future()
        for at in self._mine:
            self._topic.waiting[at][self] = None
        try:
            await wait
        finally:
            self._wait = None
            for at in self._mine:
                self._topic.waiting[at].pop(self, None)

    def wake(self, at: int, /) -> None:
        """End the wait: an item arrived in this partition, which is asked first."""
        wait = self._wait
        if wait is not None and not wait.done():
            self._turn = self._mine.index(at)
            wait.set_result(None)
        for mine in self._mine:
            self._topic.waiting[mine].pop(self, None)

    def end(self) -> None:
        """End the loop of this consumer; the topic calls it when the group is removed or stops."""
        self._is_ended = True
        self.wake(self._mine[0])

    # -- progress

    def commit(self, count: int | None = None, /) -> Awaitable[None]:
        """Commit the last batch, or its first `count` items.

        The commit takes effect at the call. Await the result all the same, because a durable queue
        finishes later. The result is an awaitable, but not a coroutine.

        Args:
            count: How many items of the batch to commit. None: all.

        Raises:
            NothingToCommit: There was no batch since the last commit, or `auto_commit` is True.
            ValueError: The batch has fewer than `count` items.
        """
        if self._is_auto:
            raise NothingToCommit(f"{self!r} commits by itself (auto_commit=True)")
        if self._given is None:
            raise NothingToCommit(f"{self!r} has no uncommitted batch")
        partition = self._topic.partitions[self._given]
        upto = None if count is None else partition.find_committed(self._group) + count
        partition.commit(self._group, upto)
        self._given = None
        return DONE


class MemoryBatches(Generic[T]):
    """One loop over a consumer."""

    __slots__ = ("__weakref__", "_consumer", "is_over")

    def __init__(self, consumer: MemoryConsumer[T]) -> None:
        self._consumer = consumer
        self.is_over = False

    def __aiter__(self) -> MemoryBatches[T]:
        return self

    async def __anext__(self) -> list[T]:
        if batch := self._consumer._quick_batch():
            return batch
        try:
            batch = await self._consumer.next_batch()
        except BaseException:
            self.is_over = True  # may continue unless another loop begins
            raise
        if batch is None:
            self.is_over = True
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Leave the loop."""
        self.is_over = True
