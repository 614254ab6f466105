"""`PostgresStore`: durable priority queues in PostgreSQL, for the silos of several machines.

Owns `PostgresStore`. Group commit is in `store.committing`, commits are in `hold`, the stored form
is in `rows` and `statements`, and the connections are in `providers.postgres`.

Invariants: the contract of stores holds. A commit is one transaction under the owner's mark.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.core.changes import MessageRow, SessionRow
from millstream.providers.priority.core.core import PriorityCore, QueueRows
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.store.committing import CommittingQueue
from millstream.providers.priority.store.contract import StoredEvent
from millstream.providers.priority.store.hold import Hold
from millstream.providers.priority.store.limits import StoreLimits
from millstream.providers.priority.store.schema import FILES as LANES
from millstream.providers.priority.store.schema import file_index as lane_of
from millstream.runtime import ConfigError, Env, MillstreamError, Overloaded, StorageUnavailable
from millstream.runtime.extending import Tasks
from millstream.runtime.postgres import (
    ClusterDatabase,
    PostgresOptions,
    Session,
    execute,
    key_range,
)

from .hold import PostgresHold, PostgresLane
from .rows import (
    QueueHead,
    pack_settings,
    queue_head,
    unpack_answer,
    unpack_event,
    unpack_message,
)
from .statements import Statements

__all__ = ["PostgresStore"]

log = logging.getLogger("millstream.priority")
SLOW_S = 0.1
"""An opening that takes at least this long is logged at level INFO, a shorter one at DEBUG."""
IN_PLACE_MAX = 1_000
"""Messages of a queue that is opened without a thread."""
PAGE_ROWS = 1_000
"""Rows of one statement that reads a queue."""
DROPPED_AT_ONCE = 2_000
"""Rows of deleted queues, or forgotten events, that one transaction deletes."""


class PostgresStore:
    """A durable store in a PostgreSQL database, which the silos of several machines may share.

    Each silo has its own `PostgresStore` with the same URL. Its tables are in the schema of the
    cluster, beside those of `PostgresMembershipTable` and `PostgresStateStore`.

    A commit is one transaction, and its answers leave when the transaction is on the server's disk.
    Keep the clocks of the silos synchronised (NTP): when a queue moves to a silo whose clock is
    ahead, its leases end so much earlier. A failover to a standby that lacks the last commits loses
    these; the store notices the loss, and continues with the stored rows.

    Args:
        url: `postgresql://user:password@host:port/database`. The parameter `schema` replaces that
            of `options`.
        env: The environment that supplies the clock; None uses the real one.
        limits: Limits of waiting work.
        events: Whether every change of a message is written to the outbox.
            `PriorityQueues(changes=...)` relays the events. Without it, read `events` and call
            `forget_events`, or the outbox fills up to `events_max` and queues refuse work.
        options: Limits of the connections, and the schema. None: the defaults.

    Raises:
        ConfigError: The URL is not valid. When the store is opened: the server refuses the user or
            the password, or the schema has another version.
    """

    outboxes = LANES
    is_durable = True

    def __init__(
        self,
        url: str,
        env: Env | None = None,
        limits: StoreLimits | None = None,
        *,
        events: bool = False,
        options: PostgresOptions | None = None,
    ) -> None:
        self.limits = limits or StoreLimits()
        self.keeps_events = events
        self._env = env or Env()
        self._make = partial(ClusterDatabase, "priority store", url, options, self._env)
        database = self._make()
        self.place = database.place
        self._sql = Statements(database.schema)
        self._lanes = [PostgresLane(number, self._check_room) for number in range(LANES)]
        self._users = 0
        self._opening = asyncio.Lock()
        self._open_database: ClusterDatabase | None = None
        self._tasks: Tasks | None = None
        self._counting: dict[int, asyncio.Task[None]] = {}
        self._owned: dict[CommittingQueue, None] = {}

    async def open(self) -> None:
        """Open the store for one more user, and check the schema."""
        async with self._opening:
            if self._open_database is None:
                database = self._make()
                try:
                    await database.open()
                except BaseException:
                    await database.aclose()
                    raise
                self._open_database = database
                self._tasks = Tasks(asyncio.get_running_loop(), self._env.new_context)
                self._start_dropping()
            self._users += 1

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> CommittingQueue:
        """Acquire the ownership of a queue: see `PriorityStore`."""
        check_request_text(queue, "queue", queue)
        database, lane = self._database(), self._lanes[lane_of(queue)]
        begun_s, nonce = self._env.wall_s(), self._env.random_bytes(8).hex()
        head = await self._acquire(database, queue, create, nonce)
        own = (database, self._sql, lane, queue, head, nonce, self._start_dropping)
        hold = PostgresHold(*own)
        rows, count = await self._load(database, head)
        await hold.confirm()  # nobody else has changed the rows meanwhile
        if self.keeps_events:
            await self._count(lane)
        core = await self._core(queue, rows, count)
        took_s = self._env.wall_s() - begun_s
        level = logging.INFO if took_s >= SLOW_S else logging.DEBUG
        log.log(level, "queue %r: opened with %d messages in %.3f s", queue, count, took_s)
        ended = self._forget
        owned = CommittingQueue(core, head.due_ms, self._hold(hold), self._env, self.limits, ended)
        self._database()
        self._owned[owned] = None
        return owned

    def _hold(self, hold: PostgresHold) -> Hold:
        return hold

    async def _acquire(
        self, database: ClusterDatabase, queue: str, create: QueueSettings | None, nonce: str
    ) -> QueueHead:
        """Raise the epoch, and create the queue if it is missing."""
        name = queue.encode()
        if create is None:
            found = await database.run(self._sql.acquire, (nonce, name))
        else:
            now_ms = int(self._env.wall_s() * 1000)
            values = (name, nonce, pack_settings(create), now_ms)
            found = await database.run(self._sql.create, values)
        if not found.rows:
            raise PriorityQueueNotFound(queue, "there is no such queue")
        return queue_head(found.rows[0])

    async def _load(self, database: ClusterDatabase, head: QueueHead) -> tuple[QueueRows, int]:
        """Return all rows of a queue, and the number of its messages."""
        messages: list[MessageRow] = []
        after = 0
        while True:
            values = (head.number, after, PAGE_ROWS)
            page = (await database.run(self._sql.find_messages, values, is_change=False)).rows
            messages += map(unpack_message, page)
            if len(page) < PAGE_ROWS:
                break
            after = page[-1][0]
        number = (head.number,)
        sessions = await database.run(self._sql.find_sessions, number, is_change=False)
        answers = await database.run(self._sql.find_answers, number, is_change=False)
        rows = QueueRows(
            head.settings,
            head.counters,
            iter(messages),
            [SessionRow(name.decode(), *rest) for name, *rest in sessions.rows],
            [unpack_answer(columns) for columns in answers.rows],
        )
        return rows, len(messages)

    async def _core(self, queue: str, rows: QueueRows, count: int) -> PriorityCore:
        make = partial(PriorityCore, queue, rows, keeps_events=self.keeps_events)
        if count <= IN_PLACE_MAX:
            return make()
        return await asyncio.get_running_loop().run_in_executor(None, make)

    def _forget(self, owned: CommittingQueue) -> None:
        self._owned.pop(owned, None)

    # -- lists of queues

    async def due(self, until_ms: int, after: str, limit: int, /) -> list[str]:
        """Names of queues with work that is due by a time: see `PriorityStore`."""
        values = (until_ms, after.encode(), limit)
        found = await self._database().run(self._sql.find_due, values, is_change=False)
        return [name.decode() for (name,) in found.rows]

    async def queues(self, prefix: str, after: str, limit: int, /) -> list[str]:
        """Names of queues with a prefix: see `PriorityStore`."""
        low, above, high = key_range(prefix, after)
        values = (low, above, high, high, limit)
        found = await self._database().run(self._sql.find_queues, values, is_change=False)
        return [name.decode() for (name,) in found.rows]

    # -- the outboxes

    async def events(self, outbox: int, after: int, limit: int, /) -> list[StoredEvent]:
        """Return events of an outbox after a position. See `PriorityStore`."""
        values = (self._lane(outbox).number, after, limit)
        found = await self._database().run(self._sql.find_events, values, is_change=False)
        return [StoredEvent(position, unpack_event(event)) for position, event in found.rows]

    async def outbox_name(self, outbox: int, /) -> str:
        """The unique name of an outbox: see `PriorityStore`.

        It has the identity of the schema, so an outbox that was restored has another name.
        """
        database, number = self._database(), self._lane(outbox).number
        found = await database.run(self._sql.find_lane, (number,), is_change=False)
        identity = (await database.identity()).replace(" ", "").replace(",", "-")
        return f"postgres-{found.rows[0][0]}-{identity}"

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete the events of an outbox up to and including a position."""
        database, lane = self._database(), self._lane(outbox)
        values = (lane.number, lane.number, through, DROPPED_AT_ONCE, lane.number)
        count = DROPPED_AT_ONCE
        while count == DROPPED_AT_ONCE:
            found = await database.run(self._sql.forget_events, values)
            lane.events, count = found.rows[0]

    def _check_room(self, lane: PostgresLane, queue: str) -> None:
        """Raise Overloaded if an outbox is full, and look at it again, because other processes may
        have forgotten events.
        """
        if not self.keeps_events or lane.events < self.limits.events_max:
            return
        counting = self._counting.get(lane.number)
        if self._tasks is not None and (counting is None or counting.done()):
            self._counting[lane.number] = self._tasks.start(self._recount(lane))
        what = f"queue {queue!r}: outbox {lane.number} has too many events to relay"
        raise Overloaded(what, "events_max", self.limits.events_max)

    async def _recount(self, lane: PostgresLane) -> None:
        with suppress(MillstreamError):
            await self._count(lane)

    async def _count(self, lane: PostgresLane) -> None:
        values = (lane.number,)
        found = await self._database().run(self._sql.find_lane, values, is_change=False)
        lane.events = found.rows[0][1]

    def _lane(self, outbox: int) -> PostgresLane:
        if not 0 <= outbox < LANES:
            raise ConfigError(f"outbox is {outbox}, not 0 to {LANES - 1}")
        return self._lanes[outbox]

    # -- rows of deleted queues

    def _start_dropping(self) -> None:
        if self._tasks is not None:
            self._tasks.start(self._drop_all())

    async def _drop_all(self) -> None:
        """Delete the rows of deleted queues. After a failure the next opening continues."""
        with suppress(MillstreamError):
            while await self._database().transact(self._drop):
                pass

    async def _drop(self, session: Session) -> bool:
        found = (await execute(session, self._sql.find_dropped)).rows
        if not found:
            return False
        number = found[0][0]
        values = (number, number, DROPPED_AT_ONCE)
        gone = await execute(session, self._sql.drop_messages, values)
        if gone.affected < DROPPED_AT_ONCE:
            for statement in self._sql.drop_rest:
                await execute(session, statement, (number,))
        return True

    # -- closing

    def _database(self) -> ClusterDatabase:
        if self._open_database is None or not self._users:
            raise StorageUnavailable(f"{self.place}: this priority store is not open")
        return self._open_database

    async def aclose(self) -> None:
        """Close the store for one user; the last one releases all queues."""
        async with self._opening:
            self._users = max(self._users - 1, 0)
            database, tasks = self._open_database, self._tasks
            if self._users or database is None or tasks is None:
                return
            self._open_database = self._tasks = None
            await asyncio.gather(*(one.release() for one in list(self._owned)))
            await tasks.aclose()
            await database.aclose()
