"""Queues of several shards over durable stores. The next owner of the store finds the messages that
were moving between shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.real.redis_server import RedisServer, require_redis

from millstream.providers.priority import (
    EmbeddedStore,
    PriorityOptions,
    PriorityQueue,
    PriorityQueues,
    PriorityStore,
    QueueSettings,
    priority_queue,
)
from millstream.providers.priority.redis import RedisStore
from millstream.runtime import LocalCluster

pytestmark = pytest.mark.real

SOON = PriorityOptions(settle_period_s=0.2)
PLANES = QueueSettings("plane", shards=3, retention_ms=500)


async def enter(queue: PriorityQueue, first: int, end: int) -> None:
    for number in range(first, end):
        pairs = {"plane": f"p{number}"}
        await queue.enqueue(b"x", priority=number, id=f"m{number}", metadata=pairs)


async def growing(queue: PriorityQueue) -> None:
    await queue.create(PLANES)
    await enter(queue, 0, 40)
    row = await queue.settings()
    await queue.configure(replace(row.settings, shards=5))
    await enter(queue, 40, 60)


async def worked_off(queue: PriorityQueue) -> None:
    assert (await queue.settings()).settings.shards_before == 3
    leases = await queue.dequeue(worker="w", count=60)
    assert [lease.priority for lease in leases] == list(range(60))
    for lease in leases:
        await lease.complete()
    async with asyncio.timeout(60.0):
        while (await queue.settings()).settings.shards_before:
            await asyncio.sleep(0.2)
    await enter(queue, 0, 20)
    assert len(await queue.dequeue(worker="w", count=60)) == 20


async def played(store: Callable[[], PriorityStore]) -> None:
    for play in (growing, worked_off):
        shared = store()
        part = {"priority": lambda shared=shared: PriorityQueues(shared, options=SOON)}
        async with LocalCluster(grains=[], silos=2, parts=part) as cluster:
            await play(priority_queue(cluster, "q"))


async def test_a_change_of_shards_in_files_goes_on_after_a_restart(tmp_path: Path) -> None:
    await played(lambda: EmbeddedStore(tmp_path))


async def test_a_change_of_shards_in_redis_goes_on_after_a_restart(tmp_path: Path) -> None:
    require_redis()
    server = RedisServer(tmp_path)
    try:
        await played(lambda: RedisStore(server.address))
    finally:
        server.kill()
