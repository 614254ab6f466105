"""A managed topic, as its owner uses it: append, read, cursors, retention.

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
    """The surroundings of the topics of one process: ledgers, rows, the clock, and tasks that end
    with it."""

    ledgers: Ledgers
    topics: RecordRows[str, TopicRecord]
    cursors: RecordRows[CursorKey, CursorRecord]
    clock: Clock
    tasks: Tasks


class Topic:
    """Numbered messages, stored in ledgers. Made by `Topics.open`, and closed by `aclose`.

    Only its owner appends. After another process has opened it in a higher epoch, appends in flight
    fail with PublishUnknown, and later ones with QueueFenced. Close it then.

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
        """The epoch in which the topic was opened."""
        return self._owned.record.epoch

    @property
    def record(self) -> TopicRecord:
        """The row of the topic, as this owner last wrote it."""
        return self._owned.record

    @property
    def has_ended(self) -> bool:
        """Whether the topic was closed here, or taken over by another process."""
        return self._writer.ended is not None

    @property
    def in_flight_bytes(self) -> int:
        """The bytes that were sent and are not confirmed."""
        return self._outbox.sent_bytes

    def append(self, messages: Sequence[TopicMessage]) -> Future[list[int | None]]:
        """Store messages in order. The future has their numbers once all of them are durable.

        Appends are pipelined, and stored in the order of calls. A message whose
        sequence is not above the highest one of its producer is not stored again: the future has
        the number of the stored message, or None if that number is not known any more. An append
        that is cancelled while it waits for room is never sent.

        The future fails with QueueFull, QueueUnavailable (none of them is stored), PublishUnknown
        (they may be stored, also later: send the same sequences again), QueueFenced (none is
        stored, and another process owns the topic). Raises, at once: ValueError (a message is above
        `entry_bytes_max`), QueueFull, QueueUnavailable (closed), QueueFenced.
        """
        return self._writer.append(messages)

    async def change(self, settings: LedgerTopicSettings) -> None:
        """Store other settings, which apply from the next ledger on. Raises QueueFenced,
        StorageError."""
        await self._owned.update(lambda record: msgspec.structs.replace(record, settings=settings))

    async def begin(self) -> None:
        """Load the stored cursors, and start the regular checks of age and retention.

        Raises QueueFenced, Corrupt (a cursor is beyond the topic's end), StorageError.
        """
        await self.cursors.load()
        self._tend()

    def _tend(self) -> None:
        if not self.has_ended:
            self._writer.tend()
            self._trimmer.trim_soon()
            self._timer = self._tasks.call_later(self._tend_every_s, self._tend)

    def _on_cursor_moved(self) -> None:
        """Measure the backlog again, and send waiting appends that now have room."""
        self._backlog.measure_again()
        self._writer.pump()

    def _on_cursor_stored(self) -> None:
        """Trim the topic soon, because fewer messages may be needed."""
        if not self.has_ended:
            self._trimmer.trim_soon()

    def _on_fenced(self, error: QueueFenced) -> None:
        """Stop the writer, because another owner was seen."""
        self._writer.stop(error)

    def _on_ended(self, error: StreamError) -> None:
        """Stop the reader, because nothing more can be appended."""
        self.reader.stop(error)
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        """Close in order: sent messages are confirmed, the ledger is closed, cursors are stored.

        Takes at most twice `enqueue_wait_s`, plus the time of the store. The next owner completes
        the rest. It does no harm to close twice.
        """
        await self._writer.close()
        await self.cursors.aclose()
        await self._trimmer.aclose()
        await self.reader.aclose()

    async def let_go(self) -> None:
        """End like a crash: nothing more is written, and ledgers stay open."""
        self._writer.stop(
            QueueUnavailable(f"topic {show_text(self.name)} is closed in this process")
        )
        await self._writer.let_go()
        self.cursors.let_go()
        await self._trimmer.aclose()
        await self.reader.aclose()
