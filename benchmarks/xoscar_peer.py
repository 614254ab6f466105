"""xoscar as a subject: its in-pool reference, and a second pool process."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import psutil
import xoscar

from benchmarks.measure import in_process, memory_bytes, two_processes

__all__ = ["activation", "calls", "remote"]


class Counter(xoscar.Actor):  # type: ignore[misc]
    """The same counter as ours."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    async def add(self, by: int) -> int:
        self.n += by
        return self.n

    async def give(self, value: Any) -> Any:
        return value

    async def suspend(self, by: int) -> int:
        await asyncio.sleep(0)
        return by


async def calls(work: Path) -> dict[str, float]:
    """Calls through in-pool references, which share objects."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        address = pool.external_address
        for i in range(10_000):
            await xoscar.create_actor(Counter, address=address, uid=f"a{i}")
        refs = [await xoscar.actor_ref(address=address, uid=f"a{i}") for i in range(10_000)]
        first = refs[0]
        return await in_process(
            [ref.add for ref in refs], first.give, first.give, first.suspend, first.suspend
        )


async def remote(work: Path) -> dict[str, float]:
    """Calls to an actor in a sub-process of the pool."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=1)
    async with pool:
        address = pool.sub_processes and next(iter(pool.sub_processes))
        ref = await xoscar.create_actor(Counter, address=address, uid="echo")
        children = [child.pid for child in psutil.Process().children(recursive=True)]
        return await two_processes([ref.give], [os.getpid(), *children])


async def activation(work: Path) -> dict[str, float]:
    """Actors created per second."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        count, before, started = 6_000, memory_bytes(), time.perf_counter()
        for i in range(count):
            await xoscar.create_actor(Counter, address=pool.external_address, uid=f"a{i}")
        took = time.perf_counter() - started
        made = count / took
        size = (memory_bytes() - before) / count
        return {"activations_s": made, "first_calls_s": made, "bytes_per_grain": size}
