"""Stored priority queues: in memory, in SQLite files, in Redis, through calls of the owner.

This module owns the subjects `memory`, `embedded` and `redis`. Answered operations are on disk:
SQLite syncs each group of commits, and Redis has `appendfsync always`. `published` measures the
path from a client.
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
from millstream.providers.priority.core.message import LeaseToken
from millstream.providers.priority.core.results import LeaseGrant
from millstream.providers.priority.store.contract import OwnedQueue

__all__ = ["embedded", "memory", "redis"]

FILL = 1_000  # messages in one call
CALLS = 3_000
POLLS = 10_000
FILTERED, REGIONS = 100_000, 100
VALUES, EACH = 1_000, 100
FREE = VALUES // 100  # values that no lease has


@asynccontextmanager
async def opened(store: PriorityStore) -> AsyncIterator[PriorityStore]:
    """Yield the open store, and close it."""
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def fill(queue: OwnedQueue, count: int, key: str = "", values: int = 1) -> None:
    """Enqueue messages, a thousand at a time; with a key its values alternate."""
    wanted = priorities(count)
    for start in range(0, count, FILL):
        part = enumerate(wanted[start : start + FILL], start)
        pairs = {at % values: ((key, f"v{at % values}"),) for at in range(start, start + FILL)}
        messages = (
            Enqueue(f"m{at}", PAYLOAD, one, pairs[at % values] if key else ()) for at, one in part
        )
        await queue.do(EnqueueMany(tuple(messages)))


async def stored(store: PriorityStore, name: str, label: str, count: int, size: float) -> Figures:
    """Measure a queue of `count` messages with 64 callers at once, and its opening."""
    costs = Costs(f"{name}_{label}")
    queue = await store.acquire(label, QueueSettings())
    begin_s = now()
    await fill(queue, count)
    costs.note("fill_s", count / (now() - begin_s))
    await in_and_out(queue, costs, min(scaled(CALLS, size), count // 3))
    await queue.release()
    begin_s = now()
    await store.acquire(label, None)
    costs.note("opened_ms", (now() - begin_s) * 1000)
    return costs.figures


async def in_and_out(queue: OwnedQueue, costs: Costs, calls: int) -> None:
    """Measure each of the three operations, then dequeue and complete together (`work`)."""
    leases: list[LeaseGrant] = []

    async def dequeue(number: int) -> None:
        leases.extend((await queue.do(Dequeue("w"))).leases)

    async def work(number: int) -> None:
        (lease,) = (await queue.do(Dequeue("w"))).leases
        await queue.do(Complete(lease.id, lease.token))

    await costs.crowd(
        "enqueue", calls, lambda number: queue.do(Enqueue(f"more{number}", PAYLOAD, number << 20))
    )
    await costs.crowd("dequeue", calls, dequeue)
    await costs.crowd("complete", len(leases), lambda number: queue.do(Complete(*held(leases))))
    await costs.crowd("work", calls, work)


def held(leases: list[LeaseGrant]) -> tuple[str, LeaseToken]:
    """Remove one lease, and return its id and token."""
    lease = leases.pop()
    return lease.id, lease.token


async def filtered(store: PriorityStore, name: str, size: float) -> Figures:
    """A dequeue that wants one of a hundred regions, by a shape."""
    costs, count = Costs(f"{name}_filtered"), scaled(FILTERED, size, 2_000)
    queue = await store.acquire("filtered", QueueSettings(shapes=(("region",),)))
    await fill(queue, count, "region", REGIONS)
    wanted = [(("region", f"v{number}"),) for number in range(REGIONS)]
    await costs.crowd(
        "dequeue",
        min(scaled(CALLS, size), count // 2),
        lambda number: queue.do(Dequeue("w", 1, wanted[number % REGIONS])),
    )
    return costs.figures


async def exclusive(store: PriorityStore, name: str, size: float) -> Figures:
    """Polls of a queue of which 99 % of a thousand values are leased.

    The first callers are as many as there are free values. Then 64 callers poll while all are
    leased.
    """
    costs, each = Costs(f"{name}_exclusive"), scaled(EACH, size, 10)
    queue = await store.acquire("exclusive", QueueSettings("value"))
    await fill(queue, VALUES * each, "value", VALUES)
    await queue.do(Dequeue("w", VALUES - FREE))
    laps_s: list[float] = []

    async def work(number: int) -> None:
        begin_s = now()
        (lease,) = (await queue.do(Dequeue("w"))).leases
        laps_s.append(now() - begin_s)
        await queue.do(Complete(lease.id, lease.token))

    await costs.crowd("held_work", each * FREE // 2, work, FREE // 2)
    costs.note_laps("held_dequeue", laps_s)
    await queue.do(Dequeue("w", VALUES))
    await costs.crowd("held_polls", scaled(POLLS, size), lambda _: queue.do(Dequeue("w")))
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
    """All sizes; a filter, an exclusive queue and an empty one."""
    figures: Figures = {}
    async with opened(store):
        for label, count in PENDING.items():
            figures |= await stored(store, name, label, scaled(count, size, 1_000), size)
        for part in (filtered, exclusive, polls):
            figures |= await part(store, name, size)
        return figures


async def memory(work: Path, size: float) -> Figures:
    """Rows in memory: the cost of group commit."""
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
