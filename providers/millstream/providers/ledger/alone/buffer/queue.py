"""A buffer that survives: the `BufferQueue` of `millstream.streams` over durable topics.

Owns: `LedgerBufferQueue`, `LedgerBufferTopic`. Not: taking batches (`consumer`). Invariants: a
topic is another one under another name, or for another type; it is opened when it is first used,
since making one does not wait; what was produced before `close` is in before consumers end.
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
    """Topics by name and item type, which are on the disk (`BufferQueue`); for one event loop.

    `LedgerBufferQueue(topics).topic("spans", Span, partitions=4)`, with the `topics` of
    `open_topics`. Items are what the wire takes: dataclasses, structs, plain values.
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
        """Make a topic; what it has on the disk already is in it.

        Args:
            key: of an item; those of one key are in one partition, in order. None: round robin.

        Raises ConfigError (it was made in this program, partitions below 1, no type),
        DefinitionError (items of this type cannot be encoded).
        """
        check_text("the name of a topic", name)
        if not name:
            raise ConfigError("the name of a topic is empty")
        if not isinstance(item, type):
            raise ConfigError(f"topic {name!r}: {item!r} is no class, but items are of one")
        if (name, item) in self._made:
            raise ConfigError(f"topic {name!r} of {item.__qualname__} exists: use find()")
        if partitions < 1:
            raise ConfigError(f"topic {name!r}: partitions is {partitions}, it must be at least 1")
        made = LedgerBufferTopic(self._topics, name, item, partitions, key)
        self._made[name, item] = made
        return made

    def find(self, name: str, item: type[T], /) -> LedgerBufferTopic[T]:
        """A topic that was made. Raises StreamError, which names those that there are."""
        found = self._made.get((name, item))
        if found is None:
            known = ", ".join(map(repr, self._made.values())) or "none"
            what = getattr(item, "__qualname__", repr(item))
            raise StreamError(f"there is no topic {name!r} of {what}; made were: {known}")
        return found

    def close(self) -> None:
        """No more items; consumers end once they have had what is there."""
        for topic in self._made.values():
            topic.close()


class LedgerBufferTopic(Generic[T]):
    """One kind of items under one name (`BufferTopic`)."""

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
        self._under_way = 0  # puts
        self._complete = asyncio.Event()  # nothing more comes
        self._groups: dict[str, asyncio.Task[LedgerSubscription]] = {}

    def __repr__(self) -> str:
        return f"topic {self.name!r} of {self._item.__qualname__}"

    async def open(self) -> LedgerTopic:
        """The topic in the ledger. Raises what `LedgerTopics.topic` raises."""
        if self._opened is None or self._opened.is_closed:
            stored = f"{self.name}[{self._item.__qualname__}]"
            self._opened = await self._topics.topic(stored, self.partitions)
        return self._opened

    # -- producing

    def producer(self) -> LedgerBufferProducer[T]:
        """Puts items in; any number of tasks may share one."""
        return LedgerBufferProducer(self)

    async def put(self, items: Sequence[T]) -> None:
        """Store items in order. Raises StreamError after the end, and what `produce` raises."""
        if self._is_closed:
            raise StreamError(f"{self!r} was closed: it takes no more items")
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
        """All consumers of a group: `count` of them share the partitions evenly. A group that an
        earlier program had goes on where that one was.

        Raises ConfigError: the group has its consumers, or there are more than partitions.
        """
        check_text("the name of a group", group)
        if group in self._groups:
            raise ConfigError(f"{self!r}: group {group!r} has its consumers")
        if not 1 <= count <= self.partitions:
            text = f"{self!r} has {self.partitions} partitions"
            raise ConfigError(f"{text}: a group has 1 to so many consumers, not {count}")
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, it must be at least 1")
        if auto_commit not in (False, True, "after"):
            raise ConfigError(f"auto_commit is {auto_commit!r}: write False, True or 'after'")
        # at once, so that nothing is deleted that it has not had
        self._groups[group] = asyncio.ensure_future(self._subscribe(group))
        return [
            LedgerBufferConsumer(self, group, mine, batch_size, auto_commit)
            for mine in deal(self.partitions, count)
        ]

    async def _subscribe(self, group: str) -> LedgerSubscription:
        return await (await self.open()).subscribe(group)

    async def subscription(self, group: str) -> LedgerSubscription:
        """That of a group. Raises what `LedgerTopic.subscribe` raises; the next call tries anew."""
        task = self._groups[group]
        if task.done() and (task.cancelled() or task.exception()):
            task = self._groups[group] = asyncio.ensure_future(self._subscribe(group))
        return await asyncio.shield(task)

    # -- the end

    @property
    def is_complete(self) -> bool:
        """Is everything in that will ever be?"""
        return self._complete.is_set()

    async def ending(self) -> None:
        """Until it is closed, and what was under way then has ended."""
        await self._complete.wait()

    def close(self) -> None:
        """No more items; consumers end once they have had what is there."""
        self._is_closed = True
        self._look_complete()

    def _look_complete(self) -> None:
        if self._is_closed and not self._under_way:
            self._complete.set()


class LedgerBufferProducer(Generic[T]):
    """Puts items into one topic (`BufferProducer`); they are on the disk when that is awaited."""

    def __init__(self, topic: LedgerBufferTopic[T]) -> None:
        self._topic = topic

    def produce(self, item: T, /) -> Awaitable[None]:
        """Put one item. Raises StreamError (closed), and what `LedgerTopic.produce` raises."""
        return Started(lambda: self._topic.put([item]))

    def produce_many(self, items: Iterable[T], /) -> Awaitable[None]:
        """Put items, in order within each partition; they share syncs."""
        wanted = list(items)
        return Started(lambda: self._topic.put(wanted))


def deal(partitions: int, consumers: int) -> list[range]:
    """The range of each consumer; sizes differ by one at most, the larger first."""
    each, larger = divmod(partitions, consumers)
    starts = [each * at + min(at, larger) for at in range(consumers + 1)]
    return [range(starts[at], starts[at + 1]) for at in range(consumers)]
