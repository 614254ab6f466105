"""Putting items into a topic.

This module owns `MemoryProducer`. A refused item changes nothing, not even the turn of the round
robin. A batch of at most the capacity enters as a whole or not at all. A larger batch waits for
room slice by slice, and a cancellation leaves the slices that have entered.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from millstream.providers.memory.gate import CapacityGate
from millstream.providers.memory.partition import Partition
from millstream.runtime import QueueFull, QueueUnavailable

from .errors import TopicClosed
from .options import TopicOptions
from .routing import partition_of_key

__all__ = ["MemoryProducer", "Shelves"]

log = logging.getLogger("millstream.buffer")

T = TypeVar("T")


class CompletedPut:
    """An awaitable that is already done: a put without a wait costs no coroutine and no frame."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, None]: ...

    else:
        __await__ = ().__iter__  # not bound to the object: it takes no argument


DONE = CompletedPut()


class Wait:
    """An awaitable that waits.

    It is no coroutine, as `CompletedPut` is none, so that `create_task` refuses both and a program
    notices at once. `asyncio.ensure_future` and `gather` accept both.
    """

    __slots__ = ("_coro",)

    def __init__(self, coro: Coroutine[Any, Any, None]) -> None:
        self._coro = coro

    def __await__(self) -> Generator[Any, None, None]:
        return self._coro.__await__()


class Shelves(Protocol[T]):
    """The target of a producer: a topic."""

    partitions: list[Partition[T]]
    waiting: list[dict[Any, None]]

    @property
    def gate(self) -> CapacityGate | None: ...
    @property
    def options(self) -> TopicOptions: ...
    def require_open(self) -> None: ...
    def note_blocked(self) -> None: ...
    def wake(self, at: int, /) -> None: ...


class MemoryProducer(Generic[T]):
    """Puts items into one topic.

    `MemoryTopic.producer` returns it, and any number of tasks may share it. Without `key`, items go
    to the partitions round robin. An item costs about 0.3 µs, less in batches. It implements the
    `BufferProducer` Protocol of `millstream.streams`.
    """

    __slots__ = ("_count", "_is_free", "_partitions", "_put_count", "_topic", "_waiting")

    def __init__(self, topic: Shelves[T]) -> None:
        self._topic = topic
        self._partitions = topic.partitions
        self._waiting = topic.waiting
        self._count = topic.options.partitions
        self._is_free = topic.options.capacity is None and topic.options.key is None
        self._put_count = 0  # decides the partition of the next item without a key

    def produce(self, item: T, /) -> Awaitable[None]:
        """Put one item.

        If there is room, the item is in the topic before the call returns. Otherwise the call
        waits, in order of arrival, when it is awaited. The result is an awaitable, but not a
        coroutine: `asyncio.ensure_future` and `gather` accept it, `create_task` does not.

        Args:
            item: The item.

        Raises:
            QueueFull: The topic is full and has `full_mode="fail"`.
            TopicClosed: The topic is closed, or was closed during the wait.
            Overloaded: 10,000 other requests wait for room already.
            TypeError: The topic's `key` returned something other than text.
        """
        if not self._is_free:
            return self._produce(item)
        at = self._put_count % self._count
        self._put_count += 1
        self._partitions[at].append(item)
        if self._waiting[at]:
            self._topic.wake(at)
        return DONE

    def close(self) -> None:
        """Refuse every later put; the topic calls it."""
        self._is_free = False

    def _produce(self, item: T) -> Awaitable[None]:
        """Put one item if the topic has a key or a capacity, or is closed."""
        topic, gate = self._topic, self._topic.gate
        topic.require_open()
        key = self._key(item)
        if gate is None or gate.try_acquire(1):
            self._put(item, key)
            return DONE
        if topic.options.full_mode == "fail":
            raise self._full(1)
        return Wait(self._wait_and_put(gate, item, key))

    async def _wait_and_put(self, gate: CapacityGate, item: T, key: int | None) -> None:
        await self._room(gate, 1, 0)
        self._put(item, key)

    async def _room(self, gate: CapacityGate, count: int, accepted: int) -> None:
        """Wait for room. Raises TopicClosed with the number of items that entered before."""
        self._topic.note_blocked()
        try:
            await gate.acquire(count)
        except QueueUnavailable as error:
            closed = TopicClosed(f"{error}: {accepted} items were accepted, the others were not")
            closed.accepted_events = accepted
            raise closed from None

    def put_at_the_end(self, item: T) -> None:
        """Put an item that was accepted before the close, whether there is room or not."""
        try:
            self._put(item, self._key(item))
        except Exception:  # raised by the user's `key`
            log.exception(
                "%r: the key function failed for an item from another thread; the item is dropped",
                self._topic,
            )

    def try_produce(self, item: T, /) -> bool:
        """Put one item now, or not at all; never wait.

        Args:
            item: The item.

        Returns:
            False if there is no room.

        Raises:
            TopicClosed: The topic is closed.
        """
        topic, gate = self._topic, self._topic.gate
        topic.require_open()
        key = self._key(item)
        if gate is not None and not gate.try_acquire(1):
            return False
        self._put(item, key)
        return True

    def produce_many(self, items: Iterable[T], /) -> Awaitable[None]:
        """Put items, in order within each partition.

        Up to `capacity` items enter as a whole or not at all. A larger batch enters in slices, each
        as soon as there is room. With `full_mode="fail"` a larger batch is refused. If the `key`
        function raises, no item has entered.

        Args:
            items: The items. An iterable other than a list or tuple is read at once.

        Raises:
            QueueFull: The topic has `full_mode="fail"` and no room for the batch.
            TopicClosed: The topic is closed, or was closed during the wait. `accepted_events` has
                the number of items that entered.
            Overloaded: 10,000 other requests wait for room already.
        """
        topic, gate = self._topic, self._topic.gate
        topic.require_open()
        batch = items if isinstance(items, list | tuple) else list(items)
        if gate is None:
            self._put_many(batch, self._keys(batch))
            return DONE
        if topic.options.full_mode == "fail" and len(batch) > gate.capacity:
            raise self._full(len(batch))
        if len(batch) <= gate.capacity:
            keys = self._keys(batch)
            if gate.try_acquire(len(batch)):
                self._put_many(batch, keys)
                return DONE
        if topic.options.full_mode == "fail":
            raise self._full(len(batch))
        return Wait(self._wait_and_put_many(gate, batch))

    async def _wait_and_put_many(self, gate: CapacityGate, batch: Sequence[T]) -> None:
        keys = self._keys(batch)
        for start in range(0, len(batch), gate.capacity):
            part = batch[start : start + gate.capacity]
            await self._room(gate, len(part), start)
            self._put_many(part, None if keys is None else keys[start : start + gate.capacity])

    def _full(self, count: int) -> QueueFull:
        capacity = self._topic.options.capacity
        return QueueFull(
            f"{self._topic!r} has no room for {count} items: capacity is {capacity}, and its "
            "slowest group has not committed enough; commit, or use full_mode='wait'"
        )

    def _key(self, item: T) -> int | None:
        key = self._topic.options.key
        return None if key is None else partition_of_key(key(item), self._count)

    def _keys(self, batch: Sequence[T]) -> list[int] | None:
        key, count = self._topic.options.key, self._count
        return None if key is None else [partition_of_key(key(item), count) for item in batch]

    def _put(self, item: T, key: int | None) -> None:
        at = key
        if at is None:
            at = self._put_count % self._count
            self._put_count += 1
        self._partitions[at].append(item)
        if self._waiting[at]:
            self._topic.wake(at)

    def _put_many(self, batch: Sequence[T], keys: Sequence[int] | None) -> None:
        """Fill one partition after the other, each in the order of its items."""
        if keys is None:
            first, count = self._put_count, self._count
            self._put_count += len(batch)
            for at in range(min(count, len(batch))):
                self._extend((first + at) % count, batch[at::count] if count > 1 else batch)
            return
        shares: dict[int, list[T]] = {}
        for key, item in zip(keys, batch, strict=True):
            shares.setdefault(key, []).append(item)
        for key, share in shares.items():
            self._extend(key, share)

    def _extend(self, at: int, share: Sequence[T]) -> None:
        self._partitions[at].extend(share)
        if self._waiting[at]:
            self._topic.wake(at)
