"""The `AdapterHost` of a bench: silos without a cluster.

Owns: a clock that the bench moves, and the data that the bench's silos share: a state store, and
the era.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from millstream.runtime import MemoryStateStore, StateStore
from millstream.runtime.extending import (
    Clock,
    Disk,
    Members,
    MetricRegistry,
    RealDisk,
    Targets,
    Tasks,
)
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper

__all__ = ["BenchClock", "BenchHost", "BenchMapper", "BenchWorld"]

QUEUES = ("queue-0", "queue-1")
BEGIN_S = 1_700_000_000.0


class BenchClock:
    """The loop's time, and a wall clock that only the bench moves."""

    def __init__(self) -> None:
        self.moved_s = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return BEGIN_S + self.moved_s

    def uniform(self, low: float, high: float, /) -> float:
        return low


class BenchMapper:
    """Two queues; the sum of the bytes of a stream's key decides."""

    epoch = 1

    def queues(self) -> Sequence[QueueId]:
        return QUEUES

    def queue_for(self, stream: StreamId, /) -> QueueId:
        return QUEUES[sum(stream.key.encode()) % len(QUEUES)]


class BenchWorld:
    """The data that the silos of a bench share."""

    def __init__(self) -> None:
        self.bench_clock = BenchClock()
        self.rows = MemoryStateStore()
        self.era_now = 0
        self.silos = 0


class BenchHost:
    """One silo of a bench. Adapters that use grains or members are checked inside a cluster."""

    cluster = "contract"

    def __init__(
        self,
        mapper: QueueMapper | None = None,
        provider: str = "contract",
        world: BenchWorld | None = None,
    ) -> None:
        world = world or BenchWorld()
        world.silos += 1
        self.silo = f"127.0.0.1:{world.silos}@1"
        self.silo_name = f"silo-{world.silos}"
        self.provider = provider
        self.mapper: QueueMapper = mapper or BenchMapper()
        self.clock: Clock = world.bench_clock
        self.disk: Disk = RealDisk()
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.metrics = MetricRegistry()
        self._world = world

    @property
    def members(self) -> Members:
        raise NotImplementedError("this bench has no cluster")

    @property
    def targets(self) -> Targets:
        raise NotImplementedError("this bench has no system targets")

    def grain(self, cls: type[Any], key: str, /) -> Any:
        raise NotImplementedError("this bench has no grains")

    def store(self, name: str = "default", /) -> StateStore:
        return self._world.rows

    async def owner(self, queue: QueueId, /) -> tuple[str, int] | None:
        return None

    async def era(self) -> int:
        return self._world.era_now

    async def mapper_epoch(self) -> int:
        return self.mapper.epoch

    async def raise_era(self, seen: int, /) -> int:
        self._world.era_now = max(self._world.era_now, seen + 1)
        return self._world.era_now
