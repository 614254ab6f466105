"""`MemoryStore`: priority queues in memory, for tests, simulations and benchmarks.

Owns `MemoryStore`, its tables and `CommitFaults`. Group commit is in `committing`.

Invariants: the contract of stores holds. A committed change survives every owner, but not the
process.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from heapq import nsmallest
from typing import Protocol

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.core.changes import (
    AnswerRow,
    Changes,
    Counters,
    MessageRow,
    SessionRow,
)
from millstream.providers.priority.core.core import PriorityCore, QueueRows
from millstream.providers.priority.core.errors import OwnerLost, PriorityQueueNotFound
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.runtime import Env, Overloaded, StorageUnavailable

from .committing import CommittingQueue
from .contract import StoredEvent
from .hold import TAKEN_OVER
from .limits import StoreLimits

__all__ = ["CommitFaults", "MemoryStore"]


class CommitFaults(Protocol):
    """Faults that tests inject into commits: they wait, or raise StorageUnavailable."""

    async def before(self, queue: str, /) -> None:
        """Called before a commit; if this raises, the commit is not stored."""
        ...

    async def after(self, queue: str, /) -> None:
        """Called after a commit is stored; if this raises, the owner does not know that it is."""
        ...


class Table:
    """The rows of one queue name. `settings` is None while the queue does not exist."""

    def __init__(self) -> None:
        self.epoch = 0
        self.counters = Counters()
        self.next_due_ms: int | None = None
        self.clear()

    def clear(self) -> None:
        self.settings: SettingsRow | None = None
        self.messages: dict[str, MessageRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.answers: dict[tuple[str, int], AnswerRow] = {}
        self.next_due_ms = None

    def apply(self, changes: Changes) -> None:
        self.counters = changes.counters
        self.settings = changes.settings or self.settings
        for id, _ in changes.deleted:
            del self.messages[id]
        for row in (*changes.inserted, *changes.updated):
            self.messages[row.id] = row
        for name in changes.sessions_ended:
            self.sessions.pop(name, None)
        for key in changes.answers_ended:
            self.answers.pop(key, None)
        for session in changes.sessions:
            self.sessions[session.session] = session
        for answer in changes.answers:
            self.answers[answer.session, answer.number] = answer

    def is_due(self, until_ms: int) -> bool:
        return self.next_due_ms is not None and self.next_due_ms <= until_ms

    def rows(self, settings: SettingsRow) -> QueueRows:
        return QueueRows(
            settings,
            self.counters,
            list(self.messages.values()),
            list(self.sessions.values()),
            list(self.answers.values()),
        )


class MemoryHold:
    """The ownership of a table by one owner."""

    def __init__(self, store: MemoryStore, queue: str, table: Table) -> None:
        self.queue = queue
        self.epoch = table.epoch
        self.check_room = partial(store.check_room, queue)
        self._store = store
        self._table = table

    def is_held(self) -> bool:
        return self._table.epoch == self.epoch

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        faults = self._store.faults
        if faults is not None:
            await faults.before(self.queue)
        if not self.is_held():
            raise OwnerLost(self.queue, TAKEN_OVER)
        if changes is not None:
            self._store.store(self._table, changes)
        self._table.next_due_ms = next_due_ms
        if faults is not None:
            await faults.after(self.queue)

    async def delete(self) -> None:
        faults = self._store.faults
        if faults is not None:
            await faults.before(self.queue)
        if not self.is_held():
            raise OwnerLost(self.queue, TAKEN_OVER)
        self._table.counters = self._table.counters.of_next()
        self._table.clear()
        if faults is not None:
            await faults.after(self.queue)


def page(names: Iterable[str], after: str, limit: int) -> list[str]:
    """Names in order, after the name `after`; at most `limit`."""
    return nsmallest(limit, (name for name in names if name > after))


class MemoryStore:
    """A store in memory, for tests and trials. Its queues end with the process.

    Silos of one process may share the object.

    Args:
        env: The environment that supplies the clock; None uses the real one.
        limits: Limits of waiting work.
        events: Whether every change of a message is written to the outbox.
            `PriorityQueues(changes=...)` relays the events.
        faults: Test hooks that are called around every commit.
    """

    outboxes = 1
    is_durable = False

    def __init__(
        self,
        env: Env | None = None,
        limits: StoreLimits | None = None,
        *,
        events: bool = False,
        faults: CommitFaults | None = None,
    ) -> None:
        self.faults = faults
        self.limits = limits or StoreLimits()
        self.keeps_events = events
        self._env = env or Env()
        self._tables: dict[str, Table] = {}
        self._events: list[StoredEvent] = []
        self._position = 0
        # another store's positions start again, so its name differs
        self._name = f"memory-{self._env.new_id():016x}"
        self._users = 0
        self._owned: dict[CommittingQueue, None] = {}

    async def open(self) -> None:
        """Open the store for one more user."""
        self._users += 1

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> CommittingQueue:
        """Acquire the ownership of a queue: see `PriorityStore`."""
        check_request_text(queue, "queue", queue)
        if self.faults is not None:
            await self.faults.before(queue)
        self._refuse_closed()
        table = self._tables.get(queue)
        if (table is None or table.settings is None) and create is None:
            raise PriorityQueueNotFound(queue, "there is no such queue")
        if table is None:
            table = self._tables[queue] = Table()
        table.epoch += 1
        hold = MemoryHold(self, queue, table)
        core = self._open(queue, table, create)
        owned = CommittingQueue(core, table.next_due_ms, hold, self._env, self.limits, self._forget)
        self._owned[owned] = None
        return owned

    def _open(self, queue: str, table: Table, create: QueueSettings | None) -> PriorityCore:
        keeps = self.keeps_events
        if table.settings is not None:
            return PriorityCore(queue, table.rows(table.settings), keeps_events=keeps)
        assert create is not None, "without settings, a missing queue was refused"
        now_ms, counters = int(self._env.wall_s() * 1000), table.counters
        core = PriorityCore.create(now_ms, queue, create, counters, keeps_events=keeps)
        changes = core.drain()
        assert changes is not None, "a new queue has settings to store"
        table.apply(changes)
        return core

    def _forget(self, owned: CommittingQueue) -> None:
        self._owned.pop(owned, None)

    def check_room(self, queue: str) -> None:
        """Raise Overloaded if the outbox is full."""
        if self.keeps_events and len(self._events) >= self.limits.events_max:
            what = f"queue {queue!r}: the outbox has too many events to relay"
            raise Overloaded(what, "events_max", self.limits.events_max)

    def store(self, table: Table, changes: Changes) -> None:
        """Store changes and their events."""
        table.apply(changes)
        for event in changes.events:
            self._position += 1
            self._events.append(StoredEvent(self._position, event))

    async def due(self, until_ms: int, after: str, limit: int, /) -> list[str]:
        """Names of queues with work that is due by a time: see `PriorityStore`."""
        self._refuse_closed()
        names = (name for name, table in self._tables.items() if table.is_due(until_ms))
        return page(names, after, limit)

    async def queues(self, prefix: str, after: str, limit: int, /) -> list[str]:
        """Names of queues with a prefix: see `PriorityStore`."""
        self._refuse_closed()
        tables = self._tables.items()
        names = (name for name, table in tables if table.settings and name.startswith(prefix))
        return page(names, after, limit)

    async def events(self, outbox: int, after: int, limit: int, /) -> list[StoredEvent]:
        """Return events of the outbox after a position. See `PriorityStore`."""
        self._refuse_closed()
        start = bisect_right(self._events, after, key=lambda one: one.position)
        return self._events[start : start + limit]

    async def outbox_name(self, outbox: int, /) -> str:
        """The unique name of the outbox: see `PriorityStore`."""
        return self._name

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete the events of the outbox up to and including a position."""
        self._refuse_closed()
        del self._events[: bisect_right(self._events, through, key=lambda one: one.position)]

    async def aclose(self) -> None:
        """Close the store for one user; the last one releases all queues."""
        self._users = max(self._users - 1, 0)
        if not self._users:
            await asyncio.gather(*(owned.release() for owned in list(self._owned)))

    def _refuse_closed(self) -> None:
        if not self._users:
            raise StorageUnavailable("this priority store is not open")
