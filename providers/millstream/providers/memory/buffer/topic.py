"""One topic in memory: its partitions, its room, and who waits for items.

Owns: `MemoryTopic`. Not: how items are put (`producer`) and taken (`consumer`), or how a partition
stores them (`partition`). Invariants: one event loop owns a topic, and nothing awaits between a
check and what follows from it; at most `capacity` items are accepted and not committed by every
group; a consumer that waits is woken by the first item of one of its partitions.
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
    """Items of one type under one name (`BufferTopic`)."""

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
        """The topic's name."""
        return self._name

    @property
    def groups(self) -> Sequence[str]:
        """The names of its groups."""
        return tuple(self._groups)

    # -- producing

    def producer(self) -> MemoryProducer[T]:
        """What puts items into the topic: one for all."""
        return self._producer

    def produce_threadsafe(self, item: T) -> None:
        """Put an item from any thread; it is in when the topic's loop comes to it.

        Raises QueueFull: `handover_max` items wait already. Only after the topic has been used in
        its loop (`producer()` awaited, a consumer made), so that it knows which loop that is.
        """
        self._handover.put(item)

    def require_open(self) -> None:
        """Raise TopicClosed after the end."""
        if self.is_closed:
            raise TopicClosed(f"{self!r} was closed: it takes no more items")

    def note_blocked(self) -> None:
        """A producer is about to wait: say so if nobody could ever make room."""
        if not self._groups and self.gate is not None and not self._was_blocked:
            self._was_blocked = True
            log.warning(
                "%r is full (%d items) and has no group, so its producers wait until there is one",
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
        """The consumers of a new group; their number cannot change.

        Args:
            count: 1 to the number of partitions.
            batch_size: the most items that a batch has.
            auto_commit: see `GroupOptions`.
            start: "earliest": what no group has let go of yet; "latest": what comes from now on.

        Raises ConfigError: the group exists, or an argument cannot work.
        """
        options = GroupOptions(batch_size, auto_commit)
        check_text("the name of a group", group)
        if not group:
            raise ConfigError(f"{self!r}: the name of a group is empty")
        if group in self._groups:
            raise ConfigError(f"{self!r}: group {group!r} exists, with all its consumers")
        if isinstance(count, bool) or not isinstance(count, int):
            raise ConfigError(f"{self!r}: count is {count!r}, it must be a whole number")
        if not 1 <= count <= len(self.partitions):
            raise ConfigError(
                f"{self!r}: {count} consumers for {len(self.partitions)} partitions: each "
                "consumer needs one at least"
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
        """Forget a group and its progress; its consumers' loops end."""
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
        """Let a handler have the batches of a new group, `concurrency` at a time.

        Args:
            handler: `async def handler(batch)`, after which the batch is committed; with
                commit="manual" `async def handler(batch, commit)`, which calls `commit(count)`.
            retries: how often, and what then; default: without end, with a back-off.

        Call it in the topic's loop; `await stop()` of the result ends it.
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
        """Items need no room any more; those that came at the end had none."""
        gate = self.gate
        if gate is not None:
            gate.release(min(count, gate.capacity - gate.free))

    def wake(self, at: int) -> None:
        """An item came into a partition: its waiting consumers go on."""
        for consumer in list(self.waiting[at]):
            consumer.wake(at)

    def close(self) -> None:
        """No more items: producers that wait fail, consumers end once they have had the rest."""
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
        """Items that a group has not committed, by partition. Raises StreamError: no such group."""
        return [partition.depth(group) for partition in self.partitions]

    def figures(self) -> dict[str, Any]:
        """What is held, for people and tools. Cost: O(segments)."""
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
