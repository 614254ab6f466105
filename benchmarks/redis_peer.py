"""Redis Streams as a subject: a server without persistence, because our memory queues have none.

A batch is one pipeline of XADD. The consumer reads with XREADGROUP and acknowledges with XACK. Each
subscriber is a separate group. Many streams are one Redis stream whose entries name their stream.
The peer `redis_streams` has a Redis stream for each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import redis.asyncio

from benchmarks.feed import (
    DURABLE_RUNS,
    RUNS,
    WIDE_RUNS,
    Arrivals,
    Run,
    Sample,
    measure_feed,
    produce,
)
from benchmarks.servers import SYNCED, redis_process

__all__ = ["RedisConsumer", "add", "durable", "producer", "streams", "wide"]


class RedisConsumer:
    """Reads each key as consumer `c` of one group for each subscriber."""

    def __init__(self, port: int, pid: int) -> None:
        self.address = str(port)
        self.pids = (os.getpid(), pid)
        self.redis = redis.asyncio.Redis(port=port)
        self._task: asyncio.Task[None] | None = None

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        await self.finish()
        if run.name == run.first:
            await self.create(key, run)
        self._task = asyncio.get_running_loop().create_task(self.read_all(key, run, arrivals))

    async def create(self, key: str, run: Run) -> None:
        """Create the streams of a run, without entries."""
        for number in range(run.subscribers):
            await self.redis.xgroup_create(key, f"g{number}", mkstream=True)

    async def finish(self) -> None:
        """Wait until the last run's events are acknowledged."""
        if self._task is not None:
            await self._task

    async def read_all(self, key: str, run: Run, arrivals: Arrivals) -> None:
        """Read the events of a run, and acknowledge them."""
        await asyncio.gather(*(self._read(key, arrivals, at) for at in range(run.subscribers)))
        if run.streams == 1:
            await self.redis.delete(key)

    async def _read(self, key: str, arrivals: Arrivals, number: int) -> None:
        group = f"g{number}"
        while not arrivals.is_complete.is_set():
            found: Any = await self.redis.xreadgroup(group, "c", {key: ">"}, count=100, block=1_000)
            for _, entries in found or ():
                samples = [Sample(*msgpack.unpackb(fields[b"d"])) for _, fields in entries]
                arrivals.note(samples, number)
                await self.redis.xack(key, group, *(entry for entry, _ in entries))


async def streams(work: Path) -> dict[str, float]:
    """One subscriber and one stream at a time."""
    return await _measure(work, RUNS)


async def durable(work: Path) -> dict[str, float]:
    """The same, with every command in a file and synced before it is answered."""
    return await _measure(work, DURABLE_RUNS, *SYNCED)


async def wide(work: Path) -> dict[str, float]:
    """Many subscribers, or many streams."""
    return await _measure(work, WIDE_RUNS)


async def _measure(work: Path, runs: Sequence[Run], *more: str) -> dict[str, float]:
    """Run a Redis server, and its consumers in this process."""
    async with redis_process(work, *(more or ("--appendonly", "no"))) as (port, server):
        consumer = RedisConsumer(port, server.pid)
        figures = await measure_feed("redis_peer", consumer, runs)
        await consumer.finish()
        return figures


async def add(client: redis.asyncio.Redis, keys: list[str], samples: list[Sample]) -> None:
    """XADD of each event to its Redis stream, in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for key, sample in zip(keys, samples, strict=True):
        pipeline.xadd(key, {"d": msgpack.packb(sample)})
    await pipeline.execute()


async def producer(address: str) -> None:
    """XADD, one pipeline for a batch."""
    client = redis.asyncio.Redis(port=int(address))

    async def send(key: str, samples: list[Sample]) -> None:
        if len(samples) == 1:
            await client.xadd(key, {"d": msgpack.packb(samples[0])})
            return
        await add(client, [key] * len(samples), samples)

    async def send_each(key: str, keys: list[str], samples: list[Sample]) -> None:
        pipeline = client.pipeline(transaction=False)
        for name, sample in zip(keys, samples, strict=True):
            pipeline.xadd(key, {"s": name, "d": msgpack.packb(sample)})
        await pipeline.execute()

    await produce(send, send_each)
