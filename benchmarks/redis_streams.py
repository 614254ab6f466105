"""Redis Streams as a subject, with a Redis stream for each of many streams.

The producer and the guarantees are those of `redis_peer`. One consumer reads all streams with one
XREADGROUP that names each stream and blocks while all are empty. It acknowledges all entries of a
reply in one pipeline of XACK. The streams and their groups exist before the first event, because
XREADGROUP needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import redis.asyncio

from benchmarks.feed import WIDE_RUNS, Arrivals, Run, Sample, measure_feed, produce
from benchmarks.redis_peer import RedisConsumer, add
from benchmarks.servers import redis_process

__all__ = ["ManyStreamsConsumer", "keys_of", "producer", "wide"]

RUNS = [run for run in WIDE_RUNS if run.is_warm_up or run.streams > 1]
GROUP = "g"


def keys_of(key: str, run: Run) -> list[str]:
    """Return the Redis streams of a run."""
    return [run.key_of(key, number) for number in range(run.streams)]


class ManyStreamsConsumer(RedisConsumer):
    """Reads all streams of a run as consumer `c` of a group on each."""

    async def create(self, key: str, run: Run) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        for name in keys_of(key, run):
            pipeline.xgroup_create(name, GROUP, mkstream=True)
        await pipeline.execute()

    async def read_all(self, key: str, run: Run, arrivals: Arrivals) -> None:
        wanted: Any = dict.fromkeys(keys_of(key, run), ">")
        while not arrivals.is_complete.is_set():
            found: Any = await self.redis.xreadgroup(GROUP, "c", wanted, count=100, block=1_000)
            pipeline = self.redis.pipeline(transaction=False)
            for name, entries in found or ():
                arrivals.note([Sample(*msgpack.unpackb(fields[b"d"])) for _, fields in entries])
                pipeline.xack(name, GROUP, *(entry for entry, _ in entries))
            await pipeline.execute()


async def wide(work: Path) -> dict[str, float]:
    """Many streams, one subscriber."""
    async with redis_process(work, "--appendonly", "no") as (port, server):
        consumer = ManyStreamsConsumer(port, server.pid)
        figures = await measure_feed("redis_streams", consumer, RUNS)
        await consumer.finish()
        return figures


async def producer(address: str) -> None:
    """XADD to the stream of each event, one pipeline for a batch."""
    client = redis.asyncio.Redis(port=int(address))

    async def send(key: str, samples: list[Sample]) -> None:
        await add(client, [key] * len(samples), samples)

    async def send_each(key: str, keys: list[str], samples: list[Sample]) -> None:
        await add(client, keys, samples)

    await produce(send, send_each)
