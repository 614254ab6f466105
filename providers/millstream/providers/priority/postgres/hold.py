"""The ownership of a queue in PostgreSQL by one owner, and its commits.

Owns `PostgresHold`.

Invariants:

- A commit is one transaction. It first changes the row of the queue under the owner's mark: epoch,
  nonce and number of commits. So a commit that is repeated, late, or after a loss of data in the
  server stores nothing, and a new owner waits for a commit that is in progress.
- The row of an outbox gives the positions of its events, and is locked until the commit ends. So
  events become visible in the order of their positions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from millstream.providers.priority.core.changes import Changes
from millstream.providers.priority.core.errors import OwnerLost
from millstream.providers.priority.store.hold import TAKEN_OVER
from millstream.runtime.postgres import ClusterDatabase, Session, execute

from .rows import (
    QueueHead,
    pack_answers,
    pack_event,
    pack_inserted,
    pack_sessions,
    pack_settings,
    pack_updated,
)
from .statements import Statements

__all__ = ["PostgresHold", "PostgresLane"]

log = logging.getLogger("millstream.priority")


class PostgresLane:
    """One outbox of a store, as this process knows it.

    Attributes:
        number: Its number.
        events: The events in it at the last look.
    """

    def __init__(self, number: int, check: Callable[[PostgresLane, str], None]) -> None:
        self.number = number
        self.events = 0
        self._check = check

    def check_room(self, queue: str) -> None:
        """Raise Overloaded if the outbox is full, as far as this process knows."""
        self._check(self, queue)


class PostgresHold:
    """The implementation of `store.hold.Hold`.

    Args:
        nonce: Unique to this owner, because a server that lost an acquisition gives its epoch
            again.
        dropping: Called after a deletion, to delete the rows of the queue.
    """

    def __init__(
        self,
        database: ClusterDatabase,
        statements: Statements,
        lane: PostgresLane,
        queue: str,
        head: QueueHead,
        nonce: str,
        dropping: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.epoch = head.epoch
        self._database = database
        self._sql = statements
        self._lane = lane
        self._number = head.number
        self._nonce = nonce
        self._commits = 0
        self._due_ms = head.due_ms
        self._dropping = dropping

    def is_held(self) -> None:
        """None: only the server knows."""

    def check_room(self) -> None:
        self._lane.check_room(self.queue)

    async def confirm(self) -> None:
        """Raise OwnerLost if another owner has taken the queue over."""
        await self._database.transact(self._confirm, is_change=False)

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        if changes is None and next_due_ms == self._due_ms:
            await self.confirm()
            return

        async def work(session: Session) -> int | None:
            if changes is None:
                await self._own(session, self._sql.set_due, (next_due_ms,))
                return None
            return await self._store(session, changes, next_due_ms)

        events = await self._database.transact(work)
        self._commits += 1
        self._due_ms = next_due_ms
        if events is not None:
            self._lane.events = events

    async def delete(self) -> None:
        async def work(session: Session) -> None:
            await self._own(session, self._sql.delete_queue, ())
            await execute(session, self._sql.put_dropped, (self._number,))

        await self._database.transact(work)
        self._dropping()

    def _mark(self) -> tuple[int, int, str, int]:
        return self._number, self.epoch, self._nonce, self._commits

    async def _confirm(self, session: Session) -> None:
        if not (await execute(session, self._sql.confirm, self._mark())).affected:
            await self._refuse(session)

    async def _own(self, session: Session, statement: str, values: Sequence[Any]) -> None:
        """Change the row of the queue. Raises OwnerLost."""
        if (await execute(session, statement, (*values, *self._mark()))).affected != 1:
            await self._refuse(session)

    async def _refuse(self, session: Session) -> None:
        found = (await execute(session, self._sql.find_mark, (self.queue.encode(),))).rows
        epoch, nonce, commits = found[0] if found else (0, "", 0)
        if epoch < self.epoch or nonce == self._nonce:
            what = "queue %r: %s lost acknowledged commits: its mark is %r, the owner has %r"
            own = f"{self.epoch}:{self._nonce}:{self._commits}"
            log.error(what, self.queue, self._database.place, f"{epoch}:{nonce}:{commits}", own)
        raise OwnerLost(self.queue, TAKEN_OVER)

    async def _store(
        self, session: Session, changes: Changes, next_due_ms: int | None
    ) -> int | None:
        """Store the changes. Returns the number of events in the outbox, if there are new ones."""
        await self._own(session, self._sql.set_head, (next_due_ms, *changes.counters))
        for statement, values in self._lists(changes):
            await execute(session, statement, values)
        if not changes.events:
            return None
        size, lane = len(changes.events), self._lane.number
        taken = await execute(session, self._sql.take_positions, (size, size, lane))
        last, events = taken.rows[0]
        positions = list(range(last - size + 1, last + 1))
        packed = [pack_event(event) for event in changes.events]
        await execute(session, self._sql.put_events, (lane, positions, packed))
        return int(events)

    def _lists(self, changes: Changes) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the statements of a commit, without those that have nothing to do."""
        sql, number = self._sql, self._number
        gone = [sequence for _, sequence in changes.deleted]
        sessions = [session.encode() for session in changes.sessions_ended]
        answers = [session.encode() for session, _ in changes.answers_ended]
        numbers = [answered for _, answered in changes.answers_ended]
        found: list[tuple[object, str, tuple[Any, ...]]] = [
            (gone, sql.delete_messages, (number, gone)),
            (changes.inserted, sql.insert_messages, (number, *pack_inserted(changes.inserted))),
            (changes.updated, sql.update_messages, (*pack_updated(changes.updated), number)),
            (sessions, sql.delete_sessions, (number, sessions)),
            (answers, sql.delete_answers, (answers, numbers, number)),
            (changes.sessions, sql.put_sessions, (number, *pack_sessions(changes.sessions))),
            (changes.answers, sql.put_answers, (number, *pack_answers(changes.answers))),
        ]
        if changes.settings is not None:
            version, settings = changes.settings
            values = (version, pack_settings(settings), number)
            found.append((True, sql.set_settings, values))
        return [(statement, values) for rows, statement, values in found if rows]
