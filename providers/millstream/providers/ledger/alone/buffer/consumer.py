"""Taking batches of a durable topic for a group.

Owns: `LedgerBufferConsumer`, the turns of its partitions, and the batches that are given and not
committed. Invariants: one loop runs at a time. A batch is of one partition and never changes. A
partition with an uncommitted batch gives that batch again; other partitions continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

from millstream.providers.ledger.alone.first_done import first_of
from millstream.providers.ledger.alone.message import LedgerMessage
from millstream.providers.ledger.alone.subscription import LedgerSubscription
from millstream.runtime import StreamError
from millstream.runtime.extending import Codec
from millstream.streams import AutoCommit

__all__ = ["LedgerBatchSource", "LedgerBufferConsumer", "Started"]

T = TypeVar("T")


class Started:
    """An awaitable that is not a coroutine, as other buffers return it. The work starts when it is
    awaited."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, None, None]:
        return self._make().__await__()


class LedgerBatchSource(Protocol[T]):
    """The topic of a consumer, as the consumer needs it."""

    codec: Codec[T]

    @property
    def is_complete(self) -> bool: ...
    async def subscription(self, group: str, /) -> LedgerSubscription: ...
    async def ending(self) -> None: ...


class LedgerBufferConsumer(Generic[T]):
    """One consumer of a group (`BufferConsumer`): `async for batch in consumer`.

    A batch is a list of items of one partition, in order. The partitions take turns. A partition
    with an uncommitted batch gives the same batch again at its next turn. Only one loop may run at
    a time.
    """

    def __init__(
        self,
        topic: LedgerBatchSource[T],
        group: str,
        partitions: range,
        batch_size: int,
        auto_commit: AutoCommit,
    ) -> None:
        self._topic = topic
        self._group = group
        self._mine = tuple(partitions)
        self._batch_size = batch_size
        self._auto_commit = auto_commit
        self._turn = 0
        self._subscription: LedgerSubscription | None = None
        self._out: dict[int, list[LedgerMessage]] = {}  # by partition, given and not committed
        self._given: int | None = None  # the partition of the batch that was given last
        self._is_asked = False
        self._loop: ReferenceType[LedgerBatches[T]] | None = None

    def __repr__(self) -> str:
        ends = f"{self._mine[0]} to {self._mine[-1]}"
        return f"consumer of group {self._group!r} for partitions {ends} of {self._topic!r}"

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._group

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions that this consumer takes from."""
        return self._mine

    def __aiter__(self) -> LedgerBatches[T]:
        """Begin a loop.

        Raises:
            StreamError: another loop still runs.
        """
        running = None if self._loop is None else self._loop()
        if running is not None and not running.is_over:
            text = f"{self!r} is already in a loop"
            raise StreamError(f"{text}: leave it first, or create the group with more consumers")
        if self._auto_commit == "after":
            self._given = None  # the previous loop may have ended in the middle of its batch
        batches = LedgerBatches(self)
        self._loop = ref(batches)
        return batches

    async def next_batch(self) -> list[T] | None:
        """Wait for the next batch and return it. Loops call it.

        Returns:
            The items of one partition, in order; None: the topic is closed and has no more items.

        Raises:
            StreamError: another call is waiting for a batch.
            MillstreamError: as `LedgerSubscription.batch`.
        """
        if self._is_asked:
            raise StreamError(f"{self!r}: another task already waits for a batch")
        self._is_asked = True
        try:
            if self._auto_commit == "after" and self._given is not None:
                await self._finish(None)
            return await self._next()
        finally:
            self._is_asked = False

    async def _next(self) -> list[T] | None:
        subscription = await self._open()
        while True:
            is_complete = self._topic.is_complete
            batch = await self._pull(subscription)
            if batch:
                return [self._topic.codec.decode(message.value) for message in batch]
            if is_complete:
                return None
            await first_of([subscription.more(self._mine), self._topic.ending()])

    async def _open(self) -> LedgerSubscription:
        if self._subscription is None:
            self._subscription = await self._topic.subscription(self._group)
        return self._subscription

    async def _pull(self, subscription: LedgerSubscription) -> list[LedgerMessage]:
        """Return a batch of the first partition that has one, from the next in turn on."""
        self._given = None
        for _ in self._mine:
            at = self._mine[self._turn]
            self._turn = (self._turn + 1) % len(self._mine)
            batch = self._out.get(at)
            if not batch:
                batch = await subscription.batch(self._batch_size, partitions=[at])
            if batch and self._auto_commit is True:
                subscription.acknowledge_upto(batch[-1])
            elif batch:
                self._out[at], self._given = batch, at
            if batch:
                return batch
        return []

    def commit(self, count: int | None = None, /) -> Awaitable[None]:
        """Commit the last batch, or its first items.

        Args:
            count: the number of items to commit; None: all. The rest of the batch is given again.

        Returns:
            An awaitable, which ends when the commit is stored. The commit itself is made at once.

        Raises:
            StreamError: no batch was given since the last commit, or the consumer commits by itself
                (`auto_commit=True`).
            ValueError: `count` is not between 1 and the size of the batch.
        """
        if self._auto_commit is True:
            raise StreamError(f"{self!r} commits by itself (auto_commit=True)")
        if self._given is None:
            raise StreamError(f"{self!r} has no uncommitted batch")
        size = len(self._out[self._given])
        if count is not None and not 1 <= count <= size:
            raise ValueError(f"count is {count}, but the batch has {size} items")
        self._acknowledge(count)
        return Started(self._flush)

    async def _finish(self, count: int | None) -> None:
        self._acknowledge(count)
        await self._flush()

    def _acknowledge(self, count: int | None) -> None:
        at, self._given = self._given, None
        assert at is not None and self._subscription is not None
        batch = self._out.pop(at)
        done = len(batch) if count is None else count
        self._subscription.acknowledge_upto(batch[done - 1])
        if done < len(batch):
            self._out[at] = batch[done:]

    async def _flush(self) -> None:
        assert self._subscription is not None
        await self._subscription.flush()


class LedgerBatches(Generic[T]):
    """One loop over a consumer."""

    __slots__ = ("__weakref__", "_consumer", "is_over")

    def __init__(self, consumer: LedgerBufferConsumer[T]) -> None:
        self._consumer = consumer
        self.is_over = False

    def __aiter__(self) -> LedgerBatches[T]:
        return self

    async def __anext__(self) -> list[T]:
        try:
            batch = await self._consumer.next_batch()
        except BaseException:
            self.is_over = True  # its caller may continue, unless another loop has begun
            raise
        if batch is None:
            self.is_over = True
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Leave the loop."""
        self.is_over = True
