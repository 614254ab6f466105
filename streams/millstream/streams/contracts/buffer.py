"""A buffer between producers and slower consumers in one program: topics, partitions, groups.

Owns: the contract that code is written against, so that another queue than the one in memory can
stand behind it. Not: an implementation (`millstream.providers.memory.MemoryBufferQueue`). Source:
Mocha's IBufferQueue (spec/queues.md A1, A7). Invariants: a topic is known by its name *and* its
item type; each group sees every item of a partition in order; a partition belongs to one consumer
of each group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Annotated, Literal, Protocol, TypeVar

__all__ = ["AutoCommit", "BufferConsumer", "BufferProducer", "BufferQueue", "BufferTopic"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
AutoCommit = Annotated[bool | Literal["after"], "when a batch counts as done"]


class BufferProducer(Protocol[T_contra]):
    """Puts items into a topic; any number of tasks of the topic's loop may share one."""

    def produce(self, item: T_contra, /) -> Awaitable[None]:
        """Put one item: it is in when the result has been awaited.

        Raises QueueFull where a bounded topic is not to wait, StreamError after the topic's end.
        """
        ...

    def produce_many(self, items: Iterable[T_contra], /) -> Awaitable[None]:
        """Put items, in order within each partition."""
        ...


class BufferConsumer(Protocol[T_co]):
    """Takes batches for its group, from the partitions that are its own.

    `async for batch in consumer`: one loop at a time. The loop waits while nothing is there, and
    ends once the topic is closed and drained. What is not committed comes again.
    """

    @property
    def group(self) -> str: ...
    @property
    def partitions(self) -> Sequence[int]: ...
    def __aiter__(self) -> AsyncIterator[Sequence[T_co]]: ...
    def commit(self, count: int | None = None, /) -> Awaitable[None]:
        """The last batch is done, or its first `count` items. Raises StreamError: nothing to."""
        ...


class BufferTopic(Protocol[T]):
    """One kind of items under one name."""

    @property
    def name(self) -> str: ...
    def producer(self) -> BufferProducer[T]: ...
    def consumers(
        self, group: str, count: int = 1, *, batch_size: int = 100, auto_commit: AutoCommit = False
    ) -> Sequence[BufferConsumer[T]]:
        """All consumers of a new group: `count` of them share the topic's partitions evenly."""
        ...


class BufferQueue(Protocol):
    """Topics by name and item type."""

    def topic(self, name: str, item: type[T], /, *, partitions: int = 1) -> BufferTopic[T]:
        """Make a topic. Raises ConfigError: it exists."""
        ...

    def find(self, name: str, item: type[T], /) -> BufferTopic[T]:
        """A topic that was made. Raises StreamError: there is none of this name and type."""
        ...

    def close(self) -> None:
        """No more items; consumers end once they have had what is there."""
        ...
