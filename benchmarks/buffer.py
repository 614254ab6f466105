"""The buffer queue, asyncio.Queue and collections.deque: one producer, one consumer, one loop.

The workloads use plain asyncio in a separate thread, because most programs use that loop. Figures
are microseconds per item: put one by one and by a hundred, then taken by 1, 100 and 1,000. `p8` has
eight partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.providers.memory import MemoryBufferQueue, MemoryTopic

__all__ = ["deques", "ours", "queues"]

ITEMS = 100_000
REPEATS = 7
Workload = Callable[[], Coroutine[Any, Any, dict[str, float]]]


async def on_plain_loop(workload: Workload) -> dict[str, float]:
    """Return the least of each figure, because other load on the machine only adds time."""

    async def repeated() -> list[dict[str, float]]:
        return [await workload() for _ in range(REPEATS)]

    found = await asyncio.to_thread(asyncio.run, repeated())
    return {key: min(one[key] for one in found) for key in found[0]}


def per_item_us(started_s: float) -> float:
    """Return the microseconds per item since a time."""
    return (time.perf_counter() - started_s) / ITEMS * 1e6


async def ours(work: Path) -> dict[str, float]:
    """The buffer queue."""
    return await on_plain_loop(_ours)


async def _ours() -> dict[str, float]:
    figures: dict[str, float] = {}
    for partitions, prefix in ((1, ""), (8, "p8_")):
        for size in (1, 100, 1000):
            topic = MemoryBufferQueue().topic("t", int, partitions=partitions)
            (consumer,) = topic.consumers("g", batch_size=size, auto_commit=True)
            figures[f"{prefix}put_us"] = await _one_by_one(topic)
            started_s, left = time.perf_counter(), ITEMS
            async for batch in consumer:
                left -= len(batch)
                if not left:
                    break
            figures[f"{prefix}take{size}_us"] = per_item_us(started_s)
        figures[f"{prefix}put100_us"] = await _in_batches(topic)
    return figures


async def _one_by_one(topic: MemoryTopic[int]) -> float:
    producer, started_s = topic.producer(), time.perf_counter()
    for item in range(ITEMS):
        await producer.produce(item)
    return per_item_us(started_s)


async def _in_batches(topic: MemoryTopic[int]) -> float:
    producer, batch = topic.producer(), list(range(100))
    started_s = time.perf_counter()
    for _ in range(ITEMS // 100):
        await producer.produce_many(batch)
    return per_item_us(started_s)


async def queues(work: Path) -> dict[str, float]:
    """asyncio.Queue, which has no batches: each row is one by one."""
    return await on_plain_loop(_queues)


async def _queues() -> dict[str, float]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    started_s = time.perf_counter()
    for item in range(ITEMS):
        await queue.put(item)
    put_us, started_s = per_item_us(started_s), time.perf_counter()
    for _ in range(ITEMS):
        await queue.get()
    return _rows(put_us, per_item_us(started_s))


async def deques(work: Path) -> dict[str, float]:
    """collections.deque, which has no waiting, no groups and no redelivery."""
    return await on_plain_loop(_deques)


async def _deques() -> dict[str, float]:
    items: deque[int] = deque()
    started_s = time.perf_counter()
    for item in range(ITEMS):
        items.append(item)
    put_us, started_s = per_item_us(started_s), time.perf_counter()
    for _ in range(ITEMS):
        items.popleft()
    return _rows(put_us, per_item_us(started_s))


def _rows(put_us: float, take_us: float) -> dict[str, float]:
    rows = {"put_us": put_us, "put100_us": put_us}
    rows |= {f"take{size}_us": take_us for size in (1, 100, 1000)}
    return rows | {f"p8_{name}": value for name, value in rows.items()}
