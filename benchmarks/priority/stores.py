"""Priority queues that are stored: in memory, in SQLite files, in Redis, by the owner's calls.

Owns: the subjects `memory`, `embedded` and `redis`. What is answered is on disk: SQLite syncs each
group of commits, Redis has `appendfsync always`. Not: the way from a client (`published`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.priority.load import (
    CALLERS,
    PAYLOAD,
    PENDING,
    Costs,
    Figures,
    now,
    priorities,
    scaled,
)
from benchmarks.servers import redis_lacks, redis_server
from millstream.providers.priority import (
    EmbeddedStore,
    MemoryStore,
    PriorityStore,
    QueueSettings,
)
from millstream.providers.priority.core.commands import (
    Complete,
    Dequeue,
    Enqueue,
    EnqueueMany,
)
from millstream.providers.priority.store.contract import OwnedQueue

__all__ = ["embedded", "memory", "redis"]

FILL = 1_000  # messages in one call
CALLS = 3_000
POLLS = 10_000


@asynccontextmanager
async def opened(store: PriorityStore) -> AsyncIterator[PriorityStore]:
    """The store, until it is closed."""
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def fill(queue: OwnedQueue, count: int) -> None:
    """Messages, by the thousand."""
    wanted = priorities(count)
    for start in range(0, count, FILL):
        part = enumerate(wanted[start : start + FILL], start)
        await queue.do(EnqueueMany(tuple(Enqueue(f"m{at}", PAYLOAD, one) for at, one in part)))


async def stored(store: PriorityStore, name: str, label: str, count: int, size: float) -> Figures:
    """With so many messages: in, out and done by 64 callers at once; opened anew."""
    costs, calls = Costs(f"{name}_{label}"), scaled(CALLS, size)
    queue = await store.acquire(label, QueueSettings())
    begin_s = now()
    await fill(queue, count)
    costs.note("fill_s", count / (now() - begin_s))
    await costs.crowd(
        "enqueue", calls, lambda number: queue.do(Enqueue(f"more{number}", PAYLOAD, number << 20))
    )

    async def work(number: int) -> None:
        (lease,) = (await queue.do(Dequeue("w"))).leases
        await queue.do(Complete(lease.id, lease.token))

    await costs.crowd("work", min(calls, count // 2), work)
    await queue.release()
    begin_s = now()
    await store.acquire(label, None)
    costs.note("opened_ms", (now() - begin_s) * 1000)
    return costs.figures


async def polls(store: PriorityStore, name: str, size: float) -> Figures:
    """Polls of an empty queue: one caller, and 64."""
    costs = Costs(f"{name}_empty")
    queue = await store.acquire("empty", QueueSettings())
    for callers in (1, CALLERS):
        await costs.crowd(
            f"polls{callers}", scaled(POLLS, size), lambda _: queue.do(Dequeue("w")), callers
        )
    return costs.figures


async def every(store: PriorityStore, name: str, size: float) -> Figures:
    """All sizes, and an empty queue."""
    figures: Figures = {}
    async with opened(store):
        for label, count in PENDING.items():
            figures |= await stored(store, name, label, scaled(count, size, 1_000), size)
        return figures | await polls(store, name, size)


async def memory(work: Path, size: float) -> Figures:
    """Rows in memory: what group commit costs."""
    return await every(MemoryStore(), "memory", size)


async def embedded(work: Path, size: float) -> Figures:
    """SQLite files."""
    return await every(EmbeddedStore(work / "priority"), "embedded", size)


async def redis(work: Path, size: float) -> Figures:
    """A Redis server that syncs each command, if there is one."""
    if redis_lacks():
        return {}
    from millstream.providers.priority.redis import RedisOptions, RedisStore

    async with redis_server(work) as port:
        store = RedisStore(f"redis://127.0.0.1:{port}/0", options=RedisOptions(timeout_s=60.0))
        return await every(store, "redis", size)
