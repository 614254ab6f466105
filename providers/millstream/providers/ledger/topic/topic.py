"""A managed topic in the hands of its owner: append, read, cursors, retention.

Owns: `Topic`, which puts the parts together. Not: appending (`appending.topic_writer`), reading out
of ledgers (`reading.pages`), storing cursors (`cursors.cursor`). Invariants: a message is read by
nobody before it and all before it are confirmed; a ledger leaves the list before it is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import Future
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone
from millstream.runtime import (
    ConfigError,
    Corrupt,
    CursorTooOld,
    QueueFenced,
    QueueUnavailable,
    StorageError,
)
from millstream.runtime.extending import Clock, Tasks, check_text, show_text

from .appending.outbox import Batch, Outbox
from .appending.takeover import Taken
from .appending.topic_writer import TopicWriter
from .cursors.cursor import Cursor, CursorKey, CursorRecord, begin, load
from .cursors.retention import first_within, ledgers_to_trim, unread_bytes
from .form import FRAME_BYTES, StoredMessage, TopicMessage, ceil_ms
from .ledgers import Ledgers
from .options import LedgerTopicOptions, LedgerTopicSettings
from .reading.pages import MessagesLost, Pages
from .reading.tail import TopicTail
from .record import LedgerSpan, TopicRecord, contradiction, make_listed_and_gone

__all__ = ["Topic", "TopicHome"]

log = logging.getLogger("millstream.ledger")


@dataclass(frozen=True, slots=True)
class TopicHome:
    """What topics of one process stand on: ledgers, rows, the clock, tasks that end with it."""

    ledgers: Ledgers
    topics: RecordRows[str, TopicRecord]
    cursors: RecordRows[CursorKey, CursorRecord]
    clock: Clock
    tasks: Tasks


class Topic:
    """Numbered messages, kept in ledgers; made by `Topics.open`, and closed by `aclose`.

    Its owner is the only one who appends. Once another one has opened it in a higher epoch, what is
    on its way ends with PublishUnknown, and everything later with QueueFenced: close it then.
    """

    def __init__(
        self, home: TopicHome, taken: Taken, outbox: Outbox, options: LedgerTopicOptions
    ) -> None:
        self._home = home
        self._owned = taken.owned
        self._options = options
        self._outbox = outbox
        self._tail = TopicTail(options.cache_bytes_max)
        self._pages = Pages(home.ledgers, taken.owned.name)
        self._room_bytes = 0.0  # so much may be appended before cursors are looked at
        self._cursors: dict[str, Cursor] = {}
        self._damaged: set[str] = set()  # cursors whose rows cannot be read: all is kept for them
        self._waiters: list[tuple[int, Future[None]]] = []
        self._trimming: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing = TopicWriter(
            home.ledgers,
            taken.owned,
            outbox,
            options,
            home.clock,
            home.tasks,
            confirmed=self._on_confirmed,
            ended=self._on_ended,
            why_full=self._why_full,
        )
        for ledger in taken.empty:
            home.tasks.start(self._delete(ledger))

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._owned.name

    @property
    def epoch(self) -> int:
        """The epoch that it was opened in."""
        return self._owned.record.epoch

    @property
    def record(self) -> TopicRecord:
        """Its row, as this owner wrote it last."""
        return self._owned.record

    @property
    def first(self) -> int:
        """The number of the oldest message that is kept, or of the next one."""
        return self._owned.record.trimmed

    @property
    def end(self) -> int:
        """The number behind the last confirmed message."""
        return self._outbox.confirmed + 1

    @property
    def has_ended(self) -> bool:
        """Was it closed here, or taken over by another one?"""
        return self._writing.ended is not None

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that were sent, and are not confirmed."""
        return self._outbox.sent_bytes

    def append(self, messages: Sequence[TopicMessage]) -> Future[list[int | None]]:
        """Store messages in order; the future has their numbers once all of them are durable.

        Appends are pipelined, and stored in the order of calls. A sequence of a producer that is
        not above the highest one is not stored again: it has the number of before, or None.
        Cancelled while it waits for room, it is never sent.

        The future fails with QueueFull, QueueUnavailable (nothing of it is stored), PublishUnknown
        (it may be, also later: send the same sequences again), QueueFenced (nothing is stored,
        another one owns the topic). Raises, at once: ValueError (a message is above
        `entry_bytes_max`), QueueFull, QueueUnavailable (closed), QueueFenced.
        """
        return self._writing.append(messages)

    async def read(
        self, number: int, messages_max: int = 1000, bytes_max: int = 2**20
    ) -> Sequence[StoredMessage]:
        """Messages from `number` on; [] if it is not there yet.

        Up to `messages_max` messages and `bytes_max` bytes of payload, but one message at least;
        fewer where a ledger ends. Raises CursorTooOld(first): what is before `first` was deleted,
        or is lost; Corrupt: a message that must be there is not; QueueUnavailable.
        """
        while True:
            self._refuse_gone(number)
            if number >= self.end:
                return []
            found = self._tail.read(number, messages_max, bytes_max)
            if found is not None:
                return found
            span = self._span_of(number)
            try:
                end = self._end_in(span)
                if found := await self._pages.read(span, number, messages_max, bytes_max, end):
                    return found
                text = f"message {number} is before the end, {self.end}, and ledger {span.ledger}"
                raise contradiction(self.name, f"{text} has it in none of its {end} entries")
            except MessagesLost as lost:
                text = f"topic {show_text(self.name)}: {lost}"
                raise CursorTooOld(text, first=lost.first) from None
            except Corrupt:
                raise
            except (LedgerError, StorageError) as error:
                if not isinstance(error, LedgerGone) or number >= self.first:
                    raise await self._why_unreadable(span.ledger, error) from error

    def _refuse_gone(self, number: int) -> None:
        if number < self.first:
            text = (
                f"topic {show_text(self.name)}: message {number} is gone, {self.first} is the first"
            )
            raise CursorTooOld(text, first=self.first)

    async def _why_unreadable(self, ledger: int, error: Exception) -> QueueUnavailable | Corrupt:
        """A ledger that is gone though the list has it now is damage; a later owner may have
        deleted one that this owner's list has."""
        if isinstance(error, LedgerGone):
            try:
                now = await self._home.topics.read(self.name)
            except Corrupt as damage:
                return damage
            except StorageError as unknown:
                return self._unreadable(unknown)
            if now is not None and now.lists(ledger):
                return make_listed_and_gone(self.name, ledger)
        return self._unreadable(error)

    def _unreadable(self, error: Exception) -> QueueUnavailable:
        text = f"topic {show_text(self.name)} cannot be read: {type(error).__name__}: {error}"
        return QueueUnavailable(text)

    def _span_of(self, number: int) -> LedgerSpan:
        spans = self._owned.record.spans
        return spans[bisect_right(spans, number, key=lambda span: span.first) - 1]

    def _end_in(self, span: LedgerSpan) -> int:
        """The entry behind the last one of a ledger that is known to be confirmed."""
        return (span.last if span.is_sealed else self._outbox.confirmed_entry) + 1

    async def wait(self, number: int, wait_s: float) -> bool:
        """Is message `number` there? As soon as it is, or after `wait_s` seconds.

        Raises QueueFenced, QueueUnavailable: the topic is another one's, or closed.
        """
        if number < self.end:
            return True
        if self._writing.ended is not None:
            raise type(self._writing.ended)(*self._writing.ended.args)
        future: Future[None] = asyncio.get_running_loop().create_future()
        waiter = (number, future)
        self._waiters.append(waiter)
        timer = self._home.tasks.call_later(wait_s, partial(wake, future))
        try:
            await future
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return number < self.end

    async def seek(self, time_s: float) -> int:
        """The first message that was appended at or after a wall time, give or take its entry; the
        number of the next one if there is none.

        Times never go back within a topic, so clocks that were set back do not count. Raises
        QueueUnavailable.
        """
        try:
            found = await self._pages.seek_in(
                self._owned.record.spans, ceil_ms(time_s), self._end_in
            )
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise self._unreadable(error) from error
        return self.end if found is None else max(found, self.first)

    async def cursor(self, name: str, start: int | None = None) -> Cursor:
        """The named cursor; a new one begins at message `start` (None: the oldest that is kept).

        It holds messages back from being deleted until they are acknowledged or it is dropped.
        Raises ConfigError (`cursors_max`), QueueFenced, Corrupt (its row is damaged, or older than
        it was; `drop_cursor` does not mind), StorageError.
        """
        found = self._cursors.get(name)
        if found is not None:
            return found
        check_text("the name of a cursor", name)
        if name in self.record.cursors:
            record = await load(self._home.cursors, (self.name, name), self.record.owner, 0)
            self._refuse_ahead(record)
        else:
            wanted = self.first if start is None else start
            mark = min(max(wanted, self.first), self.end) - 1
            # before the list has it, so that what an older one of the name left is overwritten
            record = await begin(self._home.cursors, (self.name, name), self.record.owner, mark)
            await self._owned.update(self._with_cursor(name))
        return self._put(record)

    def _refuse_ahead(self, record: CursorRecord) -> None:
        """Raise Corrupt if a cursor has acknowledged what is not there: the numbers of lost
        messages must not be given again."""
        last = max([record.mark, *(end for _, end in record.ranges)])
        if last >= self.end:
            text = (
                f"its cursor {show_text(record.cursor)} (cursors/) has acknowledged message {last}"
            )
            raise contradiction(self.name, f"{text}, and its ledgers end before message {self.end}")

    def _put(self, record: CursorRecord) -> Cursor:
        self._damaged.discard(record.cursor)
        made = self._cursors.get(record.cursor)  # another call may have been faster
        if made is None:
            made = Cursor(self._home.cursors, record, self, self._options, self._home.tasks)
            self._cursors[record.cursor] = made
            self._room_bytes = 0.0  # it may be behind the others
        return made

    def _with_cursor(self, name: str) -> Callable[[TopicRecord], TopicRecord]:
        limit = self._options.cursors_max

        def change(record: TopicRecord) -> TopicRecord:
            if name in record.cursors:
                return record
            if len(record.cursors) >= limit:
                text = (
                    f"topic {show_text(record.topic)} has {limit} cursors, cursors_max is {limit}"
                )
                raise ConfigError(f"{text}: drop one of them")
            return msgspec.structs.replace(record, cursors=(*record.cursors, name))

        return change

    async def drop_cursor(self, name: str) -> None:
        """Forget a cursor and what it acknowledged. Raises QueueFenced, StorageError."""
        cursor = self._cursors.pop(name, None)
        if cursor is not None:
            cursor.let_go()

        def change(record: TopicRecord) -> TopicRecord:
            left = tuple(one for one in record.cursors if one != name)
            return msgspec.structs.replace(record, cursors=left)

        await self._owned.update(change)
        await self._home.cursors.delete((self.name, name))
        self._damaged.discard(name)
        self.cursor_moved()
        self.cursor_stored()

    async def change(self, settings: LedgerTopicSettings) -> None:
        """Other settings, from the next ledger on. Raises QueueFenced, StorageError."""
        await self._owned.update(lambda record: msgspec.structs.replace(record, settings=settings))

    async def begin(self) -> None:
        """Load the stored cursors, and look at age and retention from now on.

        A cursor that is damaged stops nobody but its own reader: nothing is deleted until it is
        restored or dropped. Raises QueueFenced, Corrupt (it is ahead of the topic), StorageError.
        """
        await asyncio.gather(*map(self._begin_cursor, self.record.cursors))
        self._tend()

    async def _begin_cursor(self, name: str) -> None:
        try:
            record = await load(self._home.cursors, (self.name, name), self.record.owner, 0)
        except Corrupt as error:
            self._damaged.add(name)
            log.error("%s; until then topic %s keeps all messages", error, show_text(self.name))
            return
        self._refuse_ahead(record)
        self._put(record)

    def _tend(self) -> None:
        if self._writing.ended is None:
            self._writing.tend()
            self._trim_soon()
            self._timer = self._home.tasks.call_later(self._options.tend_every_s, self._tend)

    def _on_confirmed(self, batch: Batch, ledger: int) -> None:
        self._pages.index(ledger).note(batch.entry, batch.first, batch.time_ms)
        self._tail.add(batch)
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        ready = [waiter for waiter in self._waiters if waiter[0] < self.end]
        for waiter in ready:
            self._waiters.remove(waiter)
            wake(waiter[1])

    def cursor_moved(self) -> None:
        """A cursor is further than it was, or further back: there may be room, or less."""
        self._room_bytes = 0.0
        self._writing.pump()

    def cursor_stored(self) -> None:
        """A cursor's mark is stored: there may be less to keep."""
        self._trim_soon()

    def fence(self, error: QueueFenced) -> None:
        """Another owner was seen."""
        self._writing.stop(error)

    def _on_ended(self) -> None:
        error = self._writing.ended
        assert error is not None
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _floor(self) -> int:
        """The first message that a cursor has not acknowledged; without a cursor, the first."""
        return min((cursor.mark + 1 for cursor in self._cursors.values()), default=self.first)

    def _spans(self) -> list[LedgerSpan]:
        """The ledgers, with what is confirmed in the last one."""
        spans = list(self._owned.record.spans)
        if spans and not spans[-1].is_sealed:
            count = self.end - spans[-1].first
            size = self._outbox.ledger_bytes
            spans[-1] = msgspec.structs.replace(spans[-1], count=count, size_bytes=size)
        return spans

    def _why_full(self, size_bytes: int) -> str:
        """Why no more may be appended; empty: it may. Looks at the ledgers only now and then."""
        self._room_bytes -= size_bytes + FRAME_BYTES
        return self._find_room(size_bytes) if self._room_bytes < 0 else ""

    def _find_room(self, size_bytes: int) -> str:
        limit = self._options.backlog_bytes_max
        if limit is None:
            self._room_bytes = math.inf
            return ""
        spans, floor = self._spans(), self._floor()
        unread = unread_bytes(spans, floor)
        self._room_bytes = limit - unread - size_bytes
        if not unread or unread + size_bytes <= limit:
            return ""
        if self._options.backlog_policy == "hold":
            slowest = min(self._cursors, key=lambda name: self._cursors[name].mark, default="")
            who = f"cursor {show_text(slowest)!r} has not" if slowest else "no cursor has"
            behind = f"{who} acknowledged message {floor} and {unread} bytes from there on"
            return f"backlog_bytes_max ({limit}) is reached: {behind}"
        first = first_within(spans, max(0, limit - size_bytes))
        for cursor in self._cursors.values():
            cursor.evict(min(first, self.end))
        self._trim_soon()
        return ""

    def _trim_soon(self) -> None:
        if self._trimming is None and self._writing.ended is None and self._count_to_trim():
            self._trimming = self._home.tasks.start(self._trim())

    def _count_to_trim(self) -> int:
        if self._damaged:
            return 0
        now_ms = int(self._home.clock.wall_s() * 1000)
        # what cursors have stored counts, so that none is rolled back to what is deleted
        marks = (min(one.mark, one.stored_mark) for one in self._cursors.values())
        floor = min(marks, default=self.first - 1) + 1
        return ledgers_to_trim(self._spans(), floor, now_ms, self._options)

    async def _trim(self) -> None:
        """The list first, then the ledgers: what is in the list is never deleted."""
        try:
            count = self._count_to_trim()
            gone = self._owned.record.spans[:count]
            ledgers = {span.ledger for span in gone}

            def without(record: TopicRecord) -> TopicRecord:
                return record.without(sum(span.ledger in ledgers for span in record.spans))

            await self._owned.update(without)
        except QueueFenced as error:
            self.fence(error)
        except Corrupt as error:
            log.error("topic %s keeps all messages: %s", show_text(self.name), error)
        except StorageError:
            pass  # the next look tries again
        else:
            await asyncio.gather(*(self._delete(span.ledger) for span in gone))
        finally:
            self._trimming = None

    async def _delete(self, ledger: int) -> None:
        try:
            await self._home.ledgers.delete(ledger)
        except (LedgerError, StorageError):
            pass  # nothing refers to it: who looks for orphans finds it

    async def aclose(self) -> None:
        """End in order: what was sent is confirmed, the ledger has its end, cursors are stored.

        Takes twice `enqueue_wait_s` at most, and the time of the store; the next owner does what
        could not be done. Again is harmless.
        """
        await self._writing.close()
        for cursor in self._cursors.values():
            try:
                await cursor.aclose()
            except (QueueFenced, StorageError):
                pass  # what is not stored comes again
        await self._end_reading()

    async def let_go(self) -> None:
        """End as a crash would: nothing more is written, ledgers stay open."""
        self._writing.stop(QueueUnavailable(f"topic {show_text(self.name)} is closed here"))
        await self._writing.let_go()
        for cursor in self._cursors.values():
            cursor.let_go()
        await self._end_reading()

    async def _end_reading(self) -> None:
        trimming, self._trimming = self._trimming, None
        if trimming is not None:
            trimming.cancel()
            await asyncio.wait([trimming])
        await self._pages.aclose()


def wake(waiter: Future[None]) -> None:
    """Whoever waits looks again."""
    if not waiter.done():
        waiter.set_result(None)
