"""A topic as a program uses it: produce, read, follow, subscribe.

Owns: `LedgerTopic`. Not: its partitions, which are topics of their own (`topic.topic`). Invariants:
equal keys belong to one partition, in every process and for ever. A message is given out only when
it is durable. After the end every call raises an error.
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
    """A durable topic: messages by key in numbered partitions. Made by `LedgerTopics.topic`.

    Call its methods on the event loop that opened it. They raise `QueueFenced` after another
    process has opened the topic, and `QueueUnavailable` after it was closed. An argument of a wrong
    type raises `TypeError` or `ConfigError` before anything is stored.

    A partition that cannot be opened, for example because an entry is damaged in its only replica,
    does not keep the other partitions closed (see `unavailable`).

    Attributes:
        name: the name of the topic.
        options: the limits, retention and times that it is open with.
        partitions: the number of partitions.
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
        self._unsubscribed: set[str] = set()  # removed, but not yet in partitions that are not open
        self._subscribing = asyncio.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"topic {show_text(self.name)}"

    @property
    def unavailable(self) -> Mapping[int, MillstreamError]:
        """The partitions that are not open, each with the reason.

        They are tried again, after 5 seconds at first and after 60 seconds at most. Until then, a
        message for one of them raises `QueueUnavailable`, and so does a `tail` that reads it.
        Messages with neither a key nor a producer go to the open partitions, and subscriptions read
        those.
        """
        return dict(sorted(self._failures.items()))

    @property
    def settings(self) -> LedgerTopicSettings:
        """The stored settings, which apply from the next ledger of each partition on."""
        return self._parts[self._open[0]].record.settings

    @property
    def subscriptions(self) -> Sequence[str]:
        """The names of all subscriptions that exist, open or not, sorted."""
        return sorted({name for part in self._parts.values() for name in part.record.cursors})

    @property
    def is_closed(self) -> bool:
        """Whether the topic was closed. `LedgerTopics.topic` opens it again."""
        return self._is_closed

    # -- producing

    async def produce(
        self, key: str | None, value: bytes, *, producer: str = "", sequence: int = 0
    ) -> Position | None:
        """Store a message and return its position once the message is on disk.

        Concurrent calls are written together, in the order of the calls. A call that is cancelled
        while it waits for room is never stored. A call that is cancelled later may be stored.

        Args:
            key: messages with one key are in one partition, in order. None: the partitions take
                turns.
            value: the bytes of the message. It must fit into `LedgerTopicOptions.entry_bytes_max`.
            producer: the name of the producer, together with a `sequence`. A repeated message is
                then stored only once, also after a crash. Give all messages of a producer a key, or
                none.
            sequence: a number that rises from message to message of the producer, 0 to 2^63 - 1.

        Returns:
            The position of the message. For a repeat it is the position of the first message, or
            None if that is no longer known.

        Raises:
            QueueFull: the backlog or the bytes in flight were at their limit for `enqueue_wait_s`,
                or too many appends wait already. The message is not stored. Acknowledge messages,
                or produce fewer.
            QueueUnavailable: no ledger could be written for `enqueue_wait_s`, the partition is not
                open, or the topic is closed. The message is not stored. Try again later.
            PublishUnknown: the bookies did not answer within `enqueue_wait_s`. The message may be
                stored. Produce it again with the same `producer` and `sequence`.
            QueueFenced: another process has opened the topic. The message is not stored. Open the
                topic again, or stop.
            TypeError: an argument has the wrong type.
            ValueError: the message is too large, or the sequence is out of range or has no
                producer.
        """
        message = in_topic(key, value, producer, sequence)
        at = self.partition_of(key, producer)
        (number,) = await self._part(at).append([message])
        return None if number is None else Position(at, number)

    async def produce_many(
        self, items: Iterable[tuple[str | None, bytes]], *, producer: str = "", sequence: int = 0
    ) -> list[Position | None]:
        """Store messages and return their positions once all of them are on disk.

        The messages are in order within each partition. A list costs about a sixth of the time of
        single calls. If the call fails, a part of the list may be stored.

        Args:
            items: pairs of key and value, as in `produce`.
            producer: the name of the producer, as in `produce`.
            sequence: the sequence of the first message. Each further message has the next number.

        Returns:
            One position for each message, as `produce` returns it.

        Raises:
            MillstreamError: as `produce`: `QueueFull`, `QueueUnavailable`, `PublishUnknown`,
                `QueueFenced`.
            TypeError: as `produce`.
            ValueError: as `produce`.
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
        """Return the partition for a message.

        The key decides, or else the producer. With neither, the open partitions take turns.

        Args:
            key: the key of the message, or None.
            producer: the name of the producer.

        Returns:
            The number of the partition, from 0.

        Raises:
            TypeError: the key is not a text.
        """
        name = key if key is not None else producer
        if type(name) is not str:
            raise TypeError(f"the key of a message is {show_text(repr(name))}; it must be text")
        if key is None and not producer:
            self._turn += 1
            return self._open[self._turn % len(self._open)]
        digest: int = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        return digest % self.partitions

    # -- reading

    async def bounds(self, partition: int = 0) -> tuple[Position, Position]:
        """Return the position of the oldest message, and the position after the newest one.

        Args:
            partition: the partition, from 0.

        Returns:
            The two positions. They are equal if the partition has no messages.

        Raises:
            ConfigError: there is no such partition.
            QueueUnavailable: the partition is not open, or the topic is closed.
        """
        part = self._part(partition)
        return Position(partition, part.reader.first), Position(partition, part.reader.end)

    async def read(
        self, start: Position, messages_max: int = 1000, bytes_max: int = 2**20
    ) -> list[LedgerMessage]:
        """Return messages of one partition from a position on.

        The list is empty if the message at `start` does not exist yet. It has at least one message
        otherwise, and may be shorter than the limits where a ledger ends.

        Args:
            start: the position of the first message.
            messages_max: the largest number of messages.
            bytes_max: the largest number of bytes; a single message may be larger.

        Returns:
            The messages, in order.

        Raises:
            CursorTooOld: the message was deleted. `first` is the position of the next message that
                is kept.
            TypeError: `start` is not a position.
            ConfigError: there is no such partition.
            QueueUnavailable: the partition is not open or cannot be read, or the topic is closed.
            Corrupt: a message is missing that must be there.
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
        """Yield messages as they are produced: `async for message in topic.tail()`.

        Messages of a partition are in order. The loop reads at its own pace, disturbs nobody, and
        keeps no messages from deletion. It ends when the topic is closed.

        Args:
            start: where to begin, see `subscribe`.
            partitions: the partitions to read; None: all of them.

        Yields:
            One message at a time.

        Raises:
            CursorTooOld: the next message was deleted. Begin again at `first`.
            QueueUnavailable: a partition is not open. Name the other ones as `partitions`.
            ConfigError: `start` is not one of those that `subscribe` takes.
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
        """Return the number of the message in a partition at which a start begins.

        Raises QueueUnavailable (the partition is not open), ConfigError (the start is not valid).
        """
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
            raise ConfigError(
                f"{text}datetime with a time zone, a Position, or a list of Positions"
            )
        if len({one.partition for one in start}) < len(start):
            text = f"{self!r}: start is {show_text(repr(start))}"
            raise ConfigError(f"{text}: it names a partition twice; give one Position for each")
        return next((one.number for one in start if one.partition == partition), part.reader.first)

    # -- subscriptions

    async def subscribe(self, name: str, start: Start = "earliest") -> LedgerSubscription:
        """Open a named subscription; make it if it does not exist.

        A subscription gets every message. Messages that are not acknowledged are redelivered when
        it is opened again, also after a crash. Messages are kept until the subscription has
        acknowledged them or is removed by `unsubscribe`.

        Args:
            name: the name of the subscription, within the topic.
            start: where a new subscription begins. An existing one continues where it was.

                - `"earliest"`: at the oldest message that is kept.
                - `"latest"`: at the next message that is produced.
                - a `datetime` with a time zone: at the first message at that time or later.
                - a `Position`, or a list with one for each partition: at that message. A partition
                  that is not named begins at its oldest message.

        Returns:
            The open subscription.

        Raises:
            ConfigError: the name is empty, the subscription is open already, the topic has
                `LedgerTopicOptions.cursors_max` of them, or `start` is wrong.
            TypeError: the name is not a text.
            QueueUnavailable: the topic is closed, or none of its partitions is open.
            QueueFenced: another process has opened the topic.
            StorageError: rows cannot be read or written. Try again.
        """
        self.refuse_unopened()
        if name == "":
            raise ConfigError(f"{self!r}: the name of a subscription is empty: give a name")
        async with self._subscribing:
            if name in self._subscriptions:
                text = f"subscription {show_text(repr(name))} of {self!r}"
                raise ConfigError(f"{text} is already open in this process")
            starts = {at: await self.number_at(at, start) for at in self._open}
            opened = {at: await self._cursor(at, name, first) for at, first in starts.items()}
            made = LedgerSubscription(self, name, start, self._parts, opened, self._left)
            self._subscriptions[name] = made
            return made

    async def _cursor(self, partition: int, name: str, first: int) -> Cursor:
        """Open the cursor of a subscription in one partition."""
        cursor = await self._part(partition).cursors.open(name, first)
        cursor.rewind()
        return cursor

    def _left(self, name: str) -> None:
        self._subscriptions.pop(name, None)

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription, open or not. No more messages are kept for it.

        It does no harm to remove it twice. Partitions that are not open (see `unavailable`) remove
        it when they are opened. If the topic is closed before that, call `unsubscribe` again.

        Args:
            name: the name of the subscription.

        Raises:
            QueueUnavailable: the topic is closed, or none of its partitions is open.
            QueueFenced: another process has opened the topic.
            StorageError: the removal may be incomplete. Call it again.
        """
        self.refuse_unopened()
        async with self._subscribing:
            opened = self._subscriptions.get(name)
            if opened is not None:
                await opened.aclose()
            for part in self._parts.values():
                await part.cursors.drop(name)
            if self._failures:
                self._unsubscribed.add(name)

    # -- partitions that could not be opened

    def lack(self, partition: int, error: MillstreamError) -> None:
        """Record why a partition cannot be opened now. `LedgerTopics` calls this method."""
        self._failures[partition] = error

    async def join(self, partition: int, part: Topic) -> None:
        """Add a partition that was opened later; open subscriptions read it, too. `LedgerTopics`
        calls this method.

        Raises:
            QueueFenced: another process has opened the topic.
            StorageError: rows cannot be read or written.
        """
        async with self._subscribing:
            if part.record.settings != self.settings:
                await part.change(self.settings)
            for name in sorted(self._unsubscribed.intersection(part.record.cursors)):
                await part.cursors.drop(name)
            self._parts[partition] = part
            for one in self._subscriptions.values():
                first = await self.number_at(partition, one.start)
                one.join(partition, await self._cursor(partition, one.name, first))
            self._open = tuple(sorted(self._parts))
            self._failures.pop(partition, None)

    # -- the end

    def refuse_unopened(self) -> None:
        """Raise QueueUnavailable if the topic is closed, or none of its partitions is open."""
        self._refuse_closed()
        if self._open:
            return
        text = f"{self!r}: none of its partitions ({self.partitions}) is open: repair the cause, "
        text += "then open the topic again"
        for at, error in self.unavailable.items():
            raise QueueUnavailable(f"{text}. Partition {at}: {error}") from error
        raise QueueUnavailable(text)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise QueueUnavailable(f"{self!r} is closed: open the topic again")

    def _part(self, partition: int) -> Topic:
        self._refuse_closed()
        if not 0 <= partition < self.partitions:
            last = self.partitions - 1
            raise ConfigError(f"{self!r}: there is no partition {partition}; the last is {last}")
        part = self._parts.get(partition)
        if part is None:
            text = f"{self!r}: partition {partition} is not open, and is retried"
            raise QueueUnavailable(f"{text}: {self._failures.get(partition)}")
        return part

    async def change(self, settings: LedgerTopicSettings) -> None:
        """Store other settings. They apply from the next ledger of each partition on.

        Args:
            settings: the new settings.

        Raises:
            QueueFenced: another process has opened the topic.
            StorageError: some partitions may have the new settings already. Call it again.
        """
        for part in self._parts.values():
            if part.record.settings != settings:
                await part.change(settings)

    async def aclose(self) -> None:
        """Close the topic in order: sent messages become durable, and acknowledgements are stored.

        It does no harm to close twice. Closing takes at most twice `enqueue_wait_s`, plus the time
        of the state store.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for subscription in list(self._subscriptions.values()):
            await subscription.aclose()
        await asyncio.gather(*(part.aclose() for part in self._parts.values()))
