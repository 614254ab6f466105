"""The topics of one cluster of ledgers, as one process uses them.

Owns: `Topics`: opening, reading, deleting, and the search for ledgers that nobody needs. Not: the
work of a topic (`topic`). Invariants: a ledger is deleted only if no topic lists it or can list it
again. That is so when the topic has trimmed it, or when its maker no longer owns the topic. It is
fenced before, so an owner whose topic was deleted acknowledges nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.providers.ledger.metadata.ledgers import ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime import ConfigError, Corrupt, QueueUnavailable, StorageError
from millstream.runtime.extending import Clock, Tasks, check_text, show_text

from .appending.outbox import Outbox
from .appending.producers import Producers
from .appending.takeover import take_over
from .cursors.cursor import cursor_rows
from .form import FRAME_BYTES
from .ledgers import Ledgers
from .options import LedgerTopicOptions, LedgerTopicSettings
from .reading.reader import TopicReader
from .record import TopicRecord, topic_rows
from .topic import Topic, TopicHome

__all__ = ["ORPHAN_AFTER_S", "Topics"]

log = logging.getLogger("millstream.ledger")

ORPHAN_AFTER_S = 3600.0
"""A ledger that its topic does not list is deleted at this age."""
SWEEP_EVERY_S = 3600.0
NAME_CHARS_MAX = 200


class Topics:
    """Opens and reads topics.

    Args:
        ledgers: the ledgers of the cluster.
        metadata: the rows of the same cluster, with an owner name that only this process has.
        clock: the clock of the silo.
        tasks: the tasks of the silo, which end with it.
    """

    def __init__(self, ledgers: Ledgers, metadata: Metadata, clock: Clock, tasks: Tasks) -> None:
        topics, cursors = topic_rows(metadata), cursor_rows(metadata)
        self._home = TopicHome(ledgers, topics, cursors, clock, tasks)
        self._rows = ledger_rows(metadata)
        self._holder = metadata.writer

    async def open(
        self,
        name: str,
        epoch: int,
        options: LedgerTopicOptions | None = None,
        settings: LedgerTopicSettings | None = None,
    ) -> Topic:
        """Become the owner of a topic, and fence the former owner. Create a topic that is missing.

        Each call writes the row of the topic and the row of each cursor, and reads the entries
        since the last snapshot of producers. If the former owner did not close the topic, the call
        also recovers the open ledger.

        Args:
            epoch: higher than any before. Only the same process may use an epoch again, and its
                former topic is fenced then.
            settings: apply from the next ledger on; None: the stored ones.

        Raises QueueFenced (another process has this epoch, or there is a higher one), Corrupt (a
        row is damaged, or older than before), QueueUnavailable (rows or ledgers cannot be read or
        written now: open it again), ConfigError.
        """
        check_name(name)
        chosen = options or LedgerTopicOptions()
        limit = chosen.entry_bytes_max - FRAME_BYTES
        producers = Producers(chosen.producers_max, limit)
        home = self._home
        taken = await take_over(
            home.ledgers, home.topics, name, epoch, self._holder, settings, producers
        )
        record = taken.owned.record
        outbox = Outbox(
            producers,
            record.next,
            record.last_ms,
            chosen.entry_bytes_max,
            chosen.snapshot_entries,
        )
        topic = Topic(home, taken, outbox, chosen)
        try:
            await topic.begin()
        except Corrupt:
            await topic.let_go()
            raise
        except StorageError as error:
            await topic.let_go()
            text = f"topic {show_text(name)}: its cursors cannot be read: {error}"
            raise QueueUnavailable(text) from error
        except BaseException:
            await topic.let_go()
            raise
        return topic

    async def find(self, name: str) -> TopicRecord | None:
        """Return the row of a topic, or None if the topic was never opened.

        Raises Corrupt, QueueUnavailable.
        """
        try:
            return await self._home.topics.read(name)
        except Corrupt:
            raise
        except StorageError as error:
            raise QueueUnavailable(f"topic {show_text(name)} cannot be read: {error}") from error

    async def last_epoch(self, name: str) -> int:
        """Return the epoch in which a topic was opened last, or 0 if it was never opened.

        Raises Corrupt, QueueUnavailable.
        """
        record = await self.find(name)
        return 0 if record is None else record.epoch

    async def marks(self, name: str) -> dict[str, int]:
        """Return the cursors of a topic, each with its stored mark.

        Raises Corrupt, QueueUnavailable.
        """
        found = await self.find(name)
        cursors = () if found is None else found.cursors
        try:
            rows = [(one, await self._home.cursors.read((name, one))) for one in cursors]
        except Corrupt:
            raise
        except StorageError as error:
            text = f"topic {show_text(name)}: its cursors cannot be read: {error}"
            raise QueueUnavailable(text) from error
        return {one: row.mark for one, row in rows if row is not None}

    def reader(self, name: str) -> TopicReader:
        """Return a reader of a topic that works in any process, independently of the owner.

        Close the reader by `aclose`.
        """
        check_name(name)
        return TopicReader(self._home.ledgers, self._home.topics, name, self._home.clock.now)

    async def delete(self, name: str) -> None:
        """Delete a topic without an owner: its cursors, its row, then its ledgers.

        Repeating it does no harm. Raises StorageError: delete it again.
        """
        record = await self._home.topics.read(name)
        if record is None:
            await self._home.topics.end_deletion(name)
            return
        for cursor in record.cursors:
            await self._home.cursors.delete((name, cursor))
        await self._home.topics.delete(name)
        for span in record.spans:
            # an open ledger is fenced, so that a living owner acknowledges nothing more
            if span.is_sealed or await self._fence(span.ledger):
                await self._delete(span.ledger)

    async def sweep(self) -> int:
        """Delete ledgers that a topic does not list any more, or never listed; return how many.

        A crash between two writes leaves such ledgers. Reads the rows of all ledgers. A ledger
        stays if its row or its topic's row is damaged. Raises StorageError.
        """
        deleted = 0
        async for record in self._rows.scan():
            if await self._is_orphan(record) and await self._fence(record.ledger):
                deleted += await self._delete(record.ledger)
        return deleted

    async def keep_swept(self, runs_here: Callable[[], bool]) -> None:
        """Sweep every `SWEEP_EVERY_S` if `runs_here` says so; never ends."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if runs_here():
                try:
                    await self.sweep()
                except StorageError as error:
                    log.info("could not look for ledgers without a topic: %s", error)

    async def _is_orphan(self, record: LedgerRecord) -> bool:
        is_young = self._home.clock.wall_s() - record.created_s < ORPHAN_AFTER_S
        if is_young or not record.topic:
            return False
        try:
            topic = await self._home.topics.read(record.topic)
        except Corrupt as error:
            self._home.topics.tell(record.topic, error)
            return False
        if topic is None:
            return True
        if topic.lists(record.ledger):
            return False
        # an owner that made it, and still owns the topic, may list it at any time
        return record.first < topic.trimmed or record.owner < topic.owner

    async def _fence(self, ledger: int) -> bool:
        """Fence a ledger for good. Return False if the fence is not certain yet."""
        try:
            await self._home.ledgers.recover(ledger)
        except LedgerGone:  # it was deleted, or its deletion stopped halfway
            return True
        except (LedgerError, StorageError) as error:
            log.info("the deletion of ledger %d is postponed: %s", ledger, error)
            return False
        return True

    async def _delete(self, ledger: int) -> bool:
        try:
            await self._home.ledgers.delete(ledger)
        except LedgerError as error:
            log.info("the deletion of ledger %d is postponed: %s", ledger, error)
            return False
        return True


def check_name(name: str) -> None:
    """Raise ConfigError or TypeError unless this can be the name of a topic."""
    check_text("the name of a topic", name)
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        text = f"the name of a topic has {len(name)} characters"
        raise ConfigError(f"{text}; it must have 1 to {NAME_CHARS_MAX}")
