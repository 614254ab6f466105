"""Python frames and CPU of one operation of a priority queue: `python -m benchmarks priority_path`.

This module owns the program: a message is enqueued, dequeued and completed in memory, one operation
after the other. It uses a handle of the silo, and one of a client, in one process. It runs alone in
any revision's tree, so it uses only public names. Frames are counted as in `benchmarks.path`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import settle_memory
from benchmarks.path import Frames
from millstream.providers.priority import Lease, MemoryStore, PriorityQueue, PriorityQueues
from millstream.providers.priority import priority_queue as opened
from millstream.runtime import LocalCluster

__all__ = ["figures"]

COUNT, WARM = 300, 50
CALLS = 4_000
PAYLOAD = b"x" * 100
Figures = dict[str, float]
Operations = dict[str, Callable[[], Awaitable[object]]]


def operations_of(queue: PriorityQueue) -> Operations:
    """Return the three operations of a message; the first message in is completed first."""
    leases: list[Lease] = []

    async def dequeue() -> None:
        leases.extend(await queue.dequeue(worker="w"))

    async def complete() -> None:
        await leases.pop(0).complete()

    return {
        "enqueue": lambda: queue.enqueue(PAYLOAD, priority=5),
        "dequeue": dequeue,
        "complete": complete,
    }


async def measured(name: str, queue: PriorityQueue, calls: int) -> Figures:
    """Return frames and CPU in microseconds of each operation, and their means."""
    found: Figures = {}
    operations = operations_of(queue)
    for operation in operations.values():
        for _ in range(WARM):
            await operation()
    settle_memory()
    for kind, operation in operations.items():
        with Frames() as frames:
            for _ in range(COUNT):
                await operation()
        found[f"{name}_{kind}_frames"] = sum(frames.most(COUNT).values())
    for kind, operation in operations.items():
        begin_s = time.process_time()
        for _ in range(calls):
            await operation()
        found[f"{name}_{kind}_us"] = (time.process_time() - begin_s) / calls * 1e6
    for unit in ("frames", "us"):
        each = [found[f"{name}_{kind}_{unit}"] for kind in operations]
        found[f"{name}_mean_{unit}"] = sum(each) / len(each)
    return found


async def figures(work: Path, size: float) -> Figures:
    """Measure with a handle of the silo, and with one of a connected client."""
    part, calls = PriorityQueues(MemoryStore()), max(COUNT, int(CALLS * size))
    async with LocalCluster(grains=[], parts={"priority": lambda: part}) as cluster:
        found = await measured("silo", opened(cluster.silos[0], "encode"), calls)
        return found | await measured("client", opened(cluster.client, "transcode"), calls)
