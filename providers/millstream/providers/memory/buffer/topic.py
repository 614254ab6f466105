"""One topic in memory: its partitions, its capacity, and the consumers that wait for items.

This module owns `MemoryTopic`. `producer` puts items, `consumer` takes them, and `partition` stores
them. Invariants:

- One event loop owns a topic, and nothing awaits between a check and its effect.
- At most `capacity` items are accepted and not yet committed by every group.
- A waiting consumer is woken by the first item of one of its partitions.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from millstream.providers.memory.gate import CapacityGate
from millstream.providers.memory.partition import Partition, PartitionOptions
from millstream.runtime import ConfigError
from millstream.runtime.extending import check_kind, check_text
from millstream.streams.contracts.buffer import AutoCommit

from .consumer import MemoryConsumer, Wakeable
from .errors import TopicClosed
from .handover import Handover
from .options import GroupOptions, TopicOptions
from .producer import MemoryProducer
from .push import Handler, ManualHandler, PushGroup, Retries
from .routing import deal

__all__ = ["MemoryTopic"]

log = logging.getLogger("millstream.buffer")

T = TypeVar("T")


class MemoryTopic(Generic[T]):
    """Items of one type under one name; `MemoryBufferQueue.topic` creates it.

    Producers put items into its partitions. Each group receives every item, at its own pace, and
    its consumers share the partitions in even ranges. Items of one partition keep their order. One
    event loop owns the topic; only `produce_threadsafe` may be called from other threads. It
    implements the `BufferTopic` Protocol of `millstream.streams`.
    """

    def __init__(self, name: str, item: type[T], options: TopicOptions) -> None:
        self._name = name
        self.item = item
        self.options = options
        capacity = options.capacity
        self.gate = None if capacity is None else CapacityGate(capacity)
        stored = PartitionOptions(
            options.segment_size,
            options.spare_max,
            "drop_oldest" if options.on_no_group == "drop_oldest" else "retain",
        )
        freed = None if self.gate is None else self._on_freed
        self.partitions: list[Partition[T]] = [
            Partition(stored, freed=freed) for _ in range(options.partitions)
        ]
        self.waiting: list[dict[Wakeable, None]] = [{} for _ in self.partitions]
        self.is_closed = False
        self._was_blocked = False
        self._groups: dict[str, Sequence[MemoryConsumer[T]]] = {}
        self._producer = MemoryProducer(self)
        self._handover = Handover(self._producer, options.handover_max, repr(self))

    def __repr__(self) -> str:
        return f"topic {self._name!r} of {self.item.__qualname__}"

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._name

    @property
    def groups(self) -> Sequence[str]:
        """The names of the groups."""
        return tuple(self._groups)

    # -- producing

    def producer(self) -> MemoryProducer[T]:
        """Return the producer of the topic. All callers share it."""
        return self._producer

    def produce_threadsafe(self, item: T) -> None:
        """Put an item from any thread.

        The item enters when the topic's loop runs the next time, or as soon as the topic has room.
        A burst of items wakes the loop once, and items of one thread keep their order. First create
        a consumer in the topic's loop, so that the topic knows its loop. Items that were accepted
        before `close()` are in the topic.

        Args:
            item: The item.

        Raises:
            QueueFull: `handover_max` items from other threads wait already.
            TopicClosed: The topic is closed.
            ConfigError: The topic does not know its loop yet, because it never had a consumer.
        """
        self._handover.put(item)

    def require_open(self) -> None:
        """Raise TopicClosed if the topic is closed."""
        if self.is_closed:
            raise TopicClosed(f"{self!r} is closed and accepts no more items")

    def note_blocked(self) -> None:
        """Log a warning if a producer is about to wait and no group could ever make room."""
        if not self._groups and self.gate is not None and not self._was_blocked:
            self._was_blocked = True
            log.warning(
                "%r is full (%d items) and has no group, so its producers wait for a group",
                self,
                self.gate.capacity,
            )

    # -- consuming

    def consumers(
        self,
        group: str,
        count: int = 1,
        *,
        batch_size: int = 100,
        auto_commit: AutoCommit = False,
        start: str = "earliest",
    ) -> list[MemoryConsumer[T]]:
        """Create all consumers of a new group; their number cannot change later.

        Args:
            group: The name of the group, not empty.
            count: The number of consumers, from 1 to the number of partitions.
            batch_size: The most items of a batch, at least 1.
            auto_commit: When a batch is committed. With False, the consumer calls `commit()`, and a
                failed batch is delivered again (at least once). With `"after"`, the batch is
                committed when the next one is requested (at least once). With True, it is committed
                before it is delivered, so a failure loses it (at most once).
            start: `"earliest"` begins with the oldest item that the topic still keeps; `"latest"`
                with the next item.

        Returns:
            The consumers, each with a contiguous range of partitions.

        Raises:
            ConfigError: The group exists, or an argument is not valid.
        """
        options = GroupOptions(batch_size, auto_commit)
        check_text("the name of a group", group)
        if not group:
            raise ConfigError(f"{self!r}: the name of a group is empty")
        if group in self._groups:
            raise ConfigError(f"{self!r}: group {group!r} exists, and its consumers cannot change")
        if isinstance(count, bool) or not isinstance(count, int):
            raise ConfigError(f"{self!r}: count is {count!r}, it must be a whole number")
        if not 1 <= count <= len(self.partitions):
            raise ConfigError(
                f"{self!r}: {count} consumers for {len(self.partitions)} partitions: each "
                "consumer needs at least one"
            )
        if start not in ("earliest", "latest"):
            raise ConfigError(f"start is {start!r}: write 'earliest' or 'latest'")
        for partition in self.partitions:
            partition.register(group, "latest" if start == "latest" else "earliest")
        self._handover.bind()
        made = [
            MemoryConsumer(self, group, part, options) for part in deal(len(self.partitions), count)
        ]
        self._groups[group] = made
        return made

    def remove_group(self, group: str) -> None:
        """Remove a group and its progress; the loops of its consumers end.

        Args:
            group: The name of the group. An unknown name has no effect.
        """
        for consumer in self._groups.pop(group, ()):
            consumer.end()
        for partition in self.partitions:
            if group in partition.groups:
                partition.unregister(group)

    def subscribe(
        self,
        group: str,
        handler: Handler[T] | ManualHandler[T],
        *,
        concurrency: int = 1,
        batch_size: int = 100,
        commit: str = "auto",
        retries: Retries | None = None,
        start: str = "earliest",
    ) -> PushGroup[T]:
        """Push the batches of a new group to a handler; call it in the topic's loop.

        `await group.stop()` ends the group. Failed batches are retried as `retries` says.

        Args:
            group: The name of the new group.
            handler: An async function `handler(batch)`; the batch is committed after it. With
                `commit="manual"`, an async function `handler(batch, commit)` that calls
                `commit(count)`.
            concurrency: How many batches are processed at a time, from 1 to the number of
                partitions.
            batch_size: The most items of a batch, at least 1.
            commit: `"auto"` or `"manual"`.
            retries: Attempts, back-off, and what follows. Default: no limit of attempts, with a
                back-off.
            start: As for `consumers`.

        Returns:
            The group, which runs until it stops.

        Raises:
            ConfigError: The group exists, or an argument is not valid.
        """
        check_kind("subscribe(retries=...)", Retries() if retries is None else retries, Retries)
        call = getattr(type(handler), "__call__", None)  # noqa: B004 - of an object, as of a function
        if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)):
            raise ConfigError(f"{self!r}: subscribe({handler!r}): give an async function")
        if commit not in ("auto", "manual"):
            raise ConfigError(f"commit is {commit!r}: write 'auto' or 'manual'")
        made = self.consumers(group, concurrency, batch_size=batch_size, start=start)
        return PushGroup(repr(self), made, handler, commit == "manual", retries or Retries())

    # -- life

    def _on_freed(self, count: int) -> None:
        """Release the capacity of items. Items that entered at the close had none."""
        gate = self.gate
        if gate is not None:
            gate.release(min(count, gate.capacity - gate.free))

    def wake(self, at: int) -> None:
        """Wake the waiting consumers of a partition, because an item arrived."""
        for consumer in list(self.waiting[at]):
            consumer.wake(at)

    def close(self) -> None:
        """Accept no more items.

        Waiting producers fail with `TopicClosed`. Consumers end after the remaining items. A second
        call has no effect.
        """
        if self.is_closed:
            return
        for item in self._handover.close():
            self._producer.put_at_the_end(item)
        self.is_closed = True
        self._producer.close()
        if self.gate is not None:
            self.gate.close(f"{self!r} was closed")
        for at in range(len(self.partitions)):
            self.wake(at)

    # -- figures

    def depth(self, group: str) -> list[int]:
        """Return the number of items that a group has not committed, by partition.

        Args:
            group: The name of the group.

        Raises:
            StreamError: There is no such group.
        """
        return [partition.depth(group) for partition in self.partitions]

    def figures(self) -> dict[str, Any]:
        """Return figures for people and tools. Cost: O(segments).

        Returns:
            `depth` (uncommitted items by group), `segments` and `spares` (arrays in use and kept
            for reuse), `producers_waiting`, and `batches_again` (batches delivered more than once,
            by group).
        """
        return {
            "depth": {group: sum(self.depth(group)) for group in self._groups},
            "segments": sum(partition.segment_count for partition in self.partitions),
            "spares": sum(partition.spare_count for partition in self.partitions),
            "producers_waiting": 0 if self.gate is None else self.gate.waiting,
            "batches_again": {
                group: sum(consumer.again_count for consumer in consumers)
                for group, consumers in self._groups.items()
            },
        }
