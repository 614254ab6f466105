"""The metrics of priority queues and durable jobs, in virtual time: each equals what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from millstream.providers.priority import MemoryStore, NewMessage, PriorityQueues, priority_queue
from millstream.providers.priority.jobs import JobRetry, Jobs, schedule
from millstream.runtime import Grain, Metrics, Silo, grain
from millstream.runtime.testing import SimCluster, Simulation, run

LATE_STEPS = 0.25


@grain(name="Shop")
class Shop(Grain):
    async def charge(self, amount: int) -> int:
        return amount

    async def refuse(self) -> None:
        raise ValueError("sold out")


def in_silo(main: Callable[[Silo], Awaitable[None]]) -> None:
    async def driver(sim: Simulation) -> None:
        store = MemoryStore()
        parts: dict[str, Any] = {
            "metrics": Metrics,
            "priority": lambda: PriorityQueues(store),
            "jobs": lambda: Jobs(retry=JobRetry(attempts=2)),
        }
        async with SimCluster(sim, grains=[Shop], parts=parts, skew_s=0.0) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None
            await sim.call(sim.host(cluster.names[0]), as_coroutine(main(silo)))

    run(driver, seed=1)


async def as_coroutine(work: Awaitable[None]) -> None:
    await work


def values(silo: Silo, name: str) -> dict[tuple[str, ...], Any]:
    found = {metric.name: values for metric, values in silo.services.metrics.collect().items()}
    return dict(found[f"millstream_{name}"])


def test_the_messages_of_an_owned_queue_are_counted_by_state() -> None:
    async def main(silo: Silo) -> None:
        queue = priority_queue(silo, "orders")
        await queue.enqueue_many([NewMessage(b"x") for _ in range(5)])
        lease, done = await queue.dequeue(worker="me", count=2)
        await done.complete()
        await asyncio.sleep(5.5)
        found = values(silo, "priority_queue_messages")
        counts = {key[2]: n for key, n in found.items() if key[:2] == ("priority", "orders")}
        assert {state: n for state, n in counts.items() if n} == {
            "pending": 3,
            "running": 1,
            "completed": 1,
        }
        owned = values(silo, "priority_queues")[("priority",)]
        await lease.complete()
        await queue.delete()
        assert values(silo, "priority_queues") == {("priority",): owned - 1}
        found = values(silo, "priority_queue_messages")
        assert not [key for key in found if key[1] == "orders"]
        assert values(silo, "priority_changes_lag_seconds") == {}

    in_silo(main)


def test_attempts_of_jobs_are_counted_by_outcome_and_lateness() -> None:
    async def main(silo: Silo) -> None:
        shop = silo.grain(Shop, "a")
        await asyncio.sleep(1.0)
        jobs = [await schedule(silo, timedelta(seconds=5), shop.charge, n) for n in range(3)]
        for job in jobs:
            await job.result()
        bad = await schedule(silo, timedelta(seconds=1), shop.refuse)
        with pytest.raises(ValueError):
            await bad.result()
        found = values(silo, "job_attempts_total")
        assert found == {("Shop", "ok"): 3, ("Shop", "repeated"): 1, ("Shop", "failed"): 1}
        late = values(silo, "job_late_seconds")[()]
        assert late.count == 4  # first attempts only
        assert late.sum < 4 * LATE_STEPS
        assert values(silo, "jobs_running") == {(): 0}

    in_silo(main)
