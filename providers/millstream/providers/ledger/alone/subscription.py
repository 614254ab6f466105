"""A named subscription of a managed topic: what it reads, and what it has done with.

Owns: `LedgerSubscription`. Not: its cursors, one for each partition (`topic.cursors`). Invariants:
one batch is read at a time; a batch is of one partition, in order, and partitions take turns; what
is acknowledged does not come again, once it is stored.
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
    """What a subscription needs of its topic."""

    partitions: int

    def number_at(self, partition: int, start: datetime, /) -> Awaitable[int]: ...


class LedgerSubscription:
    """Reads all messages of a topic once; made by `LedgerTopic.subscribe`.

    `async for batch in subscription` gives batches until the subscription or its topic is closed.
    A loop that ended with CursorTooOld may be begun again, and goes on with the oldest message.
    Partitions that are not open (`LedgerTopic.unavailable`) are read once they are.

    Attributes: `name`; `start`, where it begins in a partition that it has not read before.
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
        """A partition was opened later."""
        self._cursors[partition] = cursor
        self._reading[partition] = asyncio.Lock()
        joined, self._joined = self._joined, asyncio.Event()
        joined.set()

    @property
    def backlog(self) -> int:
        """Messages behind the oldest one that is not acknowledged, and that one."""
        pairs = ((self._parts[at], cursor) for at, cursor in self._cursors.items())
        return sum(part.record.backlog(cursor.mark, part.reader.end) for part, cursor in pairs)

    @property
    def is_closed(self) -> bool:
        """Was it, or its topic, closed?"""
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
        """The next messages; [] if there is none within `wait_s` seconds.

        Up to `messages_max` messages and `bytes_max` bytes, but one message at least. Cancelled, it
        has taken nothing. Tasks that ask at once get batches in turn.

        Args:
            partitions: only of these; None: of all, in turn.

        Raises CursorTooOld (messages before `first` were deleted, by `backlog_policy="evict"`: the
        next batch begins there), QueueFenced, Corrupt (a message that must be there is not),
        QueueUnavailable.
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
        """All partitions, from the one whose turn it is on."""
        for _ in self._cursors:
            known = sorted(self._cursors)
            self._turn += 1
            yield known[(self._turn - 1) % len(known)]

    async def _read(self, at: int, messages_max: int, bytes_max: int) -> list[LedgerMessage]:
        """The next messages of one partition."""
        cursor = self._cursor_of(at)
        async with self._reading[at]:
            try:
                found = await cursor.read(messages_max, bytes_max)
            except CursorTooOld as error:
                raise CursorTooOld(str(error), first=Position(at, error.first)) from None
        return [out_of_topic(at, one) for one in found]

    async def more(self, partitions: Sequence[int] | None = None, wait_s: float = WAIT_S) -> None:
        """Return when there may be another message, in these partitions or in any, when it was
        closed, or after `wait_s` seconds. Raises QueueFenced, QueueUnavailable."""
        wanted = sorted(self._cursors) if partitions is None else partitions
        waits = [self._parts[at].reader.wait(self._cursor_of(at).next, wait_s) for at in wanted]
        await first_of([*waits, self._end.wait(), self._joined.wait()])

    def rewind(self) -> None:
        """Read again what is not acknowledged."""
        self._refuse_closed()
        for cursor in self._cursors.values():
            cursor.rewind()

    def seek(self, position: Position) -> None:
        """Go on with this message in its partition: what is before it counts as acknowledged,
        nothing behind it does. Before the oldest that is kept, with that."""
        cursor = self._cursor(position)
        cursor.seek(position.number)

    async def seek_time(self, when: datetime) -> None:
        """Go on, in all partitions, with what was produced at or after a time. Raises
        QueueUnavailable, ConfigError (without a time zone)."""
        self._refuse_closed()
        if not isinstance(when, datetime) or when.utcoffset() is None:
            text = f"subscription {show_text(repr(self.name))}: the time is {show_text(repr(when))}"
            raise ConfigError(f"{text}; it must be a datetime with its time zone")
        for at, cursor in list(self._cursors.items()):
            cursor.seek(await self._topic.number_at(at, when))

    # -- what is done

    def acknowledge(self, *done: LedgerMessage | Position) -> None:
        """These messages are done, each alone; again is harmless.

        It is stored within `cursor_flush_s`; wait for that with `flush`.
        """
        for one in done:
            position = one.position if isinstance(one, LedgerMessage) else one
            cursor = self._cursor(position)
            cursor.acknowledge(0, [position.number])

    def acknowledge_upto(self, last: LedgerMessage | Position) -> None:
        """This message is done, and all before it in its partition."""
        position = last.position if isinstance(last, LedgerMessage) else last
        cursor = self._cursor(position)
        cursor.acknowledge(position.number)

    async def flush(self) -> None:
        """Return when what was acknowledged until now is stored. Raises QueueFenced, StorageError:
        it is tried again."""
        self._refuse_closed()
        for cursor in list(self._cursors.values()):
            await cursor.flush()

    def _cursor(self, position: Position) -> Cursor:
        self._refuse_closed()
        check_position(position)
        return self._cursor_of(position.partition)

    def _cursor_of(self, partition: int) -> Cursor:
        """Raises ConfigError, QueueUnavailable."""
        if (cursor := self._cursors.get(partition)) is not None:
            return cursor
        if not 0 <= partition < self._topic.partitions:
            text = f"there is no partition {partition}"
            raise ConfigError(f"{text}; they are 0 to {self._topic.partitions - 1}")
        raise QueueUnavailable(f"partition {partition} of {self._topic!r} is not open")

    def _refuse_closed(self) -> None:
        if self.is_closed:
            text = f"subscription {show_text(repr(self.name))} is closed"
            raise QueueUnavailable(f"{text}: open it again")

    async def aclose(self) -> None:
        """End: what was acknowledged is stored, the rest comes again; again is harmless."""
        if self.is_closed:
            return
        self._end.set()
        self._left(self.name)
        for cursor in list(self._cursors.values()):
            try:
                await cursor.flush()
            except (QueueFenced, StorageError):
                pass  # what is not stored comes again
