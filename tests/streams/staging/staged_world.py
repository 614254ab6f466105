"""Clusters in virtual time that take staged writes.

Queues are on a host of their own, and drop repeats. The writes of the store can be watched. A
client writes and commits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

import msgspec
from tests.sim.suites.run.record import Run
from tests.sim.suites.streams.log_queues import LogService

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Client, Etag, MemoryStateStore, RuntimeOptions
from millstream.runtime.extending import unseal
from millstream.runtime.testing import (
    FailingStore,
    Host,
    SimCluster,
    Simulation,
    current_host,
    run,
)
from millstream.streams import HashRingMapper, PersistentStreams, StreamOptions
from millstream.streams.extending import IngestMessage, encode_messages
from millstream.streams.staging.batch import Manifest
from millstream.streams.staging.coordinator import WriterState
from millstream.streams.staging.stager import StagedAttempt, StagedBatch, StagedWriterName
from millstream.streams.staging.writer import writer_name

__all__ = ["StagedWorld", "expected", "in_cluster", "rows_of"]

T = TypeVar("T")
KEYS = 5
RUNTIME = RuntimeOptions(call_timeout_s=4.0, idle_after_s=20.0, collect_every_s=5.0)


class WatchedStore(FailingStore):
    """Calls back before and after each write of staged rows."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation.rng)
        self.writes = 0
        self.on_write: Callable[[int, str, str], None] = lambda number, when, key: None

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        if not key.startswith("staged/"):
            return super().put(key, data, expect, fence)
        self.writes += 1
        number = self.writes
        self.on_write(number, "before", key)
        found = super().put(key, data, expect, fence)
        self.on_write(number, "after", key)
        return found

    def staged(self, what: str) -> list[str]:
        """Return the keys of rows of chunks, or of writers."""
        return [key for key in self._rows if key.startswith(f"staged/default/{what}/")]


class StagedWorld:
    """A cluster of silos, and a client on a host of its own."""

    def __init__(
        self, simulation: Simulation, silos: int, options: StreamOptions, can_rewind: bool
    ) -> None:
        Run(simulation)
        self.simulation = simulation
        self.logs = LogService(
            simulation, is_fenced=True, drops_repeats=True, can_rewind=can_rewind
        )
        self.store = WatchedStore(simulation)

        def provider() -> PersistentStreams:
            host = current_host()
            assert host is not None
            return PersistentStreams(
                self.logs.queues_for(host),
                mapper=HashRingMapper(queues=3),
                balancer=DeploymentBalancer(rebalance_delay_s=0.5),
                options=options,
            )

        self.cluster = SimCluster(
            simulation,
            silos=silos,
            grains=[],
            streams={"default": provider},
            stores={"default": self.store},
            options=RUNTIME,
        )
        self.host: Host = simulation.host("spark")
        self.client: Client
        self.attempts = 0

    # -- writing, on the client's host

    async def on_host(self, coro: Coroutine[Any, Any, T]) -> T:
        return await self.simulation.call(self.host, coro)

    def name(self, writer: str = "w", *, once: bool = False) -> StagedWriterName:
        return StagedWriterName("default", "rows", writer, once)

    def attempt(self, batch: int, part: int, **more: Any) -> StagedAttempt:
        self.attempts += 1
        name, patience_s = self.name(more.pop("writer", "w"), once=more.pop("once", False)), 120.0
        return StagedAttempt(
            self.client.gateway,
            name,
            batch,
            part,
            f"u{self.attempts}",
            **{"window": 2, "patience_s": patience_s, **more},
        )

    async def write_part(
        self, batch: int, part: int, chunks: int = 3, **more: Any
    ) -> Manifest | None:
        """Write a part of a batch; return None if the batch is decided."""
        attempt = self.attempt(batch, part, **more)
        try:
            if not await attempt.begin():
                return None
            for chunk in range(chunks):
                await attempt.stage(rows_of(batch, part, chunk))
            return await attempt.finish()
        finally:
            await attempt.aclose()

    def batch(self, batch: int, writer: str = "w", patience_s: float = 120.0) -> StagedBatch:
        gateway = self.client.gateway
        return StagedBatch(gateway, self.name(writer), batch, patience_s=patience_s)

    async def write_batch(self, batch: int, parts: int = 2, **more: Any) -> int:
        """Write a batch like Spark: other attempts repeat failed work."""
        writer = more.get("writer", "w")
        manifests = [await self.write_part(batch, part, **more) for part in range(parts)]
        found = [one for one in manifests if one is not None]
        return await self.batch(batch, writer).commit(found)

    async def begin_as(self, name: StagedWriterName) -> bool:
        return await StagedAttempt(self.client.gateway, name, 0, 0, "u", patience_s=1.0).begin()

    # -- observations

    def is_decided(self) -> bool:
        """Is a batch decided, and not delivered?"""
        rows = {key: MemoryStateStore.get(self.store, key) for key in self.store.staged("writer")}
        datas = [unseal(key, row.data).content for key, row in rows.items() if row]
        states = [msgspec.msgpack.decode(data, type=WriterState) for data in datas]
        return any(state.delivering is not None for state in states)

    def items(self) -> dict[str, list[str]]:
        """Return the stored items of each key, in order."""
        found: dict[str, list[str]] = defaultdict(list)
        for log in self.logs.all():
            for message in log.messages:
                items = [str(msgspec.msgpack.decode(item)) for item in message.items]
                found[message.stream.key] += items
        return dict(found)

    def coordinator(self, writer: str = "4:rows/w") -> str:
        """Return the host whose silo has the writer's grain; "" if none has."""
        for name in self.cluster.names:
            silo = self.cluster.silo(name)
            if silo and silo.assembly.catalog.find(writer_name("default"), writer):
                return name
        return ""

    def crash(self, name: str) -> None:
        """Crash a silo's host; it starts again a little later."""
        self.simulation.crash(name)
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, self.cluster.boot, name, context=Context())


def rows_of(batch: int, part: int, chunk: int, count: int = 7) -> bytes:
    """Make a chunk of messages with two items each."""
    messages = []
    for number in range(count):
        items = [f"{batch}.{part}.{chunk}.{number}.{item}" for item in range(2)]
        raw = [msgspec.Raw(msgspec.msgpack.encode(item)) for item in items]
        messages.append(IngestMessage(f"k{(number + chunk) % KEYS}", 0, raw))
    return encode_messages(messages)


def expected(batches: int, parts: int = 2, chunks: int = 3, count: int = 7) -> dict[str, list[str]]:
    """Return the result of `items` after this number of batches."""
    found: dict[str, list[str]] = defaultdict(list)
    for batch in range(batches):
        for part in range(parts):
            for chunk in range(chunks):
                for number in range(count):
                    for item in range(2):
                        text = f"{batch}.{part}.{chunk}.{number}.{item}"
                        found[f"k{(number + chunk) % KEYS}"].append(text)
    return dict(found)


def in_cluster(
    main: Callable[[StagedWorld], Coroutine[Any, Any, T]],
    *,
    silos: int = 3,
    seed: int = 1,
    options: StreamOptions | None = None,
    is_client_lost: bool = False,
    can_rewind: bool = False,
) -> T:
    """Run a test in a cluster, in virtual time."""

    async def driver(simulation: Simulation) -> T:
        world = StagedWorld(simulation, silos, options or StreamOptions(), can_rewind)
        await world.cluster.start()
        world.client = world.cluster.client(world.host, is_operator=True)
        await world.on_host(world.client.__aenter__())
        found = await main(world)
        if not is_client_lost:
            await world.on_host(world.client.aclose())
        await world.cluster.close()
        return found

    return run(driver, seed, max_virtual_s=50_000).result
