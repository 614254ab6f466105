"""Reading one queue: by its owner, and by readers that are independent of the owner.

Owns: `LedgerReceiver`, `LedgerQueueReader`. Not: topics and cursors (`topic`). Invariants: the
owner's topic is open from `start` to `aclose`, and is then closed in order, so the next owner finds
closed ledgers. An acknowledgement is stored when `ack` returns. An acknowledgement of an older
epoch is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime

from millstream.providers.ledger.topic.cursors.cursor import Cursor
from millstream.providers.ledger.topic.reading.owner_reader import OwnerReader
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import CursorTooOld, QueueUnavailable, StorageError
from millstream.streams import Page, QueueId, QueueMessage, StreamId, Token

from .damage import damage_is_unavailable
from .desk import Desk
from .form import out_of_topic

__all__ = ["CURSOR", "LedgerQueueReader", "LedgerReceiver"]

CURSOR = "agent"
"""The cursor of a queue's agent in its topic."""


class LedgerReceiver:
    """Reads one queue in one epoch."""

    def __init__(self, desk: Desk, queue: QueueId, epoch: int, era: int) -> None:
        self._desk = desk
        self._queue = queue
        self._epoch = epoch
        self._era = era
        self._topic: Topic | None = None
        self._cursor: Cursor | None = None
        self._left: deque[QueueMessage] = deque()  # read, and not returned yet for lack of room
        self._has_failed = False  # the last read has failed

    async def start(self, after: Token | None, /) -> None:
        topic = await self._desk.own(self._queue, self._epoch)
        self._topic = topic
        try:
            cursor = self._cursor = await topic.cursors.open(CURSOR)
        except StorageError as error:
            raise QueueUnavailable(
                f"{self._queue}: the stored position cannot be read: {error}"
            ) from None
        # messages before `after` are read by lagging cursors: they are not acknowledged
        done = 0 if after is None else after.seq
        cursor.rewind(done + 1)
        first = cursor.take_gap(done)
        if first is not None:
            text = f"{self._queue}: messages before {first} were dropped"
            raise CursorTooOld(text, first=Token(self._era, first))

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        if not self._left:
            self._left.extend(await self._next(max_events, max_bytes, wait_s))
        taken: list[QueueMessage] = []
        while self._left:
            max_events -= len(self._left[0].items)
            max_bytes -= sum(map(len, self._left[0].items))
            if taken and (max_events < 0 or max_bytes < 0):
                break
            taken.append(self._left.popleft())
        return taken

    async def _next(self, max_events: int, max_bytes: int, wait_s: float) -> list[QueueMessage]:
        cursor = self._find_started()
        try:
            with damage_is_unavailable(self._queue):
                found = await cursor.read(max_events, max_bytes, wait_s)
            self._has_failed = False
        except CursorTooOld as error:
            cursor.tell_later(error.first)  # for the next receiver
            self._has_failed = True
            raise QueueUnavailable(f"{self._queue}: {error}; start a new receiver") from None
        except QueueUnavailable:
            if self._topic is None:
                return []  # it was closed in the meantime
            self._has_failed = True
            raise
        return [out_of_topic(one, self._era) for one in found]

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        cursor = self._find_started()
        cursor.acknowledge(0 if upto is None else upto.seq, [token.seq for token in also])
        try:
            await cursor.flush()
        except StorageError as error:
            raise QueueUnavailable(
                f"{self._queue}: the acknowledgement is not stored yet: {error}"
            ) from None

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """Nothing to do: the next receiver of a log reads unacknowledged messages again."""

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """Nothing to do: messages are not leased."""
        return ()

    async def backlog(self) -> int:
        topic, cursor = self._topic, self._cursor
        if topic is None or cursor is None:
            return 0
        behind = topic.record.backlog(cursor.next - 1, topic.reader.end)
        return behind + sum(len(one.items) for one in self._left)

    async def aclose(self) -> None:
        topic, self._topic, self._cursor = self._topic, None, None
        if topic is not None and self._has_failed and not topic.has_ended:
            # an entry that cannot be read does not stop publishers
            self._desk.keep(self._queue, topic)
        elif topic is not None:
            await self._desk.leave(self._queue, topic)

    def _find_started(self) -> Cursor:
        if self._cursor is None:
            raise QueueUnavailable(f"{self._queue}: this receiver is not started, or is closed")
        return self._cursor


class LedgerQueueReader:
    """Reads a queue independently of its owner.

    In the owner's silo it reads from the owner's topic, so it sees every message that the owner has
    read.
    """

    def __init__(self, desk: Desk, queue: QueueId, beside: TopicReader, era: int) -> None:
        self._desk = desk
        self._queue = queue
        self._beside = beside
        self._era = era
        self._end = 0

    def _reader(self) -> OwnerReader | TopicReader:
        topic = self._desk.topic(self._queue)
        return self._beside if topic is None else topic.reader

    async def _bounds(self) -> tuple[int, int]:
        """Return the bounds. The bookies may know less of the end than an owner here knew
        before."""
        reader = self._reader()
        with damage_is_unavailable(self._queue):
            first, end = await reader.bounds()
        self._end = max(self._end, end)
        return first, self._end

    async def bounds(self) -> tuple[Token | None, Token | None]:
        first, end = await self._bounds()
        if first >= end:
            return None, None
        return Token(self._era, first), Token(self._era, end - 1)

    async def seek(self, when: datetime, /) -> Token | None:
        with damage_is_unavailable(self._queue):
            number = await self._reader().seek(when.timestamp())
        _, end = await self._bounds()
        return Token(self._era, number) if number < end else None

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        try:
            with damage_is_unavailable(self._queue):
                found = await self._reader().read(position.seq, max_events, max_bytes)
        except CursorTooOld as error:
            first = Token(self._era, error.first)
            raise CursorTooOld(f"{self._queue}: {error}", first=first) from None
        following = position.seq
        if found:
            following = found[-1].number + 1
            self._end = max(self._end, following)
        _, end = await self._bounds()
        messages = within(max_events, (out_of_topic(one, self._era) for one in found))
        if messages and len(messages) < len(found):
            following = messages[-1].token.seq + 1
        wanted = [one for one in messages if streams is None or one.stream in streams]
        return Page(wanted, Token(self._era, following), following >= end)

    async def aclose(self) -> None:
        await self._beside.aclose()


def within(max_events: int, messages: Iterable[QueueMessage]) -> list[QueueMessage]:
    """Return the first messages with at most `max_events` events together, but at least one."""
    taken: list[QueueMessage] = []
    for message in messages:
        max_events -= len(message.items)
        if taken and max_events < 0:
            break
        taken.append(message)
    return taken
