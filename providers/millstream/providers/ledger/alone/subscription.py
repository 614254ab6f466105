"""A named subscription of a topic: the messages that it reads and acknowledges.

Owns: `LedgerSubscription`. Not: its cursors, one for each partition (`topic.cursors`). Invariants:
one batch of a partition is read at a time. A batch is of one partition, in order, and the
partitions take turns. An acknowledged message is not redelivered, once the acknowledgement is
stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from millstream.providers.ledger.topic.cursors.cursor import Cursor
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import (
    ConfigError,
    CursorTooOld,
    QueueFenced,
    QueueUnavailable,
    StorageError,
)
from millstream.runtime.extending import show_text

from .first_done import WAIT_S, first_of
from .message import LedgerMessage, Position, Start, check_position, out_of_topic

__all__ = ["LedgerSubscription"]


class Seeks(Protocol):
    """The part of a topic that a subscription needs."""

    partitions: int

    def number_at(self, partition: int, start: datetime, /) -> Awaitable[int]: ...


class LedgerSubscription:
    """A named subscription, which reads each message of a topic. Made by `LedgerTopic.subscribe`.

    `async for batch in subscription` yields lists of messages until the subscription or its topic
    is closed. A loop that ended with `CursorTooOld` may be begun again. It continues with the
    oldest message that is kept. Partitions that are not open (`LedgerTopic.unavailable`) are read
    as soon as they are open.

    Delivery is at least once: after a crash, messages are redelivered whose acknowledgements were
    not stored.

    Attributes:
        name: the name of the subscription.
        start: where it begins in a partition that it has not read before.
    """

    def __init__(
        self,
        topic: Seeks,
        name: str,
        start: Start,
        parts: Mapping[int, Topic],
        cursors: Mapping[int, Cursor],
        left: Callable[[str], None],
    ) -> None:
        self.name = name
        self.start: Start = start
        self._topic = topic
        self._parts = parts
        self._cursors = dict(cursors)
        self._left = left
        self._turn = 0
        self._reading = {at: asyncio.Lock() for at in cursors}
        self._end = asyncio.Event()
        self._joined = asyncio.Event()  # of the next partition

    def join(self, partition: int, cursor: Cursor) -> None:
        """Read a partition that was opened later. The topic calls it."""
        self._cursors[partition] = cursor
        self._reading[partition] = asyncio.Lock()
        joined, self._joined = self._joined, asyncio.Event()
        joined.set()

    @property
    def backlog(self) -> int:
        """The number of messages from the oldest one that is not acknowledged on."""
        pairs = ((self._parts[at], cursor) for at, cursor in self._cursors.items())
        return sum(part.record.backlog(cursor.mark, part.reader.end) for part, cursor in pairs)

    @property
    def is_closed(self) -> bool:
        """Whether the subscription or its topic was closed."""
        return self._end.is_set()

    # -- reading

    def __aiter__(self) -> AsyncIterator[list[LedgerMessage]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[LedgerMessage]]:
        while not self.is_closed:
            try:
                found = await self.batch(wait_s=WAIT_S)
            except QueueUnavailable:
                if self.is_closed:
                    return
                raise
            if found:
                yield found

    async def batch(
        self,
        messages_max: int = 100,
        bytes_max: int = 2**20,
        wait_s: float = 0.0,
        *,
        partitions: Sequence[int] | None = None,
    ) -> list[LedgerMessage]:
        """Return the next messages of one partition; an empty list if none arrives within `wait_s`.

        A cancelled call has taken no messages. Concurrent calls get batches in turn.

        Args:
            messages_max: the largest number of messages.
            bytes_max: the largest number of bytes; a single message may be larger.
            wait_s: how long to wait for a message, in seconds.
            partitions: the partitions to read; None: all of them, in turn.

        Returns:
            The messages, in order, or an empty list.

        Raises:
            CursorTooOld: messages before `first` were deleted by `backlog_policy="evict"`, or their
                loss was accepted. The next batch begins at `first`.
            QueueFenced: another process has opened the topic.
            Corrupt: a message is missing that must be there.
            QueueUnavailable: messages cannot be read now, or the subscription is closed.
            ConfigError: there is no such partition.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            self._refuse_closed()
            for at in self._in_turn() if partitions is None else partitions:
                if found := await self._read(at, messages_max, bytes_max):
                    return found
            left_s = until_s - loop.time()
            if left_s <= 0:
                return []
            await self.more(partitions, left_s)

    def _in_turn(self) -> Iterator[int]:
        """Iterate over all partitions, and begin with the one whose turn it is."""
        for _ in self._cursors:
            known = sorted(self._cursors)
            self._turn += 1
            yield known[(self._turn - 1) % len(known)]

    async def _read(self, at: int, messages_max: int, bytes_max: int) -> list[LedgerMessage]:
        """Return the next messages of one partition."""
        cursor = self._cursor_of(at)
        async with self._reading[at]:
            try:
                found = await cursor.read(messages_max, bytes_max)
            except CursorTooOld as error:
                raise CursorTooOld(str(error), first=Position(at, error.first)) from None
        return [out_of_topic(at, one) for one in found]

    async def more(self, partitions: Sequence[int] | None = None, wait_s: float = WAIT_S) -> None:
        """Wait until there may be another message, until the subscription is closed, or for
        `wait_s`.

        Args:
            partitions: the partitions to wait for; None: any of them.
            wait_s: the longest wait, in seconds.

        Raises:
            QueueFenced: another process has opened the topic.
            QueueUnavailable: the topic is closed, or a partition is not open.
        """
        wanted = sorted(self._cursors) if partitions is None else partitions
        waits = [self._parts[at].reader.wait(self._cursor_of(at).next, wait_s) for at in wanted]
        await first_of([*waits, self._end.wait(), self._joined.wait()])

    def rewind(self) -> None:
        """Read all messages again that are not acknowledged.

        Raises:
            QueueUnavailable: the subscription is closed.
        """
        self._refuse_closed()
        for cursor in self._cursors.values():
            cursor.rewind()

    def seek(self, position: Position) -> None:
        """Continue at a message in its partition.

        Messages before it count as acknowledged. Messages from it on do not. A position before the
        oldest message that is kept means that message.

        Args:
            position: the position of the next message.

        Raises:
            TypeError: `position` is not a position.
            ConfigError: there is no such partition.
            QueueUnavailable: the partition is not open, or the subscription is closed.
        """
        cursor = self._cursor(position)
        cursor.seek(position.number)

    async def seek_time(self, when: datetime) -> None:
        """Continue, in all open partitions, at the messages that were produced at a time or later.

        Args:
            when: the time, with a time zone.

        Raises:
            ConfigError: `when` is not a datetime with a time zone.
            QueueUnavailable: messages cannot be read now, or the subscription is closed.
        """
        self._refuse_closed()
        if not isinstance(when, datetime) or when.utcoffset() is None:
            text = f"subscription {show_text(repr(self.name))}: the time is {show_text(repr(when))}"
            raise ConfigError(f"{text}; it must be a datetime with its time zone")
        for at, cursor in list(self._cursors.items()):
            cursor.seek(await self._topic.number_at(at, when))

    # -- acknowledging

    def acknowledge(self, *done: LedgerMessage | Position) -> None:
        """Acknowledge single messages. It does no harm to acknowledge one twice.

        An acknowledgement is stored within `LedgerTopicOptions.cursor_flush_s`. Await `flush` to
        wait for that.

        Args:
            done: messages, or their positions.

        Raises:
            TypeError: an argument is not a message and not a position.
            ConfigError: there is no such partition.
            QueueUnavailable: a partition is not open, or the subscription is closed.
        """
        for one in done:
            position = one.position if isinstance(one, LedgerMessage) else one
            cursor = self._cursor(position)
            cursor.acknowledge(0, [position.number])

    def acknowledge_upto(self, last: LedgerMessage | Position) -> None:
        """Acknowledge a message and all before it in its partition.

        Args:
            last: the message, or its position.

        Raises:
            TypeError: `last` is not a message and not a position.
            ConfigError: there is no such partition.
            QueueUnavailable: the partition is not open, or the subscription is closed.
        """
        position = last.position if isinstance(last, LedgerMessage) else last
        cursor = self._cursor(position)
        cursor.acknowledge(position.number)

    async def flush(self) -> None:
        """Wait until all acknowledgements of earlier calls are stored.

        Raises:
            QueueFenced: another process has opened the topic.
            StorageError: they are not stored yet. They are tried again in the background.
            QueueUnavailable: the subscription is closed.
        """
        self._refuse_closed()
        for cursor in list(self._cursors.values()):
            await cursor.flush()

    def _cursor(self, position: Position) -> Cursor:
        self._refuse_closed()
        check_position(position)
        return self._cursor_of(position.partition)

    def _cursor_of(self, partition: int) -> Cursor:
        """Return the cursor of a partition. Raises ConfigError, QueueUnavailable."""
        if (cursor := self._cursors.get(partition)) is not None:
            return cursor
        if not 0 <= partition < self._topic.partitions:
            text = f"{self._topic!r}: there is no partition {partition}"
            raise ConfigError(f"{text}; the last is {self._topic.partitions - 1}")
        raise QueueUnavailable(
            f"partition {partition} of {self._topic!r} is not open, and is retried"
        )

    def _refuse_closed(self) -> None:
        if self.is_closed:
            text = f"subscription {show_text(repr(self.name))} is closed"
            raise QueueUnavailable(f"{text}: subscribe again")

    async def aclose(self) -> None:
        """Close the subscription and store its acknowledgements. It does no harm to close twice.

        Messages whose acknowledgements could not be stored are redelivered.
        """
        if self.is_closed:
            return
        self._end.set()
        self._left(self.name)
        for cursor in list(self._cursors.values()):
            try:
                await cursor.flush()
            except (QueueFenced, StorageError):
                pass  # messages without a stored acknowledgement are redelivered
