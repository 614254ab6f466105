"""Places in which stores keep queues, for tests of every kind of store: several stores share a
place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import ClassVar, Protocol

from tests.providers.priority.set_clock import Clock

from millstream.providers.postgres import PostgresOptions
from millstream.providers.priority import EmbeddedStore, MemoryStore, PriorityStore, StoreLimits
from millstream.providers.priority.core.changes import Changes
from millstream.providers.priority.postgres import PostgresStore
from millstream.providers.priority.postgres.hold import PostgresHold
from millstream.providers.priority.redis import RedisOptions, RedisStore
from millstream.providers.priority.redis.hold import RedisHold
from millstream.providers.priority.store.embedded import EmbeddedHold, PriorityFile
from millstream.providers.priority.store.rows import Acquired
from millstream.runtime import StorageUnavailable


class Faults:
    """The fate of the next commits: wait at a gate, or fail before or after they are stored."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.waiting = 0
        self.failing_before = self.failing_after = 0

    def close(self) -> None:
        self.gate = asyncio.Event()

    def let(self) -> None:
        assert self.gate is not None
        self.gate.set()
        self.gate = None

    async def before(self, queue: str) -> None:
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
            self.waiting -= 1
        if self.failing_before:
            self.failing_before -= 1
            raise StorageUnavailable("planted, before")

    async def after(self, queue: str) -> None:
        if self.failing_after:
            self.failing_after -= 1
            raise StorageUnavailable("planted, after")


class Place(Protocol):
    clock: Clock
    faults: Faults
    is_shared: bool  # can stores in other processes share the place?

    def store(self, limits: StoreLimits | None = None, *, events: bool = True) -> PriorityStore:
        """Make another store over the place, as another process would have it."""
        ...


class MemoryPlace:
    """One store serves as all stores, as silos of one process share it."""

    is_shared = False

    def __init__(self, directory: Path) -> None:
        self.clock, self.faults = Clock(), Faults()
        self._store: MemoryStore | None = None

    def store(self, limits: StoreLimits | None = None, *, events: bool = True) -> PriorityStore:
        if self._store is None:
            self._store = MemoryStore(self.clock, limits, events=events, faults=self.faults)
        return self._store


class EmbeddedPlace:
    is_shared = True

    def __init__(self, directory: Path) -> None:
        self.clock, self.faults = Clock(), Faults()
        self._directory = directory

    def store(self, limits: StoreLimits | None = None, *, events: bool = True) -> PriorityStore:
        return FaultyStore(self, self._directory, limits, events)


class FaultyHold(EmbeddedHold):
    faults: Faults

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        await self.faults.before(self.queue)
        await super().commit(changes, next_due_ms)
        await self.faults.after(self.queue)

    async def delete(self) -> None:
        await self.faults.before(self.queue)
        await super().delete()
        await self.faults.after(self.queue)


class FaultyStore(EmbeddedStore):
    def __init__(
        self, place: EmbeddedPlace, directory: Path, limits: StoreLimits | None, events: bool
    ) -> None:
        super().__init__(directory, place.clock, limits, events=events)
        self.faults = place.faults

    def _hold(self, file: PriorityFile, queue: str, acquired: Acquired) -> FaultyHold:
        hold = FaultyHold(self, file, queue, acquired)
        hold.faults = self.faults
        return hold


class RedisPlace:
    """A prefix of its own on the server at `address`, which a test of a real server sets."""

    is_shared = True
    address: ClassVar[str] = ""
    places: ClassVar[count[int]] = count()

    def __init__(self, directory: Path) -> None:
        self.clock, self.faults = Clock(), Faults()
        self.options = RedisOptions(prefix=f"place{next(self.places)}", timeout_s=60.0)

    def store(self, limits: StoreLimits | None = None, *, events: bool = True) -> PriorityStore:
        return FaultyRedisStore(self, limits, events)


class FaultyServedHold:
    """A hold on a queue of a server with planned faults of commits."""

    def __init__(self, hold: RedisHold | PostgresHold, faults: Faults) -> None:
        self.queue, self.epoch = hold.queue, hold.epoch
        self.is_held, self.check_room = hold.is_held, hold.check_room
        self._hold = hold
        self._faults = faults

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        await self._faults.before(self.queue)
        await self._hold.commit(changes, next_due_ms)
        await self._faults.after(self.queue)

    async def delete(self) -> None:
        await self._faults.before(self.queue)
        await self._hold.delete()
        await self._faults.after(self.queue)


class FaultyRedisStore(RedisStore):
    def __init__(self, place: RedisPlace, limits: StoreLimits | None, events: bool) -> None:
        super().__init__(place.address, place.clock, limits, events=events, options=place.options)
        self.faults = place.faults

    def _hold(self, hold: RedisHold) -> FaultyServedHold:
        return FaultyServedHold(hold, self.faults)


class PostgresPlace:
    """A schema of its own on the server at `url`, which a test of a real server sets."""

    is_shared = True
    url: ClassVar[str] = ""
    places: ClassVar[count[int]] = count()

    def __init__(self, directory: Path) -> None:
        self.clock, self.faults = Clock(), Faults()
        schema = f"place{next(self.places)}"
        self.options = PostgresOptions(schema=schema, connections_max=2, timeout_s=30.0)

    def store(self, limits: StoreLimits | None = None, *, events: bool = True) -> PriorityStore:
        return FaultyPostgresStore(self, limits, events)


class FaultyPostgresStore(PostgresStore):
    def __init__(self, place: PostgresPlace, limits: StoreLimits | None, events: bool) -> None:
        super().__init__(place.url, place.clock, limits, events=events, options=place.options)
        self.faults = place.faults

    def _hold(self, hold: PostgresHold) -> FaultyServedHold:
        return FaultyServedHold(hold, self.faults)


PLACES: dict[str, Callable[[Path], Place]] = {"memory": MemoryPlace, "embedded": EmbeddedPlace}
SERVED: dict[str, Callable[[Path], Place]] = {"redis": RedisPlace, "postgres": PostgresPlace}
"""The places that need a server. Their tests are in tests/real."""


def place_of(kind: str, directory: Path) -> Place:
    return (PLACES | SERVED)[kind](directory)
