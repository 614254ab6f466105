"""A buffer between producers and slower consumers in one program: topics, partitions, groups.

Owns: the contract that programs are written against, so that another queue can replace the one in
memory. Not: an implementation (`millstream.providers.memory.MemoryBufferQueue`). Source: Mocha's
IBufferQueue. Invariants: a topic is known by its name *and* its item type. Each group sees every
item of a partition in order. A partition belongs to one consumer of each group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Annotated, Literal, Protocol, TypeVar

__all__ = ["AutoCommit", "BufferConsumer", "BufferProducer", "BufferQueue", "BufferTopic"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
AutoCommit = Annotated[bool | Literal["after"], "when a batch counts as done"]
"""When a batch of a buffer's consumer counts as processed: a value of `auto_commit`.

- `False`: when the program calls `commit`.
- `True`: just before the consumer hands the batch out, so a failure of the program loses it.
- `"after"`: when the program asks for the next batch.
"""


class BufferProducer(Protocol[T_contra]):
    """Puts items into a topic of a buffer. Tasks of the topic's event loop may share one
    producer."""

    def produce(self, item: T_contra, /) -> Awaitable[None]:
        """Put one item into the topic; await the result to be sure that it is stored.

        Args:
            item: the item.

        Raises:
            QueueFull: the topic has a limit, the limit is reached, and the topic does not wait.
            StreamError: the topic is closed.
        """
        ...

    def produce_many(self, items: Iterable[T_contra], /) -> Awaitable[None]:
        """Put items into the topic, in order within each partition.

        Args:
            items: the items, in order.

        Raises:
            QueueFull: as for `produce`.
            StreamError: the topic is closed.
        """
        ...


class BufferConsumer(Protocol[T_co]):
    """Takes batches for its group, from the partitions that belong to this consumer.

    Write `async for batch in consumer`; one loop at a time may run. The loop waits while the
    partitions are empty. It ends when the topic is closed and all its items were taken. Batches
    that are not committed are delivered again.
    """

    @property
    def group(self) -> str:
        """The group that this consumer belongs to."""
        ...

    @property
    def partitions(self) -> Sequence[int]:
        """The numbers of the partitions that this consumer reads."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[T_co]]:
        """Iterate over batches of items."""
        ...

    def commit(self, count: int | None = None, /) -> Awaitable[None]:
        """Mark the last batch, or its first `count` items, as processed.

        Args:
            count: number of items from the start of the batch. None: the whole batch.

        Raises:
            StreamError: there is no batch to commit.
        """
        ...


class BufferTopic(Protocol[T]):
    """Items of one type under one name; `BufferQueue.topic` creates it."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        ...

    def producer(self) -> BufferProducer[T]:
        """Return a producer for this topic."""
        ...

    def consumers(
        self, group: str, count: int = 1, *, batch_size: int = 100, auto_commit: AutoCommit = False
    ) -> Sequence[BufferConsumer[T]]:
        """Create a new group and return all its consumers; they share the topic's partitions
        evenly.

        Args:
            group: name of the group. Each group sees every item.
            count: number of consumers in the group.
            batch_size: largest number of items in one batch.
            auto_commit: when a batch counts as processed (`AutoCommit`).
        """
        ...


class BufferQueue(Protocol):
    """Topics by name and item type: the entry point of a buffer within one program.

    See [A buffer between tasks](../guides/buffer_queue.md).
    """

    def topic(self, name: str, item: type[T], /, *, partitions: int = 1) -> BufferTopic[T]:
        """Create a topic.

        Args:
            name: name of the topic.
            item: type of its items. One name may have several topics of different types.
            partitions: number of partitions; items are in order within each partition.

        Raises:
            ConfigError: the topic exists.
        """
        ...

    def find(self, name: str, item: type[T], /) -> BufferTopic[T]:
        """Return a topic that was created before.

        Args:
            name: name of the topic.
            item: type of its items.

        Raises:
            StreamError: there is no topic of this name and type.
        """
        ...

    def close(self) -> None:
        """Accept no more items; consumers end when they have taken the remaining ones."""
        ...
