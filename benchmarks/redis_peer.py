"""Redis Streams as a subject: a server without persistence, as our memory queues have none.

A batch is one pipeline of XADD; the consumer reads with XREADGROUP and acknowledges with XACK.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import msgpack
import redis.asyncio

from benchmarks.feed import Arrivals, Run, Sample, measure_feed, produce

__all__ = ["producer", "streams"]

START_S = 10.0


class RedisConsumer:
    """Reads each key as consumer `c` of group `g`."""

    def __init__(self, port: int, pid: int) -> None:
        self.address = str(port)
        self.pids = (os.getpid(), pid)
        self._redis = redis.asyncio.Redis(port=port)
        self._task: asyncio.Task[None] | None = None

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        await self.finish()
        await self._redis.xgroup_create(key, "g", mkstream=True)
        self._task = asyncio.get_running_loop().create_task(self._read(key, arrivals))

    async def finish(self) -> None:
        """Wait until the last run's events are acknowledged and dropped."""
        if self._task is not None:
            await self._task

    async def _read(self, key: str, arrivals: Arrivals) -> None:
        while not arrivals.is_complete.is_set():
            found: Any = await self._redis.xreadgroup("g", "c", {key: ">"}, count=100, block=1_000)
            for _, entries in found or ():
                arrivals.note([Sample(*msgpack.unpackb(fields[b"d"])) for _, fields in entries])
                await self._redis.xack(key, "g", *(entry for entry, _ in entries))
        await self._redis.delete(key)


async def streams(work: Path) -> dict[str, float]:
    """A Redis server, and its consumer in this process."""
    port = free_port()
    options = ("--save", "", "--appendonly", "no", "--dir", str(work), "--port", str(port))
    server = await asyncio.create_subprocess_exec(
        "redis-server", *options, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await until_answering(port)
        consumer = RedisConsumer(port, server.pid)
        figures = await measure_feed("redis_peer", consumer)
        await consumer.finish()
        return figures
    finally:
        server.terminate()
        await server.wait()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def until_answering(port: int) -> None:
    """Wait until the server accepts connections."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


async def producer(address: str) -> None:
    """XADD, one pipeline for a batch."""
    client = redis.asyncio.Redis(port=int(address))

    async def send(key: str, samples: list[Sample]) -> None:
        if len(samples) == 1:
            await client.xadd(key, {"d": msgpack.packb(samples[0])})
            return
        pipeline = client.pipeline(transaction=False)
        for sample in samples:
            pipeline.xadd(key, {"d": msgpack.packb(sample)})
        await pipeline.execute()

    await produce(send)
