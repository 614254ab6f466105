"""The named cursors of one topic, as its owner uses them, and the limit of their backlog.

Owns: `Cursors`, `Backlog`. Not: one cursor (`cursor`), the deletion of messages (`trimmer`).
Invariants: each name has one cursor. A cursor is in the topic's row before it can be used, and its
own row is written before that. A cursor is refused if it has acknowledged messages that do not
exist.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.topic.appending.outbox import Outbox
from millstream.providers.ledger.topic.form import FRAME_BYTES
from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.reading.owner_reader import OwnerReader
from millstream.providers.ledger.topic.record import TopicRecord, contradiction
from millstream.runtime import ConfigError, Corrupt, QueueFenced, StorageError
from millstream.runtime.extending import Tasks, check_text, show_text

from .cursor import Cursor, CursorKey, CursorRecord, begin, load
from .retention import first_within, unread_bytes

__all__ = ["Backlog", "Cursors"]

log = logging.getLogger("millstream.ledger")


class Cursors:
    """The named cursors of one topic.

    Args:
        moved: called when a cursor has moved forward or back.
        stored: called when fewer messages may be needed: a mark was stored, or a cursor was
            dropped.
        fenced: called when another owner of the topic was seen.
    """

    def __init__(
        self,
        rows: RecordRows[CursorKey, CursorRecord],
        owned: OwnedTopic,
        reader: OwnerReader,
        options: LedgerTopicOptions,
        tasks: Tasks,
        moved: Callable[[], None],
        stored: Callable[[], None],
        fenced: Callable[[QueueFenced], None],
    ) -> None:
        self._rows = rows
        self._owned = owned
        self._reader = reader
        self._options = options
        self._tasks = tasks
        self._moved = moved
        self._stored = stored
        self._fenced = fenced
        self._cursors: dict[str, Cursor] = {}
        self._damaged: set[str] = set()  # their rows cannot be read: all messages are kept for them

    async def load(self) -> None:
        """Load all cursors that the topic's row lists.

        A damaged cursor stops only its own reader. No message is deleted until the row of that
        cursor is restored, or the cursor is dropped. Raises Corrupt if a cursor is beyond the
        topic's end. Also raises QueueFenced and StorageError.
        """
        await asyncio.gather(*map(self._load, self._owned.record.cursors))

    async def _load(self, name: str) -> None:
        owned = self._owned
        try:
            record = await load(self._rows, (owned.name, name), owned.record.owner, 0)
        except Corrupt as error:
            self._damaged.add(name)
            log.error("%s; until then topic %s keeps all messages", error, show_text(owned.name))
            return
        self._put(record)

    async def open(self, name: str, start: int | None = None) -> Cursor:
        """Return the cursor with a name. A new cursor begins at message `start`.

        If `start` is None, a new cursor begins at the oldest message that is kept. Messages are
        kept until the cursor has acknowledged them or is dropped.

        Raises ConfigError if the topic has `cursors_max` cursors. Raises Corrupt if the row of the
        cursor is damaged or older than before; `drop` can delete such a cursor. Also raises
        QueueFenced and StorageError.
        """
        found = self._cursors.get(name)
        if found is not None:
            return found
        check_text("the name of a cursor", name)
        topic = self._owned.record
        key = (topic.topic, name)
        if name in topic.cursors:
            return self._put(await load(self._rows, key, topic.owner, 0))
        first, end = self._reader.first, self._reader.end
        mark = min(max(first if start is None else start, first), end) - 1
        # before it is listed, so that the rest of an older cursor of the name is overwritten
        record = await begin(self._rows, key, topic.owner, mark)
        limit = self._options.cursors_max
        await self._owned.update(lambda record: with_cursor(record, name, limit))
        return self._put(record)

    def _put(self, record: CursorRecord) -> Cursor:
        """Return the cursor of a row. Raises Corrupt if the cursor is beyond the topic's end."""
        refuse_ahead(record, self._reader.end)
        self._damaged.discard(record.cursor)
        made = self._cursors.get(record.cursor)  # another call may have been faster
        if made is None:
            made = Cursor(
                self._rows,
                record,
                self._reader,
                self._options,
                self._tasks,
                moved=self._moved,
                stored=self._stored,
                fenced=self._fenced,
            )
            self._cursors[record.cursor] = made
            self._moved()  # its backlog may be larger than that of the others
        return made

    async def drop(self, name: str) -> None:
        """Delete a cursor and its acknowledgements. Raises QueueFenced, StorageError."""
        cursor = self._cursors.pop(name, None)
        if cursor is not None:
            cursor.let_go()
        await self._owned.update(lambda record: without_cursor(record, name))
        await self._rows.delete((self._owned.name, name))
        self._damaged.discard(name)
        self._moved()
        self._stored()

    @property
    def slowest(self) -> Cursor | None:
        """The cursor with the lowest mark, or None if the topic has no cursor."""
        return min(self._cursors.values(), key=lambda cursor: cursor.mark, default=None)

    @property
    def stored_mark(self) -> int | None:
        """The number up to which all cursors have stored acknowledgements of all messages.

        None means that the number is unknown, because the row of a cursor is damaged.
        """
        if self._damaged:
            return None
        # stored marks count, so that no cursor moves back to deleted messages
        marks = (min(one.mark, one.stored_mark) for one in self._cursors.values())
        return min(marks, default=self._reader.first - 1)

    def evict(self, first: int) -> None:
        """Make all cursors give up the messages before `first`. Their next reads report the gap."""
        for cursor in self._cursors.values():
            cursor.evict(first)

    async def aclose(self) -> None:
        """Store all acknowledgements, as far as possible."""
        for cursor in self._cursors.values():
            try:
                await cursor.aclose()
            except (QueueFenced, StorageError):
                pass  # messages without a stored acknowledgement are redelivered

    def let_go(self) -> None:
        """End without storing anything."""
        for cursor in self._cursors.values():
            cursor.let_go()


class Backlog:
    """The limit of a topic's unacknowledged messages, `backlog_bytes_max`.

    The limit holds for the slowest cursor; without a cursor, it holds for all messages. At the
    limit, `backlog_policy` decides: "wait" lets appends wait, and "evict" drops the oldest messages
    for the slowest cursors. An append above the limit is accepted while no message is
    unacknowledged.
    """

    def __init__(
        self, owned: OwnedTopic, outbox: Outbox, cursors: Cursors, options: LedgerTopicOptions
    ) -> None:
        self._owned = owned
        self._outbox = outbox
        self._cursors = cursors
        self._options = options
        self._room_bytes = 0.0  # bytes that may be appended before the cursors are checked again

    def measure_again(self) -> None:
        """Let the next append measure the backlog again, because a cursor has moved."""
        self._room_bytes = 0.0

    def why_full(self, size_bytes: int) -> str:
        """Return the reason why these bytes must not be appended; the text is empty if they may.

        The method measures the backlog only now and then.
        """
        self._room_bytes -= size_bytes + FRAME_BYTES
        return self._find_room(size_bytes) if self._room_bytes < 0 else ""

    def _find_room(self, size_bytes: int) -> str:
        limit = self._options.backlog_bytes_max
        if limit is None:
            self._room_bytes = math.inf
            return ""
        record, slowest = self._owned.record, self._cursors.slowest
        first = record.trimmed if slowest is None else slowest.mark + 1
        spans = self._outbox.fill_spans(record.spans)
        unread = unread_bytes(spans, first)
        self._room_bytes = limit - unread - size_bytes
        if not unread or unread + size_bytes <= limit:
            return ""
        if self._options.backlog_policy == "wait":
            who = "no cursor has"
            if slowest is not None:
                who = f"cursor {show_text(slowest.name)!r} has not"
            behind = f"{who} acknowledged the {unread} bytes from message {first} on"
            return f"backlog_bytes_max ({limit}) is reached: {behind}"
        kept = first_within(spans, max(0, limit - size_bytes))
        self._cursors.evict(min(kept, self._outbox.confirmed + 1))
        return ""


def refuse_ahead(record: CursorRecord, end: int) -> None:
    """Raise Corrupt if a cursor has acknowledged messages that do not exist. The numbers of lost
    messages must not be given to new ones."""
    last = max([record.mark, *(end for _, end in record.ranges)])
    if last >= end:
        text = f"its cursor {show_text(record.cursor)} (cursors/) has acknowledged message {last}"
        raise contradiction(record.topic, f"{text}, but its ledgers end before message {end}")


def with_cursor(record: TopicRecord, name: str, limit: int) -> TopicRecord:
    """Return the topic's record with a cursor added.

    Raises ConfigError if the topic has `limit` cursors already.
    """
    if name in record.cursors:
        return record
    if len(record.cursors) >= limit:
        text = f"topic {show_text(record.topic)} has {limit} cursors, cursors_max is {limit}"
        raise ConfigError(f"{text}: drop one of them, or raise cursors_max")
    return msgspec.structs.replace(record, cursors=(*record.cursors, name))


def without_cursor(record: TopicRecord, name: str) -> TopicRecord:
    """Return the topic's record without a cursor."""
    left = tuple(one for one in record.cursors if one != name)
    return msgspec.structs.replace(record, cursors=left)
