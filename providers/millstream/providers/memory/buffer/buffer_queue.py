"""Topics in memory, by name and item type: a buffer between tasks of one program.

This module owns `MemoryBufferQueue`, and `topic` does the work of topics. The design follows
Mocha's MemoryBufferQueue. Topics differ if their names or their item types differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_text
from millstream.streams.contracts.buffer import AutoCommit

from .consumer import MemoryConsumer
from .errors import UnknownTopic
from .options import FullMode, TopicOptions, WithoutGroup
from .topic import MemoryTopic

__all__ = ["MemoryBufferQueue"]

T = TypeVar("T")


class MemoryBufferQueue:
    """A buffer between producers and batch consumers of one program, without a silo.

    Use it between fast producers and consumers that work better in batches, such as a collector
    that writes hundreds of items at once. It needs only `asyncio`. A topic and its consumers belong
    to one event loop; only `MemoryTopic.produce_threadsafe` accepts items from other threads. Items
    are lost with the process. It implements the `BufferQueue` Protocol of `millstream.streams`;
    code for that Protocol also works with `LedgerBufferQueue`, whose items are durable.

    A topic is identified by its name and its item type: `topic("a", int)` and `topic("a", str)` are
    two topics. Each group of consumers receives every item of a topic, at its own pace.

    ```python
    spans = MemoryBufferQueue().topic("otlp-span", Span, partitions=2)
    consumers = spans.consumers("storage", 2, batch_size=100)
    await spans.producer().produce(Span("GET /", 12))
    async for batch in consumers[0]:
        await store(batch)
        await consumers[0].commit()
    ```
    """

    def __init__(self) -> None:
        self._topics: dict[tuple[str, type[Any]], MemoryTopic[Any]] = {}

    def topic(
        self,
        name: str,
        item: type[T],
        /,
        *,
        partitions: int = 1,
        segment_size: int = 1024,
        spare_max: int = 1,
        capacity: int | None = None,
        full_mode: FullMode = "wait",
        key: Callable[[T], str] | None = None,
        on_no_group: WithoutGroup = "retain",
        handover_max: int = 100_000,
    ) -> MemoryTopic[T]:
        """Create a topic. The arguments are those of `TopicOptions`.

        Args:
            name: The name of the topic, not empty.
            item: The class of the items.
            partitions: Independent sequences, at most 65,536. A group has at most as many
                consumers.
            segment_size: Slots of one array of a partition, at least 1.
            spare_max: Emptied arrays of a partition that are kept for reuse, at least 1.
            capacity: Items, over all partitions, that some group has not committed. None: no limit.
            full_mode: At the capacity, `"wait"` makes producers wait, and `"fail"` raises
                `QueueFull`.
            key: Returns the key of an item. Items of one key share a partition and keep their
                order. None: round robin.
            on_no_group: While the topic has no group, `"retain"` keeps all items, `"drop_oldest"`
                keeps at most two arrays of `segment_size` items in each partition, and `"block"`
                blocks producers at the capacity.
            handover_max: Items from other threads that wait for the topic's loop.

        Returns:
            The new topic.

        Raises:
            ConfigError: The topic exists, or an argument is not valid.
            TypeError: The name is not text.
        """
        check_text("the name of a topic", name)
        if not name:
            raise ConfigError("the name of a topic is empty")
        if not isinstance(item, type):
            raise ConfigError(f"topic {name!r}: item is {item!r}: give the class of the items")
        if (name, item) in self._topics:
            raise ConfigError(f"topic {name!r} of {item.__qualname__} exists: use find()")
        options = TopicOptions(
            partitions=partitions,
            segment_size=segment_size,
            spare_max=spare_max,
            capacity=capacity,
            full_mode=full_mode,
            key=key,
            on_no_group=on_no_group,
            handover_max=handover_max,
        )
        made = self._topics[name, item] = MemoryTopic(name, item, options)
        return made

    def find(self, name: str, item: type[T], /) -> MemoryTopic[T]:
        """Return an existing topic.

        Args:
            name: The name of the topic.
            item: The class of its items.

        Raises:
            UnknownTopic: There is no topic with this name and item type. The error names the
                existing ones.
        """
        found = self._topics.get((name, item))
        if found is None:
            known = ", ".join(map(repr, self._topics.values())) or "none"
            what = getattr(item, "__qualname__", repr(item))
            raise UnknownTopic(f"there is no topic {name!r} of {what}; existing topics: {known}")
        return found

    def consumers(
        self,
        topic: MemoryTopic[T],
        group: str,
        count: int = 1,
        *,
        batch_size: int = 100,
        auto_commit: AutoCommit = False,
    ) -> Sequence[MemoryConsumer[T]]:
        """Create the consumers of a new group, as `topic.consumers(...)` does.

        Args:
            topic: A topic of this queue.
            group: The name of the new group.
            count: The number of consumers, from 1 to the number of partitions.
            batch_size: The most items of a batch.
            auto_commit: When a batch is committed: see `MemoryTopic.consumers`.

        Raises:
            ConfigError: The group exists, or an argument is not valid.
        """
        return topic.consumers(group, count, batch_size=batch_size, auto_commit=auto_commit)

    def close(self) -> None:
        """Close every topic: producers are refused, and consumers end after the remaining items."""
        for topic in self._topics.values():
            topic.close()
