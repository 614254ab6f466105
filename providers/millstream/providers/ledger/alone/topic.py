"""A managed topic as a program has it: produce, read, follow, subscribe.

Owns: `LedgerTopic`. Not: its partitions, which are topics of their own (`topic.topic`). Invariants:
equal keys go to one partition, in every process and for ever; nothing is given out that is not
durable; after the end every call says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime

import xxhash

from millstream.providers.ledger.topic.cursors.cursor import Cursor
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.options import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import ConfigError, CursorTooOld, MillstreamError, QueueUnavailable
from millstream.runtime.extending import show_text

from .first_done import WAIT_S, first_of
from .message import LedgerMessage, Position, Start, check_position, in_topic, out_of_topic
from .subscription import LedgerSubscription

__all__ = ["LedgerTopic"]


class LedgerTopic:
    """Durable messages by key; made by `LedgerTopics.topic`.

    Its methods are called on the loop that opened it. They raise QueueFenced when another process
    has taken the topic over, and QueueUnavailable after its end.

    A partition that cannot be opened, such as one with a damaged entry of which there is no other
    copy, does not keep the others closed: see `unavailable`.

    Attributes: `name`, `options`, `partitions`.
    """

    def __init__(
        self, name: str, partitions: int, parts: Mapping[int, Topic], options: LedgerTopicOptions
    ) -> None:
        self.name = name
        self.options = options
        self.partitions = partitions
        self._parts = dict(sorted(parts.items()))
        self._open = tuple(self._parts)
        self._failures: dict[int, MillstreamError] = {}
        self._turn = 0
        self._subscriptions: dict[str, LedgerSubscription] = {}
        self._subscribing = asyncio.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"topic {show_text(self.name)}"

    @property
    def unavailable(self) -> Mapping[int, MillstreamError]:
        """The partitions that are not open, each with the reason. They are tried again, after 5 s
        at first and 60 s at most. Until then a message for one of them raises QueueUnavailable,
        messages without a key go to the others, and subscriptions read the others."""
        return dict(sorted(self._failures.items()))

    @property
    def settings(self) -> LedgerTopicSettings:
        """What holds from its next ledger on."""
        return self._parts[self._open[0]].record.settings

    @property
    def subscriptions(self) -> Sequence[str]:
        """The names of all that exist, open or not, sorted."""
        return sorted({name for part in self._parts.values() for name in part.record.cursors})

    @property
    def is_closed(self) -> bool:
        """Was it closed? `LedgerTopics.topic` opens it again."""
        return self._is_closed

    # -- producing

    async def produce(
        self, key: str | None, value: bytes, *, producer: str = "", sequence: int = 0
    ) -> Position | None:
        """Store a message; returns where it is, once it is on disk.

        Calls that are under way at once are written together, in the order of calls. Cancelled
        while it waits for room it is never stored; later it may be.

        Args:
            key: messages of one key are in one partition, in order; None: partitions take turns.
            producer: with a `sequence` that rises from message to message: what is given again is
                not stored again, also after a crash. Give it with a key, or always without one.

        Returns where it is; of a repeat where it was stored first, None if that is not known any
        more. Raises QueueFull (backlog or what is on its way is at its limit, for `enqueue_wait_s`)
        or QueueUnavailable: it is not stored; PublishUnknown: it may be, give it again with its
        sequence; ValueError (above `entry_bytes_max`) and TypeError, at once.
        """
        message = in_topic(key, value, producer, sequence)
        at = self.partition_of(key, producer)
        (number,) = await self._part(at).append([message])
        return None if number is None else Position(at, number)

    async def produce_many(
        self, items: Iterable[tuple[str | None, bytes]], *, producer: str = "", sequence: int = 0
    ) -> list[Position | None]:
        """Store messages, each with its key; where they are, once all are on disk.

        They are in order within each partition, and cost a sixth of what single calls do. Of a list
        that fails a part may be stored.

        Args:
            producer, sequence: the first one's; each has one more than the one before.

        Raises what `produce` raises.
        """
        lists: dict[int, list[TopicMessage]] = {}
        places: list[tuple[int, int]] = []
        for offset, (key, value) in enumerate(items):
            message = in_topic(key, value, producer, sequence + offset if producer else 0)
            at = self.partition_of(key, producer)
            lists.setdefault(at, []).append(message)
            places.append((at, len(lists[at]) - 1))
        parts = {at: self._part(at) for at in lists}  # one that is not open is refused first
        futures = [parts[at].append(messages) for at, messages in lists.items()]
        numbers = dict(zip(lists, await asyncio.gather(*futures), strict=True))
        found = [(at, numbers[at][index]) for at, index in places]
        return [None if number is None else Position(at, number) for at, number in found]

    def partition_of(self, key: str | None, producer: str = "") -> int:
        """Where a message goes: by its key, without one by its producer, without both in turn.

        Raises TypeError.
        """
        name = key if key is not None else producer
        if type(name) is not str:
            raise TypeError(f"the key of a message is {show_text(repr(name))}; it must be a text")
        if key is None and not producer:
            self._turn += 1
            return self._open[self._turn % len(self._open)]
        digest: int = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        return digest % self.partitions

    # -- reading

    async def bounds(self, partition: int = 0) -> tuple[Position, Position]:
        """The oldest message that is kept, and behind the newest; equal: there is none."""
        part = self._part(partition)
        return Position(partition, part.reader.first), Position(partition, part.reader.end)

    async def read(
        self, start: Position, messages_max: int = 1000, bytes_max: int = 2**20
    ) -> list[LedgerMessage]:
        """Messages of one partition from a position on; [] if there is none yet.

        Up to `messages_max` messages and `bytes_max` bytes, but one message at least; fewer where a
        ledger ends. Raises CursorTooOld (it was deleted; `first` is the oldest that is kept).
        """
        check_position(start)
        at, number = start
        part = self._part(at)
        try:
            found = await part.reader.read(number, messages_max, bytes_max)
        except CursorTooOld as error:
            raise CursorTooOld(str(error), first=Position(at, error.first)) from None
        return [out_of_topic(at, one) for one in found]

    async def tail(
        self, start: Start = "latest", *, partitions: Sequence[int] | None = None
    ) -> AsyncIterator[LedgerMessage]:
        """Messages as they come, without end: `async for message in topic.tail()`.

        Those of a partition are in order. It disturbs nobody, holds nothing back from being
        deleted, and reads at the pace of its loop; ends when the topic is closed. Raises
        CursorTooOld when what is next was deleted: begin anew at its `first`; QueueUnavailable when
        a partition is not open: give the others as `partitions`.
        """
        wanted = range(self.partitions) if partitions is None else partitions
        next_numbers = {at: await self.number_at(at, start) for at in wanted}
        while not self._is_closed:
            is_quiet = True
            for at in wanted:
                for message in await self.read(Position(at, next_numbers[at])):
                    is_quiet = False
                    next_numbers[at] = message.position.number + 1
                    yield message
                    if self._is_closed:
                        return
            if is_quiet:
                await self._more(next_numbers)

    async def _more(self, next_numbers: dict[int, int]) -> None:
        waits = [self._parts[at].reader.wait(number, WAIT_S) for at, number in next_numbers.items()]
        try:
            await first_of(waits)
        except QueueUnavailable:
            if not self._is_closed:
                raise

    async def number_at(self, partition: int, start: Start) -> int:
        """The message of a partition that a start means. Raises QueueUnavailable, ConfigError."""
        part = self._part(partition)
        if start == "earliest":
            return part.reader.first
        if start == "latest":
            return part.reader.end
        if isinstance(start, datetime) and start.utcoffset() is not None:
            return await part.reader.seek(start.timestamp())
        if isinstance(start, Position):
            start = [start]
        if not isinstance(start, list | tuple) or not all(
            isinstance(one, Position) for one in start
        ):
            text = (
                f'{self!r}: start is {show_text(repr(start))}; it must be "earliest", "latest", a '
            )
            raise ConfigError(f"{text}datetime with its time zone, a Position, or a list of them")
        if len({one.partition for one in start}) < len(start):
            text = f"{self!r}: start is {show_text(repr(start))}"
            raise ConfigError(f"{text}: it names a partition twice; one Position for each")
        return next((one.number for one in start if one.partition == partition), part.reader.first)

    # -- subscriptions

    async def subscribe(self, name: str, start: Start = "earliest") -> LedgerSubscription:
        """Open a named subscription.

        It has every message, and what is not acknowledged comes again when it is opened again,
        also after a crash. Until it has acknowledged them messages are kept: see `unsubscribe`.

        Args:
            name: of the subscription, within the topic.
            start: where a new subscription begins: "earliest", the oldest message that is kept;
                "latest", the next one to be produced; a datetime with its time zone, the first
                message at or after it; a `Position`, or a list with one for each partition. A
                subscription that exists goes on where it was, whatever `start` is.

        Raises ConfigError (it is open here already, `cursors_max`, no name), StorageError.
        """
        self._part(0)
        if name == "":
            raise ConfigError(f"{self!r}: the name of a subscription is empty: give it one")
        async with self._subscribing:
            if name in self._subscriptions:
                raise ConfigError(f"subscription {show_text(repr(name))} of {self!r} is open here")
            starts = {at: await self.number_at(at, start) for at in self._open}
            opened = {at: await self._cursor(at, name, first) for at, first in starts.items()}
            made = LedgerSubscription(self, name, start, self._parts, opened, self._left)
            self._subscriptions[name] = made
            return made

    async def _cursor(self, partition: int, name: str, first: int) -> Cursor:
        """The cursor of a subscription that begins now."""
        cursor = await self._part(partition).cursors.open(name, first)
        cursor.rewind()
        return cursor

    def _left(self, name: str) -> None:
        self._subscriptions.pop(name, None)

    async def unsubscribe(self, name: str) -> None:
        """Forget a subscription, open or not; nothing is kept for it. Again is harmless.

        Raises StorageError: do it again.
        """
        self._part(0)
        async with self._subscribing:
            opened = self._subscriptions.get(name)
            if opened is not None:
                await opened.aclose()
            for part in self._parts.values():
                await part.cursors.drop(name)

    # -- partitions that could not be opened

    def lack(self, partition: int, error: MillstreamError) -> None:
        """A partition cannot be opened now."""
        self._failures[partition] = error

    async def join(self, partition: int, part: Topic) -> None:
        """A partition was opened later: subscriptions that are open read it, too. Raises
        QueueFenced, StorageError."""
        async with self._subscribing:
            if part.record.settings != self.settings:
                await part.change(self.settings)
            self._parts[partition] = part
            for one in self._subscriptions.values():
                first = await self.number_at(partition, one.start)
                one.join(partition, await self._cursor(partition, one.name, first))
            self._open = tuple(sorted(self._parts))
            self._failures.pop(partition, None)

    # -- the end

    def _part(self, partition: int) -> Topic:
        if self._is_closed:
            raise QueueUnavailable(f"{self!r} is closed: open it again")
        if not 0 <= partition < self.partitions:
            last = self.partitions - 1
            raise ConfigError(f"{self!r}: there is no partition {partition}; they are 0 to {last}")
        part = self._parts.get(partition)
        if part is None:
            text = f"{self!r}: partition {partition} is not open, and is tried again"
            raise QueueUnavailable(f"{text}: {self._failures.get(partition)}")
        return part

    async def change(self, settings: LedgerTopicSettings) -> None:
        """Other settings, from the next ledger on. Raises StorageError."""
        for part in self._parts.values():
            if part.record.settings != settings:
                await part.change(settings)

    async def aclose(self) -> None:
        """End in order: what was sent is durable, what was acknowledged is stored; again is
        harmless. Takes twice `enqueue_wait_s` at most, and the time of the store."""
        if self._is_closed:
            return
        self._is_closed = True
        for subscription in list(self._subscriptions.values()):
            await subscription.aclose()
        await asyncio.gather(*(part.aclose() for part in self._parts.values()))
