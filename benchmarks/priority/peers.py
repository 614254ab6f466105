"""Peers of priority queues in Redis, with `appendfsync always`: a sorted set with Lua, arq, saq.

The sorted set does the least that a leased queue needs: ids by priority, payloads in a hash, and
leased ids in another sorted set. It has no states, attempts, filters, events or deduplication. arq
and saq are called as their documents show. Their jobs do nothing, and results are dropped. This
module owns the subjects `zset`, `arq` and `saq`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.priority.load import (
    CALLERS,
    PAYLOAD,
    PENDING,
    Costs,
    Figures,
    crowd,
    now,
    priorities,
    scaled,
)
from benchmarks.servers import redis_server

__all__ = ["arq", "saq", "zset"]

CALLS, POLLS = 3_000, 10_000
FILL = 1_000
CONNECTIONS = 64
ENQUEUE = """
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
"""
DEQUEUE = """
local found = redis.call('ZPOPMIN', KEYS[1])
if #found == 0 then return false end
redis.call('ZADD', KEYS[3], ARGV[1], found[1])
return {found[1], redis.call('HGET', KEYS[2], found[1])}
"""
COMPLETE = """
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""
LEASE_MS = 60_000
RUN_S, CLOSE_S = 60.0, 5.0
ARQ_JOBS = 500  # of 3,000 jobs its worker did not run all, and stopped


class Zset:
    """One queue: a sorted set of ids, their payloads, and the leases."""

    def __init__(self, client: Any, name: str) -> None:
        self.ids, self.payloads, self.leases = (f"{{{name}}}.{part}" for part in "ipl")
        self._client = client
        self._enqueue, self._dequeue, self._complete = map(
            client.register_script, (ENQUEUE, DEQUEUE, COMPLETE)
        )

    async def fill(self, count: int) -> None:
        wanted = priorities(count)
        for start in range(0, count, FILL):
            ids = {f"m{at}": one for at, one in enumerate(wanted[start : start + FILL], start)}
            await self._client.zadd(self.ids, ids)
            await self._client.hset(self.payloads, mapping=dict.fromkeys(ids, PAYLOAD))

    async def enqueue(self, id: str, priority: int) -> None:
        await self._enqueue([self.ids, self.payloads], [priority, id, PAYLOAD])

    async def poll(self) -> Any:
        return await self._dequeue([self.ids, self.payloads, self.leases], [LEASE_MS])

    async def complete(self, id: str) -> None:
        await self._complete([self.payloads, self.leases], [id])

    async def work(self) -> None:
        id, _ = await self.poll()
        await self.complete(id)


async def zset(work: Path, size: float) -> Figures:
    """All sizes, and an empty queue, as with the store in Redis."""
    import redis.asyncio

    figures: Figures = {}
    async with redis_server(work) as port:
        pool = redis.asyncio.BlockingConnectionPool(port=port, max_connections=CONNECTIONS)
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            for label, pending in PENDING.items():
                count = scaled(pending, size, 1_000)
                figures |= await in_and_out(Zset(client, label), f"redis_{label}", count, size)
            queue, costs = Zset(client, "empty"), Costs("redis_empty")
            for callers in (1, CALLERS):
                polls = scaled(POLLS, size)
                await costs.crowd(f"polls{callers}", polls, lambda _: queue.poll(), callers)
            return figures | costs.figures


async def in_and_out(queue: Zset, prefix: str, count: int, size: float) -> Figures:
    """Enqueue, dequeue and complete in a queue of `count` messages."""
    costs, calls = Costs(prefix), min(scaled(CALLS, size), count // 3)
    taken: list[str] = []

    async def dequeue(number: int) -> None:
        id, _ = await queue.poll()
        taken.append(id)

    begin_s = now()
    await queue.fill(count)
    costs.note("fill_s", count / (now() - begin_s))
    await costs.crowd("enqueue", calls, lambda number: queue.enqueue(f"more{number}", number << 20))
    await costs.crowd("dequeue", calls, dequeue)
    await costs.crowd("complete", calls, lambda _: queue.complete(taken.pop()))
    await costs.crowd("work", calls, lambda _: queue.work())
    return costs.figures


class Jobs:
    """Counts jobs that have run."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.done = asyncio.Event()

    async def run(self, context: object, **given: object) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


async def in_then_run(
    count: int,
    enqueue: Callable[[int], Awaitable[object]],
    start: Callable[[], Awaitable[object]],
    jobs: Jobs,
) -> Figures:
    """Enqueue jobs by 64 callers, then run them with a worker of 100 at once."""
    costs = Costs("redis_1k")
    begin_s = now()
    laps_s = await crowd(count, enqueue)
    costs.note("enqueue_s", count / (now() - begin_s))
    costs.note_laps("enqueue", laps_s)
    begin_s = now()
    worker = asyncio.ensure_future(start())
    try:
        async with asyncio.timeout(RUN_S):
            await jobs.done.wait()
        costs.note("work_s", count / (now() - begin_s))
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return costs.figures


async def arq(work: Path, size: float) -> Figures:
    """arq: a sorted set by time, one key for each job."""
    from arq import Worker, create_pool, func
    from arq.connections import RedisSettings

    logging.disable(logging.CRITICAL)
    count = scaled(ARQ_JOBS, size)
    jobs = Jobs(count)
    run: Any = jobs.run
    async with redis_server(work) as port:
        settings = RedisSettings(port=port, max_connections=CONNECTIONS * 2)
        pool = await create_pool(settings)
        worker = Worker(
            [func(run, name="run")],
            redis_settings=settings,
            max_jobs=100,
            poll_delay=0.005,
            keep_result=0,
            handle_signals=False,
        )
        enqueue = lambda number: pool.enqueue_job("run", payload=PAYLOAD)  # noqa: E731
        try:
            return await in_then_run(count, enqueue, worker.async_run, jobs)
        finally:
            with suppress(asyncio.CancelledError, TimeoutError):  # the end of its last jobs
                async with asyncio.timeout(CLOSE_S):
                    await worker.close()
            await pool.aclose()


async def saq(work: Path, size: float) -> Figures:
    """saq: lists, and a hash for each job."""
    from saq import Queue, Worker

    logging.disable(logging.CRITICAL)
    count = scaled(CALLS, size)
    jobs = Jobs(count)
    async with redis_server(work) as port:
        queue = Queue.from_url(f"redis://127.0.0.1:{port}")
        await queue.connect()
        worker: Any = Worker(queue, functions=[("run", jobs.run)], concurrency=100)
        text = PAYLOAD.decode()
        enqueue = lambda number: queue.enqueue("run", payload=text)  # noqa: E731
        try:
            return await in_then_run(count, enqueue, worker.start, jobs)
        finally:
            await worker.stop()
            await queue.disconnect()
