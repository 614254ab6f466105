"""A managed topic in the hands of its owner: append, read, cursors, retention.

Owns: `Topic`, which puts the parts together. Not: appending (`appending.topic_writer`), reading
(`reading.owner_reader`), cursors (`cursors.cursors`), deleting (`cursors.trimmer`).
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.runtime import QueueFenced, QueueUnavailable, StreamError
from millstream.runtime.extending import Clock, Tasks, show_text

from .appending.outbox import Outbox
from .appending.takeover import Taken
from .appending.topic_writer import TopicWriter
from .cursors.cursor import CursorKey, CursorRecord
from .cursors.cursors import Backlog, Cursors
from .cursors.trimmer import Trimmer
from .form import TopicMessage
from .ledgers import Ledgers, delete_unlisted
from .options import LedgerTopicOptions, LedgerTopicSettings
from .reading.owner_reader import OwnerReader
from .record import TopicRecord

__all__ = ["Topic", "TopicHome"]


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

    Attributes: `reader`, `cursors`.
    """

    def __init__(
        self, home: TopicHome, taken: Taken, outbox: Outbox, options: LedgerTopicOptions
    ) -> None:
        owned = self._owned = taken.owned
        self._outbox = outbox
        self._tasks = home.tasks
        self._tend_every_s = options.tend_every_s
        self._timer: asyncio.TimerHandle | None = None
        self.reader = OwnerReader(
            home.ledgers, home.topics, owned, outbox, options.cache_bytes_max, home.tasks
        )
        self.cursors = Cursors(
            home.cursors,
            owned,
            self.reader,
            options,
            home.tasks,
            moved=self._on_cursor_moved,
            stored=self._on_cursor_stored,
            fenced=self._on_fenced,
        )
        self._backlog = Backlog(owned, outbox, self.cursors, options)
        self._writer = TopicWriter(
            home.ledgers,
            owned,
            outbox,
            options,
            home.clock,
            home.tasks,
            confirmed=self.reader.add,
            ended=self._on_ended,
            why_full=self._backlog.why_full,
        )
        self._trimmer = Trimmer(
            home.ledgers,
            owned,
            outbox,
            self.cursors,
            options,
            home.clock,
            home.tasks,
            fenced=self._on_fenced,
        )
        for ledger in taken.empty:
            home.tasks.start(delete_unlisted(home.ledgers, ledger))

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
    def has_ended(self) -> bool:
        """Was it closed here, or taken over by another one?"""
        return self._writer.ended is not None

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
        return self._writer.append(messages)

    async def change(self, settings: LedgerTopicSettings) -> None:
        """Other settings, from the next ledger on. Raises QueueFenced, StorageError."""
        await self._owned.update(lambda record: msgspec.structs.replace(record, settings=settings))

    async def begin(self) -> None:
        """Load the stored cursors, and look at age and retention from now on.

        Raises QueueFenced, Corrupt (a cursor is ahead of the topic), StorageError.
        """
        await self.cursors.load()
        self._tend()

    def _tend(self) -> None:
        if not self.has_ended:
            self._writer.tend()
            self._trimmer.trim_soon()
            self._timer = self._tasks.call_later(self._tend_every_s, self._tend)

    def _on_cursor_moved(self) -> None:
        """There may be room for appends, or less of it."""
        self._backlog.measure_again()
        self._writer.pump()

    def _on_cursor_stored(self) -> None:
        """There may be less to keep."""
        if not self.has_ended:
            self._trimmer.trim_soon()

    def _on_fenced(self, error: QueueFenced) -> None:
        """Another owner was seen."""
        self._writer.stop(error)

    def _on_ended(self, error: StreamError) -> None:
        """Nothing can be appended any more."""
        self.reader.stop(error)
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        """End in order: what was sent is confirmed, the ledger has its end, cursors are stored.

        Takes twice `enqueue_wait_s` at most, and the time of the store; the next owner does what
        could not be done. Again is harmless.
        """
        await self._writer.close()
        await self.cursors.aclose()
        await self._trimmer.aclose()
        await self.reader.aclose()

    async def let_go(self) -> None:
        """End as a crash would: nothing more is written, ledgers stay open."""
        self._writer.stop(QueueUnavailable(f"topic {show_text(self.name)} is closed here"))
        await self._writer.let_go()
        self.cursors.let_go()
        await self._trimmer.aclose()
        await self.reader.aclose()
