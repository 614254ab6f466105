"""A durable buffer: the `BufferQueue` of `millstream.streams` over durable topics.

Owns: `LedgerBufferQueue`, `LedgerBufferTopic`, `LedgerBufferProducer`. Not: taking batches
(`consumer`). Invariants: name and item type together identify a topic. A topic is opened at its
first use, since making one does not wait. Items that were produced before `close` are stored before
the consumers end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from millstream.providers.ledger.alone.subscription import LedgerSubscription
from millstream.providers.ledger.alone.topic import LedgerTopic
from millstream.providers.ledger.alone.topics import LedgerTopics
from millstream.runtime import ConfigError, StreamError
from millstream.runtime.extending import Codec, check_text, codec_of
from millstream.streams import AutoCommit

from .consumer import LedgerBufferConsumer, Started

__all__ = ["LedgerBufferProducer", "LedgerBufferQueue", "LedgerBufferTopic"]

T = TypeVar("T")


class LedgerBufferQueue:
    """A durable buffer queue: topics by name and item type, for one event loop.

    It implements the Protocol `BufferQueue` of `millstream.streams` over the topics of
    `open_topics`. So a program can replace `MemoryBufferQueue` by a buffer on disk.

    ```python
    async with open_topics("data/spans") as topics:
        spans = LedgerBufferQueue(topics).topic("spans", Span, partitions=4)
        await spans.producer().produce(Span(...))
    ```

    Args:
        topics: the topics of `open_topics`. They must stay open as long as the queue is used.
    """

    def __init__(self, topics: LedgerTopics) -> None:
        self._topics = topics
        self._made: dict[tuple[str, type[Any]], LedgerBufferTopic[Any]] = {}

    def topic(
        self,
        name: str,
        item: type[T],
        /,
        *,
        partitions: int = 1,
        key: Callable[[T], str] | None = None,
    ) -> LedgerBufferTopic[T]:
        """Make a topic. It has the items that are stored under its name and type already.

        Args:
            name: the name of the topic.
            item: the class of the items: a dataclass, a msgspec struct or a plain type that
                Millstream can encode.
            partitions: the number of partitions, at least 1. A stored topic must have the same
                number.
            key: returns the key of an item. Items with one key are in one partition, in order.
                None: the partitions take turns.

        Returns:
            The new topic.

        Raises:
            ConfigError: the topic was made in this program already, `partitions` is below 1, the
                name is empty, or `item` is not a class.
            DefinitionError: items of this type cannot be encoded.
        """
        check_text("the name of a topic", name)
        if not name:
            raise ConfigError("the name of a topic is empty")
        if not isinstance(item, type):
            raise ConfigError(f"topic {name!r}: item is {item!r}: give the class of the items")
        if (name, item) in self._made:
            raise ConfigError(f"topic {name!r} of {item.__qualname__} exists: use find()")
        if partitions < 1:
            raise ConfigError(f"topic {name!r}: partitions is {partitions}, it must be at least 1")
        made = LedgerBufferTopic(self._topics, name, item, partitions, key)
        self._made[name, item] = made
        return made

    def find(self, name: str, item: type[T], /) -> LedgerBufferTopic[T]:
        """Return a topic that was made before.

        Args:
            name: the name of the topic.
            item: the class of its items.

        Returns:
            The topic.

        Raises:
            StreamError: there is no such topic. The text names those that exist.
        """
        found = self._made.get((name, item))
        if found is None:
            known = ", ".join(map(repr, self._made.values())) or "none"
            what = getattr(item, "__qualname__", repr(item))
            raise StreamError(f"there is no topic {name!r} of {what}; existing topics: {known}")
        return found

    def close(self) -> None:
        """Take no more items. Consumers end once they have received all stored items."""
        for topic in self._made.values():
            topic.close()


class LedgerBufferTopic(Generic[T]):
    """One topic of a `LedgerBufferQueue` (`BufferTopic`).

    Attributes:
        name: the name of the topic.
        partitions: the number of partitions.
        codec: encodes and decodes the items.
    """

    def __init__(
        self,
        topics: LedgerTopics,
        name: str,
        item: type[T],
        partitions: int,
        key: Callable[[T], str] | None,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.codec: Codec[T] = codec_of(item, f"topic {name!r}")
        self._topics = topics
        self._item = item
        self._key = key
        self._opened: LedgerTopic | None = None
        self._is_closed = False
        self._under_way = 0  # calls of `put`
        self._complete = asyncio.Event()  # no more items will be stored
        self._groups: dict[str, asyncio.Task[LedgerSubscription]] = {}

    def __repr__(self) -> str:
        return f"topic {self.name!r} of {self._item.__qualname__}"

    async def open(self) -> LedgerTopic:
        """Open the durable topic below this one, and return it.

        Raises:
            MillstreamError: as `LedgerTopics.topic`.
        """
        if self._opened is None or self._opened.is_closed:
            stored = f"{self.name}[{self._item.__qualname__}]"
            self._opened = await self._topics.topic(stored, self.partitions)
        return self._opened

    # -- producing

    def producer(self) -> LedgerBufferProducer[T]:
        """Return a producer. Any number of tasks may share it."""
        return LedgerBufferProducer(self)

    async def put(self, items: Sequence[T]) -> None:
        """Store items in order. Producers call it.

        Args:
            items: the items.

        Raises:
            StreamError: the topic was closed.
            MillstreamError: as `LedgerTopic.produce`.
        """
        if self._is_closed:
            raise StreamError(f"{self!r} is closed and accepts no more items")
        key = self._key
        pairs = [(None if key is None else key(item), self.codec.encode(item)) for item in items]
        self._under_way += 1
        try:
            topic = await self.open()
            await topic.produce_many(pairs)
        finally:
            self._under_way -= 1
            self._look_complete()

    # -- consuming

    def consumers(
        self, group: str, count: int = 1, *, batch_size: int = 100, auto_commit: AutoCommit = False
    ) -> Sequence[LedgerBufferConsumer[T]]:
        """Return all consumers of a group. They share the partitions evenly.

        Each group gets every item. A group that an earlier program had continues where it was.

        Args:
            group: the name of the group.
            count: the number of consumers, 1 to the number of partitions.
            batch_size: the largest number of items of a batch.
            auto_commit: False: the program calls `commit`. True: a batch is committed when it is
                given. `"after"`: a batch is committed when the loop asks for the next one.

        Returns:
            The consumers, each with its own partitions.

        Raises:
            ConfigError: the group has its consumers already, or an argument is out of range.
        """
        check_text("the name of a group", group)
        if group in self._groups:
            raise ConfigError(f"{self!r}: group {group!r} exists, and its consumers cannot change")
        if not 1 <= count <= self.partitions:
            text = f"{self!r} has {self.partitions} partitions"
            raise ConfigError(f"{text}: count is {count}, it must be 1 to {self.partitions}")
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, it must be at least 1")
        if auto_commit not in (False, True, "after"):
            raise ConfigError(f"auto_commit is {auto_commit!r}: write False, True or 'after'")
        # subscribe at once, so that no item is deleted that the group has not received
        self._groups[group] = asyncio.ensure_future(self._subscribe(group))
        return [
            LedgerBufferConsumer(self, group, mine, batch_size, auto_commit)
            for mine in deal(self.partitions, count)
        ]

    async def _subscribe(self, group: str) -> LedgerSubscription:
        return await (await self.open()).subscribe(group)

    async def subscription(self, group: str) -> LedgerSubscription:
        """Return the subscription of a group; a failed attempt is repeated by the next call.

        Raises:
            MillstreamError: as `LedgerTopic.subscribe`.
        """
        task = self._groups[group]
        if task.done() and (task.cancelled() or task.exception()):
            task = self._groups[group] = asyncio.ensure_future(self._subscribe(group))
        return await asyncio.shield(task)

    # -- the end

    @property
    def is_complete(self) -> bool:
        """Whether the topic was closed and no call of `put` is running. Each item is then stored,
        or its `put` has raised an error."""
        return self._complete.is_set()

    async def ending(self) -> None:
        """Wait until the topic is complete; see `is_complete`. This does not close the topic."""
        await self._complete.wait()

    def close(self) -> None:
        """Take no more items. Consumers end once they have received all stored items."""
        self._is_closed = True
        self._look_complete()

    def _look_complete(self) -> None:
        if self._is_closed and not self._under_way:
            self._complete.set()


class LedgerBufferProducer(Generic[T]):
    """Puts items into one topic (`BufferProducer`). An item is on disk when the call was
    awaited."""

    def __init__(self, topic: LedgerBufferTopic[T]) -> None:
        self._topic = topic

    def produce(self, item: T, /) -> Awaitable[None]:
        """Store one item. The work starts only when the result is awaited.

        Args:
            item: the item.

        Returns:
            An awaitable, which ends when the item is on disk.

        Raises:
            StreamError: the topic was closed.
            MillstreamError: as `LedgerTopic.produce`.
        """
        return Started(lambda: self._topic.put([item]))

    def produce_many(self, items: Iterable[T], /) -> Awaitable[None]:
        """Store items, in order within each partition. They share syncs, so this is faster than
        single calls. The work starts only when the result is awaited.

        Args:
            items: the items.

        Returns:
            An awaitable, which ends when all items are on disk.

        Raises:
            StreamError: the topic was closed.
            MillstreamError: as `LedgerTopic.produce_many`.
        """
        wanted = list(items)
        return Started(lambda: self._topic.put(wanted))


def deal(partitions: int, consumers: int) -> list[range]:
    """Return the range of each consumer. Sizes differ by one at most, and larger ranges come
    first."""
    each, larger = divmod(partitions, consumers)
    starts = [each * at + min(at, larger) for at in range(consumers + 1)]
    return [range(starts[at], starts[at + 1]) for at in range(consumers)]
