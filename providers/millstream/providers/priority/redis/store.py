"""`RedisStore`: durable priority queues in Redis, for the silos of several machines.

Owns `RedisStore`. Group commit is in `store.committing`, connections are in `server`, and the
stored form is in `rows` and `scripts`.

Invariants: the contract of stores holds. A commit is one script that compares the owner's mark. Its
answers leave when the server has given the guarantee that `durability` names.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.core.core import PriorityCore, QueueRows
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.store.committing import CommittingQueue
from millstream.providers.priority.store.contract import StoredEvent
from millstream.providers.priority.store.hold import Hold
from millstream.providers.priority.store.limits import StoreLimits
from millstream.runtime import ConfigError, Env, Overloaded, StorageError, StorageUnavailable

from .hold import RedisHold, mark_of
from .keys import LANES, lane_keys, lane_of, queue_keys
from .loading import QueueReader
from .options import RedisOptions
from .rows import Head, event_of, head_of, pack_settings
from .scripts import ACQUIRE, FORM, NAME
from .server import Server, check_address, show_address

__all__ = ["RedisStore"]

log = logging.getLogger("millstream.priority")
SLOW_S = 0.1
"""An opening that takes at least this long is logged at level INFO, a shorter one at DEBUG."""
IN_PLACE_MAX = 1_000
"""Messages of a queue that is opened without a thread."""


class StoreLane:
    """One of the sixteen parts of the store, as this process knows it."""

    def __init__(self, store: RedisStore, number: int) -> None:
        self.keys = lane_keys(store.options.prefix, number)
        self.events = 0  # events in its outbox at the last look
        self.counting: asyncio.Task[None] | None = None
        self._store = store
        self._number = number

    def has_events(self, count: int) -> None:
        self.events = count

    def check_room(self, queue: str) -> None:
        store = self._store
        if store.keeps_events and self.events >= store.limits.events_max:
            if self.counting is None or self.counting.done():
                # other processes may have forgotten events
                self.counting = store.start_counting(self)
            what = f"queue {queue!r}: outbox {self._number} has too many events to relay"
            raise Overloaded(what, "events_max", store.limits.events_max)


class RedisStore:
    """A durable store in a Redis server, which the silos of several machines may share.

    It needs Redis 7.0 or later with `appendonly yes`, `appendfsync always` and `maxmemory-policy
    noeviction`; `RedisOptions.durability` may ask for less. Replicas and Redis Cluster are refused.
    Each silo has its own `RedisStore` with the same address and `prefix`.

    A commit is one script. It costs one fsync of the server, which all commits at the same time
    share. Keep the clocks of the silos synchronised (NTP): when a queue moves to a silo whose clock
    is ahead, its leases end so much earlier. A failover of Redis to a replica may lose the last
    answers; the store notices it, and continues with the stored rows.

    Args:
        address: `redis://host:port/db`, `rediss://` with TLS, or `unix:///path?db=0`.
        env: The environment that supplies the clock; None uses the real one.
        limits: Limits of waiting work.
        events: Whether every change of a message is written to the outbox.
            `PriorityQueues(changes=...)` relays the events. Without it, read `events` and call
            `forget_events`, or the outbox fills up to `events_max` and queues refuse work.
        options: How the store uses the server.

    Raises:
        ConfigError: The address is not valid. When the store is opened: the server guarantees less
            than requested, refuses the password, or is a replica or part of a Redis Cluster.
    """

    outboxes = LANES

    def __init__(
        self,
        address: str,
        env: Env | None = None,
        limits: StoreLimits | None = None,
        *,
        events: bool = False,
        options: RedisOptions | None = None,
    ) -> None:
        self.limits = limits or StoreLimits()
        self.options = options or RedisOptions()
        self.keeps_events = events
        self._env = env or Env()
        self._address = check_address(address)
        self._lanes = [StoreLane(self, number) for number in range(LANES)]
        self._users = 0
        self._opening = asyncio.Lock()
        self._open_server: Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._owned: dict[CommittingQueue, None] = {}

    @property
    def is_durable(self) -> bool:
        """Whether `durability` is `"always"`, which the store checks when it is opened."""
        return self.options.durability == "always"

    @property
    def place(self) -> str:
        """The server and the prefix, on which silos of one cluster must agree."""
        return f"{show_address(self._address)} {self.options.prefix}"

    async def open(self) -> None:
        """Open the store for one more user, and check the settings of the server."""
        async with self._opening:
            if self._open_server is None:
                server = Server(self._address, self.options)
                try:
                    await server.open()
                except BaseException:
                    await server.aclose()
                    raise
                self._open_server = server
                loop, context = asyncio.get_running_loop(), self._env.new_context()
                self._watching = loop.create_task(server.watch(), context=context)
            self._users += 1

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> CommittingQueue:
        """Acquire the ownership of a queue: see `PriorityStore`."""
        check_request_text(queue, "queue", queue)
        server, keys = self._server(), queue_keys(self.options.prefix, queue)
        lane = self._lanes[lane_of(queue)]
        begun_s, nonce = self._env.wall_s(), self._env.random_bytes(8).hex()
        head = await self._acquire(server, lane, queue, create, nonce)
        mark = mark_of(head.epoch, nonce, 0)
        reader = QueueReader(server, self.options, queue, keys, mark)
        rows, count = await reader.read(head)
        core = await self._core(queue, rows, count)
        took_s = self._env.wall_s() - begun_s
        level = logging.INFO if took_s >= SLOW_S else logging.DEBUG
        log.log(level, "queue %r: opened with %d messages in %.3f s", queue, count, took_s)
        hold = self._hold(RedisHold(server, lane, queue, keys, head.epoch, nonce, head.due_ms))
        owned = CommittingQueue(core, head.due_ms, hold, self._env, self.limits, self._forget)
        self._server()
        self._owned[owned] = None
        return owned

    def _hold(self, hold: RedisHold) -> Hold:
        return hold

    async def _acquire(
        self,
        server: Server,
        lane: StoreLane,
        queue: str,
        create: QueueSettings | None,
        nonce: str,
    ) -> Head:
        """Raise the epoch, and create the queue if it is missing."""
        keys = [*queue_keys(self.options.prefix, queue), lane.keys.lane]
        keys += [lane.keys.names, lane.keys.due, lane.keys.events]
        settings = b"" if create is None else pack_settings(create)
        now_ms = int(self._env.wall_s() * 1000)
        found = await server.run(ACQUIRE, keys, [queue, nonce, settings, now_ms, FORM])
        outcome, *rest = found
        if outcome == b"absent":
            raise PriorityQueueNotFound(queue, "there is no such queue")
        if outcome == b"form":
            form = rest[0].decode()
            raise StorageError(
                f"{self.place}: its data has format {form}; this program needs {FORM}"
            )
        if outcome == b"foreign":
            key, kind = (one.decode(errors="replace") for one in rest)
            raise StorageError(
                f"{self.place}: key {key!r} is a {kind} of another program: choose another "
                "RedisOptions.prefix"
            )
        lane.has_events(rest[0])
        return head_of(rest[1:])

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
        commands = [("ZRANGEBYSCORE", lane.keys.due, "-inf", until_ms) for lane in self._lanes]
        found = await self._server().ask(commands)
        names = (name.decode() for names in found for name in names)
        return heapq.nsmallest(limit, (name for name in names if name > after))

    async def queues(self, prefix: str, after: str, limit: int, /) -> list[str]:
        """Names of queues with a prefix: see `PriorityStore`."""
        least = b"(" + after.encode() if after >= prefix else b"[" + prefix.encode()
        if not after and not prefix:
            least = b"-"
        commands = [
            ("ZRANGEBYLEX", lane.keys.names, least, b"+", "LIMIT", 0, limit) for lane in self._lanes
        ]
        found = await self._server().ask(commands)
        parts = [[name.decode() for name in names] for names in found]
        fitting = takewhile(lambda name: name.startswith(prefix), heapq.merge(*parts))
        return list(islice(fitting, limit))

    # -- the outboxes

    async def events(self, outbox: int, after: int, limit: int, /) -> list[StoredEvent]:
        """Return events of an outbox after a position. See `PriorityStore`."""
        keys = self._lane(outbox).keys
        command = ("XRANGE", keys.events, f"{after + 1}-0", "+", "COUNT", limit)
        [found] = await self._server().ask([command])
        return [
            StoredEvent(int(position.partition(b"-")[0]), event_of(fields))
            for position, fields in found or ()
        ]

    async def outbox_name(self, outbox: int, /) -> str:
        """The unique name of an outbox: see `PriorityStore`."""
        key, name = self._lane(outbox).keys.lane, self._env.random_bytes(16).hex()
        found = await self._server().run(NAME, [key], [name])
        return f"redis-{found[1].decode()}"

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete the events of an outbox up to and including a position."""
        lane = self._lane(outbox)
        trim = ("XTRIM", lane.keys.events, "MINID", "=", f"{through + 1}-0")
        _, count = await self._server().ask([trim, ("XLEN", lane.keys.events)])
        lane.has_events(count)

    def start_counting(self, lane: StoreLane) -> asyncio.Task[None]:
        """Start to count the events of an outbox."""
        loop, context = asyncio.get_running_loop(), self._env.new_context()
        return loop.create_task(self._count(lane), context=context)

    async def _count(self, lane: StoreLane) -> None:
        with suppress(StorageUnavailable):
            [count] = await self._server().ask([("XLEN", lane.keys.events)])
            lane.has_events(count)

    def _lane(self, outbox: int) -> StoreLane:
        if not 0 <= outbox < LANES:
            raise ConfigError(f"outbox is {outbox}, not 0 to {LANES - 1}")
        return self._lanes[outbox]

    # -- closing

    def _server(self) -> Server:
        if self._open_server is None or not self._users:
            raise StorageUnavailable(f"{self.place}: this priority store is not open")
        return self._open_server

    async def aclose(self) -> None:
        """Close the store for one user; the last one releases all queues."""
        async with self._opening:
            self._users = max(self._users - 1, 0)
            server = self._open_server
            if self._users or server is None:
                return
            self._open_server = None
            await asyncio.gather(*(one.release() for one in list(self._owned)))
            counting = [lane.counting for lane in self._lanes if lane.counting is not None]
            tasks = [*counting, *([self._watching] if self._watching is not None else [])]
            self._watching = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.aclose()
