"""Reading a topic in any silo, independently of the topic's owner.

Owns: `TopicReader`. Not: reading ledgers (`pages`), reading by the owner (`owner_reader`).
Invariants: the returned messages are confirmed, and have no gap. A reader writes nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone
from millstream.providers.ledger.topic.form import StoredMessage, ceil_ms
from millstream.providers.ledger.topic.ledgers import Ledgers
from millstream.providers.ledger.topic.record import (
    LedgerSpan,
    TopicRecord,
    contradiction,
    make_listed_and_gone,
)
from millstream.runtime import Corrupt, CursorTooOld, QueueUnavailable, StorageError
from millstream.runtime.extending import show_text

from .pages import MessagesLost, Pages

__all__ = [
    "AGAIN_S",
    "LOOK_EVERY_S",
    "TopicReader",
    "make_unreadable",
    "refuse_trimmed",
    "span_of",
]

LOOK_EVERY_S = 0.1
"""How often a waiting reader looks for another ledger, if the last one is closed."""
AGAIN_S = 0.02
"""The same pause, if the last ledger is open and a bookie answered without a new confirmation: it
is fenced, or closed, or repeated an earlier answer."""
WATCHED_S = 1.0
"""How long a reader watches the bookies of an open ledger before it looks again."""


class TopicReader:
    """Reads one topic from its rows and ledgers; made by `Topics.reader`."""

    def __init__(
        self,
        ledgers: Ledgers,
        rows: RecordRows[str, TopicRecord],
        name: str,
        now: Callable[[], float],
    ) -> None:
        self._rows = rows
        self._name = name
        self._now = now
        self._pages = Pages(ledgers, name)
        self._record = TopicRecord(name)

    async def bounds(self) -> tuple[int, int]:
        """Return the first message that is kept, and the number after the last confirmed one, as of
        now. They are equal if there is no message. Raises QueueUnavailable."""
        try:
            record = await self._look()
            return record.trimmed, (await self._end(record))[1]
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise make_unreadable(self._name, error) from error

    async def read(
        self, number: int, messages_max: int = 1000, bytes_max: int = 2**20
    ) -> Sequence[StoredMessage]:
        """Return messages from `number` on, or [] if message `number` does not exist yet.

        Limits and errors are as in `OwnerReader.read`.

        Raises CursorTooOld(first), Corrupt, QueueUnavailable.
        """
        try:
            found = await self._read(self._record, number, messages_max, bytes_max)
            if found:
                return found
            found = await self._read(await self._look(), number, messages_max, bytes_max)
            if not found and number < self._record.next:
                text = f"its row (topics/) says that the next message is {self._record.next}, but "
                raise contradiction(self._name, f"{text}lists no ledger with message {number}")
            return found
        except MessagesLost as lost:
            raise CursorTooOld(f"topic {show_text(self._name)}: {lost}", first=lost.first) from None
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise make_unreadable(self._name, error) from error

    async def _read(
        self, record: TopicRecord, number: int, messages_max: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        refuse_trimmed(record, number)
        span = span_of(record, number)
        if span is None or (span.is_sealed and number >= span.end):
            return []
        try:
            return await self._pages.read(span, number, messages_max, bytes_max)
        except LedgerGone as error:
            now = await self._look()
            if now.lists(span.ledger):
                raise make_listed_and_gone(self._name, span.ledger) from error
            return await self._read(now, number, messages_max, bytes_max)

    async def wait(self, number: int, wait_s: float) -> bool:
        """Return whether message `number` exists, as soon as it does, or after `wait_s` seconds.

        Raises QueueUnavailable.
        """
        ends_s = self._now() + wait_s
        try:
            while True:
                record = await self._look()
                entry, end = await self._end(record)
                left_s = ends_s - self._now()
                if number < end or left_s <= 0:
                    return number < end
                await self._pause(record, entry, left_s)
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise make_unreadable(self._name, error) from error

    async def _pause(self, record: TopicRecord, entry: int, wait_s: float) -> None:
        """Wait until there may be a message, in the open ledger or in one that is not listed
        yet."""
        if not record.spans or record.spans[-1].is_sealed:
            await asyncio.sleep(min(wait_s, LOOK_EVERY_S))
            return
        began_s, watched_s = self._now(), min(wait_s, WATCHED_S)
        if await self._pages.wait(record.spans[-1], entry, watched_s) <= entry:
            spent_s = self._now() - began_s
            await asyncio.sleep(max(0.0, min(wait_s, AGAIN_S) - spent_s))

    async def seek(self, time_s: float) -> int:
        """Return the first message at or after a wall time; see `OwnerReader.seek`.

        Raises QueueUnavailable.
        """
        try:
            record = await self._look()
            found = await self._pages.seek_in(record.spans, ceil_ms(time_s))
            return (await self._end(record))[1] if found is None else max(found, record.trimmed)
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise make_unreadable(self._name, error) from error

    async def _look(self) -> TopicRecord:
        found = await self._rows.read(self._name)
        self._record = found or TopicRecord(self._name)
        return self._record

    async def _end(self, record: TopicRecord) -> tuple[int, int]:
        """Return the last confirmed entry of the newest ledger, and the number of the topic's next
        message.

        The entry is NOTHING if the topic has no ledger or if its newest ledger is sealed.
        """
        if not record.spans or record.spans[-1].is_sealed:
            return NOTHING, max(record.next, record.trimmed)
        return await self._pages.end_of(record.spans[-1])

    async def aclose(self) -> None:
        """Close the ledgers that are open for reading. Repeating it does no harm."""
        await self._pages.aclose()


def span_of(record: TopicRecord, number: int) -> LedgerSpan | None:
    """Return the ledger that a message is in, or would be in. None: it is before all ledgers."""
    at = bisect_right(record.spans, number, key=lambda span: span.first) - 1
    return record.spans[at] if at >= 0 else None


def refuse_trimmed(record: TopicRecord, number: int) -> None:
    """Raise CursorTooOld if a message was deleted."""
    if number < record.trimmed:
        text = f"topic {show_text(record.topic)}: message {number} was dropped"
        raise CursorTooOld(f"{text}; the first one left is {record.trimmed}", first=record.trimmed)


def make_unreadable(topic: str, error: Exception) -> QueueUnavailable:
    """Return the error for rows or ledgers of a topic that cannot be read now."""
    text = f"topic {show_text(topic)} cannot be read: {type(error).__name__}: {error}"
    return QueueUnavailable(text)
