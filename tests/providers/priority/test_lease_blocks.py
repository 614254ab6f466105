"""Leases as blocks: which ones may begin, and what a lease says of itself once it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import (
    Lease,
    LeaseLost,
    MemoryStore,
    PriorityQueue,
    PriorityQueues,
    State,
    priority_queue,
)
from millstream.runtime import LocalCluster


@pytest.fixture
async def queue() -> AsyncIterator[PriorityQueue]:
    store = MemoryStore()
    parts = {"priority": lambda: PriorityQueues(store)}
    async with LocalCluster(grains=[], parts=parts) as cluster:
        made = priority_queue(cluster, "q")
        await made.enqueue(b"", id="m", priority=1)
        yield made


async def leased(queue: PriorityQueue) -> Lease:
    [lease] = await queue.dequeue(worker="w", wait_s=5)
    return lease


async def give_back(lease: Lease) -> None:
    lease.give_back()


async def fail_a_block(lease: Lease) -> None:
    with pytest.raises(OSError):
        async with lease:
            raise OSError("flaky")


ENDS: dict[str, tuple[Callable[[Lease], Awaitable[object]], bool]] = {
    "complete": (lambda lease: lease.complete(), False),
    "fail": (lambda lease: lease.fail(), False),
    "cancel": (lambda lease: lease.cancel(), False),
    "release": (lambda lease: lease.release(), True),
    "give_back": (give_back, True),
    "a block that fails": (fail_a_block, True),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_lease_that_has_ended_begins_no_block(queue: PriorityQueue, how: str) -> None:
    end, is_lost = ENDS[how]
    lease = await leased(queue)
    await end(lease)
    assert lease.is_lost is is_lost
    is_begun = False
    with pytest.raises(LeaseLost, match="queue 'q': message 'm': .* has ended"):
        async with lease:
            is_begun = True
    assert not is_begun


async def test_a_retry_of_a_block_does_not_take_what_another_worker_has(
    queue: PriorityQueue,
) -> None:
    lease = await leased(queue)
    await fail_a_block(lease)
    other = await leased(queue)
    with pytest.raises(LeaseLost):
        async with lease:
            pass
    assert (await queue.get("m")).state is State.RUNNING
    async with other:
        pass
    assert (await queue.get("m")).state is State.COMPLETED


async def test_a_lease_is_one_block_at_a_time(queue: PriorityQueue) -> None:
    lease = await leased(queue)
    async with lease:
        with pytest.raises(RuntimeError, match="'m' in 'q'.* is a block already"):
            async with lease:
                pass
        assert (await queue.get("m")).state is State.RUNNING and not lease.is_lost
    assert (await queue.get("m")).state is State.COMPLETED


def test_a_lease_whose_time_has_passed_begins_no_block() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"", id="m", priority=1))
        [lease] = await rig.on(rig.host, queue.dequeue(worker="w", lease_s=2))
        await asyncio.sleep(1)
        assert not lease.is_lost
        await asyncio.sleep(1)
        assert lease.is_lost
        with pytest.raises(LeaseLost, match="its time has passed"):
            await lease.__aenter__()

    in_cluster(main)
