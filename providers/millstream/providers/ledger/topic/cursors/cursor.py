"""Named cursors of a topic: the progress of a subscription, stored so that a crash loses no
message.

Owns: `Cursor`, `CursorRecord`. Not: which messages may be deleted (`retention`). Named cursors work
as in Pulsar.

Invariants:

- At most one write of a cursor is running.
- Every stored message was acknowledged, so a crash moves a cursor back and never forward.
- Only the owner of the topic's newest opening writes its cursors.
- A cursor is never beyond the topic's end.
- If an older row replaces the newest one, the cursor moves back, which is allowed. It never moves
  back to before its creation or its last seek, since these versions are pinned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.topic.form import StoredMessage
from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.reading.owner_reader import OwnerReader
from millstream.runtime import Corrupt, CursorTooOld, QueueFenced, StorageError
from millstream.runtime.extending import Tasks

from .acknowledged import Acknowledged

__all__ = ["Cursor", "CursorRecord", "cursor_rows"]

log = logging.getLogger("millstream.ledger")

CursorKey = tuple[str, str]
RETRY_S = 1.0


class CursorRecord(msgspec.Struct, frozen=True, array_like=True):
    """The stored row of a cursor.

    `mark`: all messages up to this number are acknowledged. `ranges`: acknowledged ranges above it.
    `owner`: the opening of the topic that wrote the row. `gap`: the number of a
    message. The cursor has lost messages before this one, and its reader does not know that yet.
    0 means that there is no gap.
    """

    topic: str
    cursor: str
    owner: tuple[int, int]
    mark: int
    ranges: tuple[tuple[int, int], ...] = ()
    gap: int = 0
    operation: str = ""


def cursor_rows(metadata: Metadata) -> RecordRows[CursorKey, CursorRecord]:
    """Return the records of cursors, by topic and name."""

    def name_of(key: CursorKey) -> str:
        return f"{key_part(key[0])}/{key_part(key[1])}"

    return RecordRows(metadata, "cursors/", CursorRecord, name_of, is_witnessed=True)


def check_owner(owner: tuple[int, int], key: CursorKey, found: CursorRecord | None) -> None:
    """Raise QueueFenced if a later owner of the topic has the cursor."""
    if found is not None and found.owner > owner:
        text = f"cursor {key[1]} of topic {key[0]} belongs to epoch {found.owner[0]}, opening "
        raise QueueFenced(f"{text}{found.owner[1]}; this owner has {owner[0]}, {owner[1]}")


async def begin(
    rows: RecordRows[CursorKey, CursorRecord], key: CursorKey, owner: tuple[int, int], mark: int
) -> CursorRecord:
    """Store a new cursor, and replace an older cursor with the same name.

    Raises QueueFenced if a later owner has the topic, and StorageError.
    """

    def make(found: CursorRecord | None) -> CursorRecord:
        check_owner(owner, key, found)
        return CursorRecord(*key, owner, mark)

    return await rows.update(key, make)


async def load(
    rows: RecordRows[CursorKey, CursorRecord], key: CursorKey, owner: tuple[int, int], mark: int
) -> CursorRecord:
    """Load a stored cursor for this owner. A cursor whose row was lost begins at `mark`.

    Raises QueueFenced, Corrupt, StorageError.
    """

    def take(found: CursorRecord | None) -> CursorRecord:
        check_owner(owner, key, found)
        record = found or CursorRecord(*key, owner, mark)
        return msgspec.structs.replace(record, owner=owner)

    return await rows.update(key, take, pins=False)


class Cursor:
    """A named cursor of a topic; made by `Cursors.open`.

    One task at a time may use it, except for `acknowledge`. An acknowledged message is not
    redelivered once the acknowledgement is stored, even after a crash. Storing takes up to
    `cursor_flush_s`.

    Args:
        moved, stored, fenced: see `Cursors`.

    Attributes:
        stored_mark: the mark that was stored last.
    """

    def __init__(
        self,
        rows: RecordRows[CursorKey, CursorRecord],
        record: CursorRecord,
        messages: OwnerReader,
        options: LedgerTopicOptions,
        tasks: Tasks,
        moved: Callable[[], None],
        stored: Callable[[], None],
        fenced: Callable[[QueueFenced], None],
    ) -> None:
        self._rows = rows
        self._record = record
        self._messages = messages
        self._options = options
        self._tasks = tasks
        self._on_moved = moved
        self._on_stored = stored
        self._on_fenced = fenced
        self._done = Acknowledged(record.mark, record.ranges)
        self._gap = record.gap
        self._begin_at_first()
        self._next = self._done.mark + 1  # the first number that was not read
        self._changes = self._stored = 0
        self._is_damaged = False  # its row is damaged, and the log says so
        self._sought = 0  # the last change by a seek
        self.stored_mark = record.mark
        self._timer: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[Exception | None] | None = None

    def _begin_at_first(self) -> None:
        """Continue with the oldest message that is kept, if the stored mark is before it."""
        if self._done.mark + 1 < self._messages.first:
            self._gap = self._messages.first
            self._done.advance(self._messages.first - 1)

    @property
    def name(self) -> str:
        """The cursor's name."""
        return self._record.cursor

    @property
    def mark(self) -> int:
        """All messages up to this one are acknowledged."""
        return self._done.mark

    @property
    def next(self) -> int:
        """The number at which the next `read` begins. Acknowledged messages are skipped."""
        return self._done.next_after(self._next)

    @property
    def is_stored(self) -> bool:
        """Whether all acknowledgements are stored."""
        return self._stored == self._changes

    async def read(
        self, messages_max: int, bytes_max: int, wait_s: float = 0.0
    ) -> Sequence[StoredMessage]:
        """Return the next unacknowledged messages. The list is empty if none arrives within
        `wait_s` seconds.

        Returns up to `messages_max` messages and `bytes_max` bytes, but at least one message.
        Raises CursorTooOld(first) if messages before `first` are gone; the next read begins at
        `first`. Also raises QueueFenced and QueueUnavailable.
        """
        while True:
            if self._gap:
                self._tell_gap()
            number = self.next
            try:
                found = await self._messages.read(number, messages_max, bytes_max)
            except CursorTooOld as error:
                self._pass_over(number, error.first)
                raise
            if self._gap:
                self._tell_gap()
            if found:
                self._next = found[-1].number + 1
                left = [one for one in found if one.number not in self._done]
                if left:
                    return left
            elif wait_s <= 0 or not await self._messages.wait(number, wait_s):
                return []
            else:
                wait_s = 0.0

    def _pass_over(self, number: int, first: int) -> None:
        """Count the messages from `number` to before `first`, which are lost, as acknowledged."""
        before = self._done.mark
        self._done.add(number, first - 1)
        self._next = max(self._next, first)
        self._on_change()
        if self._done.mark != before:
            self._on_moved()

    def _tell_gap(self) -> NoReturn:
        first, self._gap = self._gap, 0
        self._next = max(self._next, first)
        self._on_change()
        text = f"cursor {self.name}: messages before {first} were dropped"
        raise CursorTooOld(text, first=first)

    def acknowledge(self, upto: int, also: Sequence[int] = ()) -> None:
        """Acknowledge every message up to `upto`, and those in `also`. A repeated call does no
        harm.

        The acknowledgement is stored within `cursor_flush_s`. Await `flush` to wait for that.
        """
        before = self._done.mark
        end = self._messages.end
        self._done.advance(min(upto, end - 1))
        for number in also:
            if number < end:
                self._done.add(number, number)
        self._on_change()
        if self._done.mark != before:
            self._on_moved()

    def seek(self, number: int) -> None:
        """Continue with message `number`. Only earlier messages count as acknowledged."""
        number = min(max(number, self._messages.first), self._messages.end)
        self._done = Acknowledged(number - 1)
        self._next = number
        self._on_change()
        self._sought = self._changes
        self._on_moved()

    def rewind(self, number: int = 0) -> None:
        """Read unacknowledged messages again, from message `number` on.

        The acknowledgements do not change.
        """
        self._next = max(self._done.mark + 1, min(number, self._messages.end))

    def tell_later(self, first: int) -> None:
        """Report a gap before `first` again, because the reader could not handle the report."""
        self._gap = first
        self._on_change()

    def take_gap(self, after: int) -> int | None:
        """Return the first message after an unreported gap, or None if there is no gap.

        The reader is done up to message `after`. The gap then counts as reported.
        """
        first, self._gap = self._gap, 0
        if first:
            self._on_change()
        return first if first > after + 1 else None

    def evict(self, first: int) -> None:
        """Give up messages before `first`. The next read reports the gap."""
        if self._done.mark + 1 < first:
            self._done.advance(first - 1)
            self._gap = first
            self._on_change()

    async def flush(self) -> None:
        """Wait until all earlier acknowledgements are stored.

        Raises QueueFenced if another owner has the topic. Raises StorageError if a write failed;
        the cursor repeats that write in the background.
        """
        wanted = self._changes
        while self._stored < wanted:
            self._begin_storing()
            assert self._storing is not None
            error = await asyncio.shield(self._storing)
            if error is not None:
                raise error

    async def aclose(self) -> None:
        """Store the acknowledgements.

        Raises QueueFenced and StorageError. Messages may then be redelivered.
        """
        try:
            await self.flush()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """End without storing anything."""
        if self._timer is not None:
            self._timer.cancel()
        if self._storing is not None:
            self._storing.cancel()

    def _on_change(self) -> None:
        self._changes += 1
        self._arm(self._options.cursor_flush_s)

    def _arm(self, delay_s: float) -> None:
        if self._timer is None and self._storing is None:
            self._timer = self._tasks.call_later(delay_s, self._begin_storing)

    def _begin_storing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._storing is None:
            self._storing = self._tasks.start(self._store())
            self._storing.add_done_callback(self._on_ended)

    async def _store(self) -> Exception | None:
        """Store the present acknowledgements. Return the error of a failed write, or None."""
        changes = self._changes
        record = msgspec.structs.replace(
            self._record,
            mark=self._done.mark,
            ranges=self._done.ranges(self._options.holes_max),
            gap=self._gap,
        )

        def write(found: CursorRecord | None) -> CursorRecord:
            check_owner(record.owner, (record.topic, record.cursor), found)
            return record

        try:
            pins = self._sought > self._stored
            await self._rows.update((record.topic, record.cursor), write, pins)
        except (QueueFenced, StorageError) as error:
            if isinstance(error, Corrupt) and not self._is_damaged:
                log.error("acknowledgements cannot be stored: %s", error)
            self._is_damaged = isinstance(error, Corrupt)
            return error
        self._stored, self.stored_mark = changes, record.mark
        self._on_stored()
        return None

    def _on_ended(self, task: asyncio.Task[Exception | None]) -> None:
        self._storing = None
        if task.cancelled():
            return
        error = task.result()
        if isinstance(error, QueueFenced):
            self._on_fenced(error)
        elif not self.is_stored:
            self._arm(RETRY_S if error is not None else self._options.cursor_flush_s)
