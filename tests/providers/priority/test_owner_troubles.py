"""A program, the owner of a queue and its store together. Each of them crashes, is late, hangs or
stops, and no operation is doubled, lost or left half done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import (
    Lease,
    LeaseLost,
    PriorityOptions,
    PriorityQueueNotFound,
    QueueSettings,
    State,
    priority_queue,
)
from millstream.runtime import CallTimeout, MillstreamError, StorageUnavailable

Call = Any


async def once(rig: Rig, point: str, act: Call) -> asyncio.Event:
    """Call `act` once at the next commit, before or after it is stored."""
    happened = asyncio.Event()

    async def hook(queue: str) -> None:
        if not happened.is_set():
            happened.set()
            await act()

    setattr(rig.faults, f"on_{point}", hook)
    return happened


async def never() -> None:
    await asyncio.get_running_loop().create_future()


# -- the owner crashes


@pytest.mark.parametrize("point", ["before", "after"])
def test_an_enqueue_whose_owner_dies_around_its_commit_is_done_once(point: str) -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"first"))

        async def die() -> None:
            rig.simulation.crash(rig.owner_of())

        died = await once(rig, point, die)
        done = await rig.on(rig.host, queue.enqueue(b"second"))
        assert died.is_set() and done.is_changed and done.version == 1
        assert len(rig.stored()) == 2

    in_cluster(main, patience_s=60.0)


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_lease_whose_owner_dies_around_its_commit_is_given_once(point: str) -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=120))

        async def die() -> None:
            rig.simulation.crash(rig.owner_of())

        died = await once(rig, point, die)
        [lease] = await rig.on(rig.host, queue.dequeue(worker="w"))
        view = await rig.on(rig.host, queue.get("x"))
        assert died.is_set() and (lease.attempt, view.attempts_left) == (1, 2)
        assert view.token == lease.token and view.version == 2
        await rig.on(rig.host, lease.complete())

    in_cluster(main, patience_s=60.0)


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_failed_commit_costs_the_owner_and_nothing_else(point: str) -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"first"))

        async def fail() -> None:
            raise StorageUnavailable("the disk is away")

        failed = await once(rig, point, fail)
        done = await rig.on(rig.host, queue.enqueue(b"second"))
        assert failed.is_set() and done.is_changed
        assert len(rig.stored()) == 2
        assert rig.store._tables["q"].epoch == 2  # acquired again, once

    in_cluster(main)


def test_a_lost_answer_leases_nothing_twice() -> None:
    """The client is disconnected during the commit, and then connects again."""

    async def main(rig: Rig) -> None:
        queue, network = rig.queue(), rig.simulation.network
        for name in ("a", "b"):
            await rig.on(rig.host, queue.enqueue(b"", id=name, lease_s=300))

        async def cut() -> None:
            for silo in rig.cluster.names:
                network.partition("client", silo)

        await once(rig, "after", cut)
        polling = rig.spawn(queue.dequeue(worker="w"))
        await asyncio.sleep(12)
        network.repair()
        [lease] = await polling
        states = [row.state for row in rig.stored().values()]
        assert sorted(states) == [State.PENDING, State.RUNNING]
        assert lease.attempt == 1

    in_cluster(main, patience_s=60.0)


# -- the caller ends


def test_the_lease_of_a_caller_that_is_cancelled_goes_back_with_its_attempt() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=3600))
        committing, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            committing.set()
            await go_on.wait()

        await once(rig, "before", hold)
        polling = rig.spawn(queue.dequeue(worker="w"))
        await committing.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        go_on.set()
        await asyncio.sleep(1)
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.state, view.attempts_left, view.version) == (State.PENDING, 3, 3)

    in_cluster(main)


def test_a_waiting_poll_whose_caller_is_cancelled_takes_nothing() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        gone = rig.spawn(queue.dequeue(worker="gone", wait_s=25))
        await asyncio.sleep(1)
        stays = rig.spawn(queue.dequeue(worker="stays", wait_s=25))
        await asyncio.sleep(1)
        gone.cancel()
        await asyncio.sleep(1)
        await rig.on(rig.host, queue.enqueue(b"x", id="x"))
        [lease] = await stays
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.worker, view.version, lease.attempt) == ("stays", 2, 1)

    in_cluster(main)


def test_a_waiting_poll_of_a_client_that_dies_takes_nothing() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        other = rig.simulation.host("other")
        dying = rig.cluster.client(other)
        await rig.on(other, dying.__aenter__())
        rig.spawn(priority_queue(dying, "q").dequeue(worker="dead", wait_s=25), other)
        await asyncio.sleep(1)
        rig.simulation.crash(other)
        await asyncio.sleep(1)
        await rig.on(rig.host, queue.enqueue(b"x", id="x"))
        [lease] = await rig.on(rig.host, queue.dequeue(worker="w", wait_s=1))
        assert lease.attempt == 1

    in_cluster(main)


def test_a_message_whose_producer_dies_while_it_is_stored_is_given_to_who_waits() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        other = rig.simulation.host("other")
        dying = rig.cluster.client(other)
        await rig.on(other, dying.__aenter__())
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=25))
        await asyncio.sleep(1)
        committing, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            committing.set()
            await go_on.wait()

        await once(rig, "before", hold)
        rig.spawn(priority_queue(dying, "q").enqueue(b"x"), other)
        await committing.wait()
        rig.simulation.crash(other)
        await asyncio.sleep(1)
        go_on.set()
        assert await asyncio.wait_for(polling, 2)

    in_cluster(main)


def test_a_lease_that_is_over_when_its_answer_comes_again_is_not_given() -> None:
    async def main(rig: Rig) -> None:
        queue, network = rig.queue(), rig.simulation.network
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=3))

        async def cut() -> None:
            for silo in rig.cluster.names:
                network.partition("client", silo)

        await once(rig, "after", cut)
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=1))
        await asyncio.sleep(12)
        network.repair()
        leases = await polling
        assert [(lease.payload, lease.attempt) for lease in leases] in ([], [(b"x", 2)])

    in_cluster(main, patience_s=60.0)


# -- opening


def test_a_queue_that_takes_longer_to_open_than_a_call_may_is_opened_once() -> None:
    async def main(rig: Rig) -> None:
        opened = 0

        async def slowly(queue: str) -> None:
            nonlocal opened
            opened += 1
            if opened == 1:
                await asyncio.sleep(12)

        rig.faults.on_before = slowly
        await rig.on(rig.host, rig.queue().enqueue(b"x"))
        assert opened == 2 and rig.store._tables["q"].epoch == 1  # the acquisition and one commit

    in_cluster(main)


def test_a_queue_whose_owner_ends_while_it_reads_the_settings_is_released() -> None:
    async def main(rig: Rig) -> None:
        calls, end = 0, asyncio.Event()

        # The first call acquires the queue, and the second one numbers its layout.
        async def stop_second(queue: str) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await end.wait()

        rig.faults.on_before = stop_second
        creating = rig.spawn(rig.queue().create(QueueSettings(shards=2)))
        while calls < 2:
            await asyncio.sleep(0.01)
        creating.cancel()
        await asyncio.sleep(1)
        stopping = asyncio.create_task(rig.cluster.stop_silo(rig.owner_of()))
        await asyncio.sleep(1)
        end.set()
        await stopping
        assert rig.store._tables["q"].epoch == 1 and not rig.store._owned

    in_cluster(main)


# -- leases


def test_a_block_extends_its_lease_and_completes_it() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=3))

        async def work() -> None:
            [lease] = await queue.dequeue(worker="w")
            async with lease:
                await asyncio.sleep(20)
                assert not lease.is_lost

        await rig.on(rig.host, work())
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.state, view.attempts_left) == (State.COMPLETED, 2)

    in_cluster(main)


def test_a_block_that_raises_releases_with_its_reason_and_the_error_goes_on() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x"))

        async def work() -> None:
            [lease] = await queue.dequeue(worker="w")
            async with lease:
                raise ValueError("no such film")

        with pytest.raises(ValueError, match="no such film"):
            await rig.on(rig.host, work())
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.state, view.attempts_left) == (State.PENDING, 2)
        assert view.reason == "ValueError: no such film"

    in_cluster(main)


def test_a_block_that_is_cancelled_releases_with_its_attempt() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x"))

        async def work() -> None:
            async for lease in queue.leases(worker="w"):
                async with lease:
                    await never()

        working = rig.spawn(work())
        await asyncio.sleep(1)
        working.cancel()
        await asyncio.sleep(1)
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.state, view.attempts_left) == (State.PENDING, 3)

    in_cluster(main)


def test_a_block_that_ended_its_lease_itself_is_left_alone() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x"))

        async def work() -> None:
            [lease] = await queue.dequeue(worker="w")
            async with lease:
                await lease.fail("broken for good")

        await rig.on(rig.host, work())
        view = await rig.on(rig.host, queue.get("x"))
        assert (view.state, view.reason) == (State.ERRORED, "broken for good")

    in_cluster(main)


def test_a_paused_worker_loses_its_lease_and_its_block_is_interrupted() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=6))
        slow = rig.simulation.host("slow")
        client = rig.cluster.client(slow)
        await rig.on(slow, client.__aenter__())
        seen: list[bool] = []

        async def work() -> None:
            [lease] = await priority_queue(client, "q").dequeue(worker="slow")
            async with lease:
                try:
                    await asyncio.sleep(300)
                finally:
                    seen.append(lease.is_lost)

        working = rig.spawn(work(), slow)
        await asyncio.sleep(1)
        rig.simulation.pause("slow")
        [other] = await rig.on(rig.host, queue.dequeue(worker="other", wait_s=20, lease_s=60))
        assert rig.simulation.loop.time() < 12
        await asyncio.sleep(10)
        rig.simulation.resume("slow")
        with pytest.raises(LeaseLost):
            await working
        assert seen == [True] and other.attempt == 2
        await rig.on(rig.host, other.complete())
        await rig.on(slow, client.aclose())

    in_cluster(main)


def test_messages_that_the_loop_had_not_given_yet_go_back() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        for name in "abc":
            await rig.on(rig.host, queue.enqueue(b"", id=name, lease_s=600))

        async def work() -> None:
            leases = queue.leases(worker="w", count=3)
            async for lease in leases:
                await lease.complete()
                break
            await leases.aclose()

        await rig.on(rig.host, work())
        await asyncio.sleep(1)
        rows = rig.stored()
        assert [rows[name].state for name in "abc"] == [
            State.COMPLETED,
            State.PENDING,
            State.PENDING,
        ]
        assert rows["b"].attempts_left == 3

    in_cluster(main)


# -- silos stop and crash


def test_a_poll_waits_on_while_the_owner_moves_to_another_silo() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=25))
        await asyncio.sleep(1)
        start_s = rig.simulation.loop.time()
        await rig.cluster.stop_silo(rig.owner_of())
        assert rig.simulation.loop.time() - start_s < 2, "polls hold no silo up"
        await asyncio.sleep(3)
        await rig.on(rig.host, queue.enqueue(b"x"))
        [lease] = await asyncio.wait_for(polling, 2)
        assert lease.attempt == 1

    in_cluster(main)


def test_what_falls_due_after_its_owner_died_is_done_within_seconds() -> None:
    """No program uses the queue any more, but its lease still expires."""

    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", lease_s=20))
        await rig.on(rig.host, queue.dequeue(worker="w"))
        rig.simulation.crash(rig.owner_of())
        await asyncio.sleep(18)
        assert rig.stored()["x"].state == State.RUNNING
        await asyncio.sleep(14)
        assert rig.stored()["x"].state == State.PENDING

    in_cluster(main, silos=3)


def test_a_queue_whose_owner_was_collected_is_woken() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", id="x", invisible_s=60))
        await asyncio.sleep(40)
        with pytest.raises(AssertionError, match="nobody owns"):
            rig.owner_of()
        await asyncio.sleep(22)
        assert rig.stored()["x"].state == State.PENDING

    in_cluster(main)


def test_a_queue_that_cannot_be_woken_keeps_no_other_from_it() -> None:
    async def main(rig: Rig) -> None:
        for name in ("a-hung", "b-fine", "c-fine"):
            await rig.on(rig.host, rig.queue(name).enqueue(b"x", id="x", invisible_s=60))
        await asyncio.sleep(40)  # their owners are collected

        async def hang(name: str) -> None:
            if name == "a-hung":
                await never()

        rig.faults.on_before = hang
        await asyncio.sleep(24)
        states = [rig.stored(name)["x"].state for name in ("a-hung", "b-fine", "c-fine")]
        assert states == [State.INVISIBLE, State.PENDING, State.PENDING]
        rig.faults.on_before = None

    in_cluster(main, options=PriorityOptions(wakes_max=2, release_s=1.0))


def test_a_store_that_does_not_say_what_is_due_is_asked_again() -> None:
    async def main(rig: Rig) -> None:
        await rig.on(rig.host, rig.queue().enqueue(b"x", id="x", invisible_s=60))
        await asyncio.sleep(40)
        due, failed = rig.store.due, 0

        async def fail(*args: Any) -> list[str]:
            nonlocal failed
            failed += 1
            if failed > 30:
                return await due(*args)
            raise StorageUnavailable("the disk is away")

        rig.store.due = fail  # type: ignore[method-assign]
        await asyncio.sleep(35)
        assert failed > 30 and rig.stored()["x"].state == State.PENDING

    in_cluster(main)


def test_a_waiting_poll_gets_what_becomes_visible() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", invisible_s=5))
        start_s = rig.simulation.loop.time()
        assert await rig.on(rig.host, queue.dequeue(worker="w", wait_s=20))
        assert 4.9 < rig.simulation.loop.time() - start_s < 5.3

    in_cluster(main)


def test_a_paused_owner_is_fenced_and_answers_nobody_twice() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        for name in "abcdef":
            await rig.on(rig.host, queue.enqueue(b"", id=name, lease_s=3600))
        zombie = rig.owner_of()

        async def take(at: Any) -> list[Lease]:
            found: list[Lease] = []
            while leases := await at.dequeue(worker="w"):
                found += leases
                await asyncio.sleep(0.5)
            return found

        own = rig.spawn(take(rig.queue_at(zombie)), zombie)
        await asyncio.sleep(0.7)
        rig.simulation.pause(zombie)
        others = await rig.on(rig.host, take(queue))
        rig.simulation.resume(zombie)
        try:
            also = await own
        except MillstreamError:
            also = []  # its silo was evicted
        tokens = [lease.token for lease in [*others, *also]]
        assert len(set(tokens)) == len(tokens) and len(others) == 4
        assert all(row.version == 2 for row in rig.stored().values())

    in_cluster(main, silos=3, patience_s=90.0)


def test_an_owner_that_was_fenced_ends_and_the_next_one_answers() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"first"))
        await rig.store.acquire("q", None)  # another process owned the queue for a moment
        done = await rig.on(rig.host, queue.enqueue(b"second"))
        assert done.is_changed and rig.store._tables["q"].epoch == 3

    in_cluster(main)


# -- the queue is deleted


def test_who_waits_for_a_queue_that_is_deleted_is_told() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=25))
        await asyncio.sleep(1)
        await rig.on(rig.host, queue.delete())
        with pytest.raises(PriorityQueueNotFound, match="deleted while this poll waited"):
            await asyncio.wait_for(polling, 1)
        with pytest.raises(PriorityQueueNotFound):
            await rig.on(rig.host, queue.settings())
        done = await rig.on(rig.host, queue.enqueue(b"x"))
        assert done.is_changed, "the next enqueue makes a new one"

    in_cluster(main)


def test_a_deletion_whose_owner_dies_after_it_is_done() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.create())

        async def die() -> None:
            rig.simulation.crash(rig.owner_of())

        died = await once(rig, "after", die)
        await rig.on(rig.host, queue.delete())
        assert died.is_set() and rig.store._tables["q"].settings is None
        with pytest.raises(PriorityQueueNotFound):
            await rig.on(rig.host, queue.delete())

    in_cluster(main, patience_s=60.0)


def test_a_lease_of_a_deleted_queue_is_lost() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", lease_s=60))

        async def work() -> None:
            [lease] = await queue.dequeue(worker="w")
            async with lease:
                await queue.delete()

        with pytest.raises(LeaseLost):
            await rig.on(rig.host, work())

    in_cluster(main)


# -- the clock


def test_a_clock_that_jumps_forward_ends_leases_within_seconds() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", lease_s=3000))
        await rig.on(rig.host, queue.dequeue(worker="w"))
        polling = rig.spawn(queue.dequeue(worker="other", wait_s=25))
        await asyncio.sleep(1)
        rig.step(3600.0)
        [lease] = await asyncio.wait_for(polling, 5)
        assert lease.attempt == 2

    in_cluster(main)


def test_what_an_operation_does_by_the_way_after_a_jump_is_told_at_once() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", invisible_s=2000, id="x"))
        await rig.on(rig.host, queue.enqueue(b"y", invisible_s=9000, id="y"))
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=25))
        await asyncio.sleep(1)
        rig.step(3600.0)
        await rig.on(rig.host, queue.prioritise("y", 5))
        [lease] = await asyncio.wait_for(polling, 0.5)
        assert lease.id == "x"

    in_cluster(main)


def test_a_clock_that_is_set_back_shortens_no_lease() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"x", lease_s=10))
        [lease] = await rig.on(rig.host, queue.dequeue(worker="w"))
        rig.step(-5.0)
        assert not await rig.on(rig.host, queue.dequeue(worker="other", wait_s=9))
        [other] = await rig.on(rig.host, queue.dequeue(worker="other", wait_s=15))
        assert other.attempt == 2 and other.token.epoch > lease.token.epoch

    in_cluster(main)


# -- the store hangs


def test_a_silent_store_costs_each_caller_its_patience_and_no_other_queue() -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue("other")
        await rig.on(rig.host, queue.enqueue(b"first"))

        async def hang(name: str) -> None:
            if name == "q":
                await never()

        rig.faults.on_before = hang
        start_s = rig.simulation.loop.time()
        with pytest.raises(CallTimeout):
            await rig.on(rig.host, queue.enqueue(b"second"))
        assert 12 < rig.simulation.loop.time() - start_s < 30
        assert (await rig.on(rig.host, other.enqueue(b"x"))).is_changed
        start_s = rig.simulation.loop.time()
        await rig.cluster.stop_silo(rig.owner_of())
        assert rig.simulation.loop.time() - start_s < 7
        rig.faults.on_before = None
        assert (await rig.on(rig.host, queue.enqueue(b"third"))).is_changed

    in_cluster(main, patience_s=15.0, options=PriorityOptions(release_s=5.0))


def test_a_poll_waits_while_something_is_due_that_polls_do_not_do() -> None:
    """Collection is background work. A poll that looks before it sleeps anyway."""

    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.create(QueueSettings(retention_ms=1)))
        for number in range(20):
            await rig.on(rig.host, queue.enqueue(b"x", id=str(number)))
            [lease] = await rig.on(rig.host, queue.dequeue(worker="w"))
            await rig.on(rig.host, lease.complete())
            assert await rig.on(rig.host, queue.dequeue(worker="w", wait_s=0.01)) == []
        await asyncio.sleep(1)
        assert not rig.stored()  # the collection is done

    in_cluster(main)
