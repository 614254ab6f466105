"""The handle of a queue in programs: enqueueing, dequeueing, and immediate refusals."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import (
    EmbeddedStore,
    Enqueued,
    ExclusivityMissing,
    LeaseLost,
    LeaseToken,
    MemoryStore,
    MessageExists,
    NewMessage,
    PriorityClass,
    PriorityOptions,
    PriorityQueueNotFound,
    PriorityQueues,
    QueueSettings,
    QueuesOf,
    RequestInvalid,
    SettingsConflict,
    State,
    Template,
    priority_queue,
    priority_queues,
)
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.owner.grain import QueueOwner
from millstream.providers.priority.surface import asking
from millstream.providers.priority.surface.asking import SessionPool
from millstream.runtime import ConfigError, Grain, LocalCluster, Overloaded
from millstream.runtime.testing import grain_of

DAY_MS = 86_400_000


class Encoder(Grain):
    async def put(self, payload: bytes) -> str:
        return (await priority_queue(self, "q").enqueue(payload)).id


def cluster_of(store: MemoryStore, silos: int = 1, **options: Any) -> LocalCluster:
    return LocalCluster(
        grains=[Encoder],
        silos=silos,
        parts={"priority": lambda: PriorityQueues(store, **options)},
    )


async def test_every_kind_of_program_has_handles_of_the_same_queue() -> None:
    async with cluster_of(MemoryStore(), silos=2) as cluster:
        made = await cluster.grain(Encoder, "e").put(b"by a grain")
        await priority_queue(cluster.silos[1], "q").enqueue(b"by a silo")
        await priority_queue(cluster.client, "q").enqueue(b"by a client")
        found = await priority_queue(cluster, "q").page()
        assert [view.payload for view in found] == [b"by a grain", b"by a silo", b"by a client"]
        assert found[0].id == made and len({view.id for view in found}) == 3


async def test_queues_of_an_embedded_store_outlive_the_cluster(tmp_path: Path) -> None:
    for expected in ([], [b"film"]):
        # one store for each silo, in one place
        stores = (EmbeddedStore(tmp_path) for _ in range(2))
        parts = {"priority": lambda stores=stores: PriorityQueues(next(stores))}
        async with LocalCluster(grains=[], silos=2, parts=parts) as cluster:
            queue = priority_queue(cluster, "q")
            leases = await queue.dequeue(worker="w")
            assert [lease.payload for lease in leases] == expected
            await queue.enqueue(b"film", id="film", priority=1)
            waiting = asyncio.create_task(queue.dequeue(worker="w", wait_s=20))
            await queue.enqueue(b"trailer")
            [lease] = await asyncio.wait_for(waiting, 20)
            await lease.release(refund=True)


async def test_the_names_of_queues_are_found_from_a_client_and_from_a_silo() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        for name in ("b", "a1", "a2"):
            await priority_queue(cluster, name).create()
        assert [name async for name in priority_queues(cluster)] == ["a1", "a2", "b"]
        assert [name async for name in priority_queues(cluster.silos[0], "a")] == ["a1", "a2"]


async def test_priorities_are_the_time_of_the_enqueue_and_classes_shift_it() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        for one in (None, PriorityClass.LOW, PriorityClass.HIGH, 5):
            await queue.enqueue(b"", id=str(one), priority=one)
        views = {view.id: view for view in await queue.page()}
        standard, low = views["None"], views["PriorityClass.LOW"]
        assert 0 <= standard.created_ms - standard.priority < 5_000
        assert 0 <= low.created_ms + 3_650 * DAY_MS - low.priority < 5_000
        order = [view.id for view in await queue.peek(4)]
        assert order == ["5", "PriorityClass.HIGH", "None", "PriorityClass.LOW"]


def test_a_class_has_a_deadline_and_gives_way_to_tags() -> None:
    assert PriorityClass.HIGH.by(3_650 * DAY_MS) == 0
    tags = ["studio", "LOW", "DAY_OF_BROADCAST"]
    assert PriorityClass.STANDARD.overridden(tags) is PriorityClass.DAY_OF_BROADCAST
    assert PriorityClass.BULK.overridden(["studio"]) is PriorityClass.BULK


async def test_the_same_body_under_the_same_id_is_taken_once() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        first = await queue.enqueue(b"x", id="x", priority=1)
        again = await queue.enqueue(b"x", id="x", priority=1)
        assert (first.is_changed, again.is_changed) == (True, False)
        with pytest.raises(MessageExists, match="'x' exists with another body"):
            await queue.enqueue(b"y", id="x", priority=1)


async def test_of_many_messages_each_has_its_own_answer() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        news = [NewMessage(b"1", id="1"), NewMessage(b"2" * 40_000), NewMessage(b"3", id="3")]
        first, refused, third = await queue.enqueue_many(news)
        assert isinstance(first, Enqueued) and isinstance(third, Enqueued)
        assert isinstance(refused, RequestInvalid) and refused.field == "payload"
        assert "payload_bytes_max is 32768" in str(refused)
        with pytest.raises(RequestInvalid, match="payload_bytes_max"):
            await queue.enqueue_many([NewMessage(b"4"), news[1]], all_or_nothing=True)
        assert (await queue.depth())[State.PENDING] == 2


async def test_one_message_can_be_cancelled_prioritised_and_enqueued_again() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        for number, name in enumerate("ab"):
            await queue.enqueue(name.encode(), id=name, priority=number)
        await queue.prioritise("b", -1)
        assert (await queue.peek())[0].id == "b"
        await queue.cancel("b", reason="not needed")
        assert (await queue.get("b")).state is State.CANCELED
        again = await queue.requeue("b", new_id="c")
        assert (again.id, again.state) == ("c", State.PENDING)
        assert [view.id for view in await queue.page(after=1)] == ["b", "c"]
        assert [view.id for view in await queue.page(state=State.PENDING)] == ["a", "c"]


async def test_a_filter_finds_only_what_has_its_pairs() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        for name, region in (("a", "us"), ("b", "eu")):
            await queue.enqueue(b"", id=name, metadata={"region": region, "tier": "1"})
        [lease] = await queue.dequeue(worker="w", count=5, wanted={"region": "eu"})
        assert lease.id == "b" and dict(lease.metadata) == {"region": "eu", "tier": "1"}
        assert (await queue.depth(wanted={"tier": "1"}))[State.RUNNING] == 1


async def test_an_exclusive_queue_is_made_by_a_template() -> None:
    template = Template("plato-", QueueSettings(exclusivity_key="project"))
    async with cluster_of(MemoryStore(), templates=[template]) as cluster:
        queue = priority_queue(cluster, "plato-1")
        with pytest.raises(ExclusivityMissing, match="exclusivity_key"):
            await queue.enqueue(b"")
        for project in ("foo", "foo", "bar"):
            await queue.enqueue(b"", metadata={"project": project})
        leases = await queue.dequeue(worker="w", count=3)
        assert [dict(lease.metadata)["project"] for lease in leases] == ["foo", "bar"]
        waiting = asyncio.create_task(queue.dequeue(worker="w2", wait_s=20))
        assert (await queue.values())["foo"][State.PENDING] == 1
        await leases[0].complete()
        [lease] = await asyncio.wait_for(waiting, 5)
        assert dict(lease.metadata) == {"project": "foo"}


async def test_without_auto_create_a_queue_must_be_created() -> None:
    async with cluster_of(MemoryStore(), auto_create=False) as cluster:
        queue = priority_queue(cluster, "q")
        for call in (queue.enqueue(b""), queue.dequeue(worker="w", wait_s=1), queue.depth()):
            with pytest.raises(PriorityQueueNotFound):
                await call
        assert (await queue.create(QueueSettings(attempts=7))).version == 1
        assert (await queue.create(QueueSettings(attempts=7))).version == 1
        with pytest.raises(SettingsConflict, match="other settings, of version 1"):
            await queue.create(QueueSettings(attempts=8))
        row = await queue.configure(QueueSettings(attempts=8), version=1)
        assert row == await queue.settings() and row.version == 2
        with pytest.raises(SettingsConflict, match="version 2, not 1"):
            await queue.configure(QueueSettings(attempts=9), version=1)


async def test_a_blocked_queue_lets_polls_wait_until_it_is_unblocked() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        await queue.enqueue(b"x")
        await queue.configure(QueueSettings(dequeue_blocked=True))
        waiting = asyncio.create_task(queue.dequeue(worker="w", wait_s=20))
        assert not await queue.dequeue(worker="other")
        await queue.configure(QueueSettings())
        assert await asyncio.wait_for(waiting, 5)


REFUSED: dict[str, Any] = {
    "payload": lambda queue: queue.enqueue("text"),
    "priority": lambda queue: queue.enqueue(b"", priority=2**53 + 1),
    "id": lambda queue: queue.enqueue(b"", id=""),
    "metadata": lambda queue: queue.enqueue(b"", metadata={str(n): "" for n in range(5)}),
    "invisible_s": lambda queue: queue.enqueue(b"", invisible_s=-1),
    "lease_s": lambda queue: queue.dequeue(worker="w", lease_s=float("nan")),
    "wait_s": lambda queue: queue.dequeue(worker="w", wait_s="1"),
    "worker": lambda queue: queue.dequeue(worker=""),
    "count": lambda queue: queue.dequeue(worker="w", count=1001),
    "attempts": lambda queue: queue.enqueue(b"", attempts=1.5),
    "attempts beyond the wire": lambda queue: queue.enqueue(b"", attempts=10**30),
    "count beyond the wire": lambda queue: queue.dequeue(worker="w", count=10**30),
    "count of a peek": lambda queue: queue.peek(10**30),
    "count of a page": lambda queue: queue.page("5"),
    "after": lambda queue: queue.page(after=10**30),
    "version": lambda queue: queue.configure(QueueSettings(), version=10**30),
    "lease_s of the queue": lambda queue: queue.dequeue(worker="w", lease_s=1e8),
}


@pytest.mark.parametrize("field", REFUSED)
async def test_a_refusal_names_queue_and_field(field: str) -> None:
    async with cluster_of(MemoryStore()) as cluster:
        named = field.partition(" ")[0]
        with pytest.raises(RequestInvalid, match=f"queue 'q': {named}") as caught:
            await REFUSED[field](priority_queue(cluster, "q"))
        assert (caught.value.queue, caught.value.field) == ("q", named)


async def test_a_name_that_cannot_be_is_refused() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        for name in ("", "x" * 257):
            with pytest.raises(RequestInvalid, match="queue has"):
                priority_queue(cluster, name)


async def test_a_silo_without_the_part_says_so() -> None:
    async with LocalCluster(grains=[Encoder]) as cluster:
        with pytest.raises(ConfigError, match="'priority'"):
            [name async for name in priority_queues(cluster.silos[0])]


async def test_a_part_serves_one_silo() -> None:
    part = PriorityQueues(MemoryStore())
    with pytest.raises(ConfigError, match="make one per silo"):
        async with LocalCluster(grains=[], silos=2, parts={"priority": lambda: part}):
            pass


async def test_silos_that_would_create_queues_differently_are_refused() -> None:
    store, creates = MemoryStore(), iter([True, False])
    parts = {"priority": lambda: PriorityQueues(store, auto_create=next(creates))}
    with pytest.raises(ConfigError, match="queues created on use"):
        async with LocalCluster(grains=[], silos=2, parts=parts):
            pass


async def test_what_is_remembered_of_sessions_ends_with_client_and_silo() -> None:
    gc.collect()
    before = len(asking._known)

    async def use() -> None:
        async with cluster_of(MemoryStore()) as cluster:
            await priority_queue(cluster, "q").enqueue(b"")
            await priority_queue(cluster.silos[0], "q").dequeue(worker="w")
            assert len(asking._known) == before + 2

    def is_forgotten() -> bool:
        gc.collect()
        return len(asking._known) == before

    await use()
    await until(is_forgotten)  # a closed listener is released some iterations of the loop later


async def test_a_unit_test_gives_a_fake_of_a_queue() -> None:
    class Fake:
        async def enqueue(self, payload: bytes) -> Enqueued:
            return Enqueued(payload.decode(), State.PENDING, 1, True)

    encoder = grain_of(Encoder, streams={(QueuesOf("priority"), "q"): Fake()})
    assert await encoder.put(b"x") == "x"


def test_at_the_limit_of_waiting_polls_the_next_one_is_refused() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        polls = [rig.spawn(queue.dequeue(worker="w", wait_s=20)) for _ in range(3)]
        await asyncio.sleep(1)
        with pytest.raises(Overloaded, match="waiting_polls_max is 3"):
            await rig.on(rig.host, queue.dequeue(worker="w", wait_s=20))
        assert not await rig.on(rig.host, queue.dequeue(worker="w"))
        for poll in polls:
            assert await poll == []

    in_cluster(main, options=PriorityOptions(waiting_polls_max=3))


def test_polls_that_wait_take_no_place_of_a_change() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        polls = [rig.spawn(queue.dequeue(worker="w", wait_s=25)) for _ in range(100)]
        await asyncio.sleep(1)
        start_s = rig.simulation.loop.time()
        await rig.on(rig.host, queue.enqueue_many([NewMessage(b"")] * 100))
        assert [len(await poll) for poll in polls] == [1] * 100
        assert rig.simulation.loop.time() - start_s < 1

    in_cluster(main)


@pytest.mark.parametrize("waiting", [10, 300])
def test_a_message_costs_as_many_looks_however_many_wait(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = QueueOwner._dequeue, 0

    async def counted(self: QueueOwner, *args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(self, *args)

    async def main(rig: Rig) -> None:
        nonlocal looks
        queue = rig.queue()
        polls = [rig.spawn(queue.dequeue(worker="w", wait_s=25)) for _ in range(waiting)]
        await asyncio.sleep(1)
        assert looks <= 2, "those who come later sleep at once"
        looks = 0
        for _ in range(10):
            await rig.on(rig.host, queue.enqueue(b""))
        await asyncio.sleep(1)
        assert sum(poll.done() for poll in polls) == 10 and looks <= 3 * 10
        for poll in polls:
            poll.cancel()

    monkeypatch.setattr(QueueOwner, "_dequeue", counted)
    in_cluster(main)


def test_a_poll_waits_longer_than_one_call_may() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        polling = rig.spawn(queue.dequeue(worker="w", wait_s=100))
        await asyncio.sleep(75)
        await rig.on(rig.host, queue.enqueue(b"x"))
        assert await asyncio.wait_for(polling, 1)

    in_cluster(main)


async def test_a_session_is_used_by_one_request_at_a_time_and_acknowledges_the_one_before() -> None:
    names = iter("abc")
    pool = SessionPool(lambda: next(names), 2)
    first, second = await pool.take(), await pool.take()
    assert (first.next(), second.next()) == (Request("a", 1, 0), Request("b", 1, 0))
    third = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    assert not third.done()
    pool.give(second)
    assert (await third).next() == Request("b", 2, 1)
    pool.give(first)
    assert (await pool.take()).next() == Request("a", 2, 1)
    pool.give(first)
    pool.give(second)
    assert {(await pool.take()).name, (await pool.take()).name} == {"a", "b"}


async def test_a_lease_is_ended_by_whoever_has_its_id_and_token() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue = priority_queue(cluster, "q")
        await queue.enqueue(b"", id="m")
        (lease,) = await queue.dequeue(worker="w")
        held = await queue.extend("m", lease.token, 600)
        assert held.due_ms >= lease.deadline_ms
        assert (await queue.release("m", lease.token, delay_s=0)).state is State.PENDING
        with pytest.raises(LeaseLost):
            await queue.complete("m", lease.token)
        (again,) = await queue.dequeue(worker="w")
        assert (again.attempt, again.token > lease.token) == (2, True)
        await queue.release("m", again.token, refund=True, reason="not begun")
        (last,) = await queue.dequeue(worker="w")
        assert last.attempt == 2, "what was given back was no attempt"
        assert (await queue.fail("m", last.token, reason="bad")).state is State.ERRORED
        assert (await queue.get("m")).reason == "bad"


async def test_what_is_no_end_of_a_lease_is_refused_before_it_is_sent() -> None:
    async with cluster_of(MemoryStore()) as cluster:
        queue, token = priority_queue(cluster, "q"), LeaseToken(1, 2)
        odd: Any = (1, 2)
        for ending, field in (
            (queue.complete("", token), "id has 0 bytes"),
            (queue.complete("m", odd), "token is "),
            (queue.fail("m", token, reason="x" * 2_000), "reason has 2000 bytes"),
            (queue.release("m", token, delay_s=-1), "delay_s is -1"),
            (queue.extend("m", token, float("nan")), "lease_s is nan"),
        ):
            with pytest.raises(RequestInvalid, match=field):
                await ending


async def test_a_session_that_was_handed_to_whom_is_cancelled_goes_to_the_next() -> None:
    pool = SessionPool(lambda: "a", 1)
    only = await pool.take()
    waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    pool.give(only)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert waiting[0].cancelled() and await waiting[1] is only
    pool.give(only)
    waiting[2].cancel()
    await asyncio.wait([waiting[2]])
    assert waiting[2].cancelled() and await pool.take() is only
