"""Leases as `async with` blocks: which leases may begin a block, and the attributes of an ended
lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import (
    Done,
    Lease,
    LeaseLost,
    MemoryStore,
    PriorityQueue,
    PriorityQueues,
    State,
    priority_queue,
)
from millstream.providers.priority.core.commands import Release
from millstream.providers.priority.surface.lease import Ending, Lessor
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
        with pytest.raises(RuntimeError, match="'m' in 'q'.* is already in use by a block"):
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


class SlowAnswers:
    """The calls of a lease with answers that arrive late."""

    def __init__(self, lessor: Lessor, late_s: float) -> None:
        self._lessor, self._late_s = lessor, late_s
        self.queue = lessor.queue

    async def here(self, ending: Ending) -> Done:
        done = await self._lessor.here(ending)
        await asyncio.sleep(self._late_s)
        return done

    def give_back(self, command: Release) -> asyncio.Task[None]:
        return self._lessor.give_back(command)


def test_a_lease_is_extended_from_when_it_was_asked_for_and_not_from_the_answer() -> None:
    """The lease counts from the call, the latest time at which the extension took effect."""

    async def work(rig: Rig) -> None:
        lease = await begin(rig, lease_s=6.0)
        lease._lessor = SlowAnswers(lease._lessor, 4.0)
        for asked_s in (10.0, 10.0):
            await lease.extend(asked_s)
            assert 5.5 < lease.left_s <= 6.0
        await asyncio.sleep(lease.left_s)
        assert lease.is_lost

    async def main(rig: Rig) -> None:
        await rig.on(rig.host, work(rig))

    in_cluster(main)


# -- a block whose lease is lost


async def begin(rig: Rig, lease_s: float = 6.0) -> Lease:
    queue = rig.queue()
    await queue.enqueue(b"", id="m", priority=1)
    [lease] = await queue.dequeue(worker="w", lease_s=lease_s)
    return lease


def test_a_block_whose_message_is_cancelled_is_interrupted_at_the_next_extension() -> None:
    async def work(rig: Rig) -> float:
        loop, lease = asyncio.get_running_loop(), await begin(rig)
        begun_s = loop.time()
        with pytest.raises(LeaseLost, match="'m': .* is canceled"):
            async with lease:
                await rig.queue().cancel("m")
                await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        await asyncio.sleep(0.1)  # no cancellation is pending
        return loop.time() - begun_s

    async def main(rig: Rig) -> None:
        assert await rig.on(rig.host, work(rig)) < 2.5

    in_cluster(main)


def test_a_block_whose_lease_cannot_be_extended_is_interrupted_when_its_time_has_passed() -> None:
    async def work(rig: Rig) -> float:
        loop, lease = asyncio.get_running_loop(), await begin(rig)
        begun_s = loop.time()
        for name in list(rig.cluster.names):
            rig.simulation.crash(name)
        with pytest.raises(LeaseLost, match="its time has passed"):
            async with lease:
                await asyncio.sleep(60)
        return loop.time() - begun_s

    async def main(rig: Rig) -> None:
        assert 5.5 < await rig.on(rig.host, work(rig)) < 6.5

    in_cluster(main)


def test_a_block_that_swallows_its_interruption_says_that_the_lease_is_lost() -> None:
    async def work(rig: Rig) -> None:
        lease = await begin(rig)
        with pytest.raises(LeaseLost):
            async with lease:
                await rig.queue().cancel("m")
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    async def main(rig: Rig) -> None:
        await rig.on(rig.host, work(rig))

    in_cluster(main)


def test_a_worker_that_is_cancelled_at_the_same_time_is_cancelled() -> None:
    async def work(rig: Rig, blocks: list[asyncio.Task[None]]) -> None:
        lease = await begin(rig)
        async with lease:
            await rig.queue().cancel("m")
            try:
                await asyncio.sleep(60)
            finally:
                blocks[0].cancel()

    async def main(rig: Rig) -> None:
        blocks: list[asyncio.Task[None]] = []
        blocks.append(rig.spawn(work(rig, blocks)))
        await asyncio.wait(blocks)
        assert blocks[0].cancelled()

    in_cluster(main)
