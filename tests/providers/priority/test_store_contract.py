"""The contract of every store of priority queues. See `store/contract.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.priority.places import PLACES, Faults, Place

from millstream.providers.priority import (
    Enqueued,
    LeaseForeign,
    LeaseLost,
    LeaseToken,
    MessageExists,
    MessageNotFound,
    OwnerLost,
    PriorityQueueNotFound,
    PriorityStore,
    QueueSettings,
    RequestInvalid,
    RequestStale,
    State,
    StoreLimits,
)
from millstream.providers.priority.core.commands import (
    Cancel,
    Command,
    Complete,
    Configure,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Extend,
    Get,
    Page,
    Prioritise,
    ReadSettings,
    Release,
)
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.runtime import Overloaded, StorageUnavailable

SIMPLE = QueueSettings(lease_ms=10_000)
FULL = Enqueue("full", b"x" * 5_000, -7, (("a", "ä"), ("b", "")), None, 5_000, 2)
FIRST = {
    "a request": lambda queue: queue.do(Enqueue("z", b"x", 1)),
    "a poll": lambda queue: queue.do(Dequeue("w")),
    "a poll of nothing": lambda queue: queue.do(Dequeue("w", 1, (("a", "none"),))),
    "a refusal": lambda queue: queue.do(Cancel("nobody")),
    "a look": lambda queue: queue.look(Depth()),
    "a sweep": lambda queue: queue.sweep(),
    "a deletion": lambda queue: queue.delete(),
}
ASKED = pytest.mark.parametrize("asked", FIRST.values(), ids=FIRST)
Ask = Callable[[OwnedQueue], Awaitable[Any]]


class Desk:
    """A place, and the stores that a test opened over it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.stores: list[PriorityStore] = []

    @property
    def faults(self) -> Faults:
        return self.place.faults

    async def store(
        self, limits: StoreLimits | None = None, *, events: bool = True
    ) -> PriorityStore:
        store = self.place.store(limits, events=events)
        await store.open()
        self.stores.append(store)
        return store

    async def queue(self, name: str = "q", settings: QueueSettings | None = SIMPLE) -> OwnedQueue:
        """Acquire a queue with another store, as another process would."""
        return await (await self.store()).acquire(name, settings)

    async def aclose(self) -> None:
        if self.faults.gate is not None:
            self.faults.let()
        for store in self.stores:
            await store.aclose()


@pytest.fixture(params=PLACES)
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(PLACES[request.param](tmp_path))
    yield desk
    await desk.aclose()


async def page(queue: OwnedQueue) -> list[str]:
    return [view.id for view in await queue.look(Page())]


async def until_waiting(faults: Faults, count: int = 1) -> None:
    while faults.waiting < count:
        await asyncio.sleep(0)


# -- answered operations are stored


async def test_a_queue_is_made_only_when_asked_for(desk: Desk) -> None:
    store = await desk.store()
    with pytest.raises(PriorityQueueNotFound, match="'q'"):
        await store.acquire("q", None)
    assert await store.queues("", "", 9) == []
    settings = QueueSettings("project", 2, shapes=(("a", "b"),), attempts=7)
    made = await store.acquire("q", settings)
    assert (await made.look(ReadSettings())).settings == settings
    again = await store.acquire("q", SIMPLE)
    assert (await again.look(ReadSettings())) == (1, settings), "it was there"
    assert await store.queues("", "", 9) == ["q"]


async def test_the_next_owner_finds_all_that_was_answered(desk: Desk) -> None:
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 5), FULL, Enqueue("b", b"y", 3))))
    given = await queue.do(Dequeue("w"), Request("s", 1))
    await queue.do(Extend("full", given.leases[0].token, 9_000))
    await queue.do(Cancel("a", None, "not needed"))
    await queue.do(Prioritise("b", 1))
    await queue.do(Configure(QueueSettings(attempts=9)))
    before = await queue.look(Page())
    other = await desk.queue()
    assert await other.look(Page()) == before
    assert (await other.look(Get("full"))).payload == b"x" * 5_000
    assert (await other.look(ReadSettings())) == (2, QueueSettings(attempts=9))
    repeated = await other.do(Dequeue("w"), Request("s", 1))
    assert [one.token for one in repeated.leases] == [one.token for one in given.leases]
    assert repeated.leases[0].payload == b"x" * 5_000
    assert await other.look(Depth()) == await other.look(Depth())


async def test_a_message_keeps_its_payload_over_every_change(desk: Desk) -> None:
    queue = await desk.queue()
    for id, size in (("none", 0), ("short", 1_024), ("long", 1_025), ("longest", 32_768)):
        await queue.do(Enqueue(id, bytes(size), 1))
    for round_ in range(2):
        leases = (await queue.do(Dequeue("w", 4))).leases
        assert [len(one.payload) for one in leases] == [0, 1_024, 1_025, 32_768]
        queue = await desk.queue()
        for lease in leases:
            await queue.do(Release(lease.id, lease.token))
            await queue.do(Prioritise(lease.id, round_))
    done = (await queue.do(Dequeue("w", 4))).leases
    for lease in done:
        await queue.do(Complete(lease.id, lease.token))
    queue = await desk.queue()
    views = await queue.look(Page())
    assert {(view.state, view.payload) for view in views} == {(State.COMPLETED, b"")}
    for id, size in (("none", 0), ("short", 1_024), ("long", 1_025), ("longest", 32_768)):
        assert not (await queue.do(Enqueue(id, bytes(size), 1))).is_changed
        with pytest.raises(MessageExists):
            await queue.do(Enqueue(id, bytes(size - 1) + b"x" if size else b"x", 1))


async def test_a_message_whose_whole_life_is_one_commit_is_stored_without_its_payload(
    desk: Desk,
) -> None:
    queue = await desk.queue()
    desk.faults.close()
    first = asyncio.create_task(queue.do(Enqueue("first", b"", 1)))
    await until_waiting(desk.faults)
    commands: list[Command] = [Enqueue("m", b"x" * 2_000, 0), Dequeue("w")]
    commands += [Complete("m", LeaseToken(1, 2))]
    asked = [asyncio.create_task(queue.do(command)) for command in commands]
    await asyncio.sleep(0)
    desk.faults.let()
    await asyncio.gather(first, *asked)
    queue = await desk.queue()
    assert (await queue.look(Get("m"))).payload == b""
    assert not (await queue.do(Enqueue("m", b"x" * 2_000, 0))).is_changed


async def test_a_reset_of_the_clock_is_stored_and_a_deletion_forgets_the_time(desk: Desk) -> None:
    desk.place.clock.now_ms = 10**12
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 2))))
    [first] = (await queue.do(Dequeue("w"))).leases
    desk.place.clock.now_ms = 5_000
    assert queue.now_ms() >= 10**12
    assert await queue.reset_clock() == (5_000, 5_000)
    queue = await desk.queue()
    assert queue.now_ms() == 5_000
    assert (await queue.look(Get("a"))).due_ms <= 5_000 + 10_000
    await queue.do(Complete("a", first.token))
    desk.place.clock.now_ms = 10**12
    await queue.do(Dequeue("w"))
    desk.place.clock.now_ms = 5_000
    await queue.delete()
    queue = await desk.queue()
    assert await queue.read_clock() == (5_000, 5_000)
    await queue.do(Enqueue("a", b"", 1))
    assert (await queue.do(Dequeue("w"))).leases[0].token.epoch > first.token.epoch


async def test_how_far_a_queue_is_ahead_of_its_machine_is_stored(desk: Desk) -> None:
    desk.place.clock.now_ms = 10**12
    await (await desk.queue()).do(Enqueue("a", b"", 1))
    desk.place.clock.now_ms = 5_000
    await (await desk.queue()).sweep()
    desk.place.clock.now_ms = 5_000 + 60_000  # the queue had no owner for a minute
    assert (await desk.queue()).now_ms() >= 10**12 + 60_000


async def test_tokens_and_times_do_not_go_back_with_the_clock_or_the_owner(desk: Desk) -> None:
    desk.place.clock.now_ms = 90_000
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 2))))
    [first] = (await queue.do(Dequeue("w"))).leases
    desk.place.clock.now_ms = 5_000
    queue = await desk.queue()
    assert queue.now_ms() >= 90_000
    [second] = (await queue.do(Dequeue("w"))).leases
    assert second.token.epoch > first.token.epoch
    assert second.deadline_ms >= first.deadline_ms
    assert (await queue.look(Get("b"))).changed_ms >= 90_000


async def test_the_time_of_the_latest_change_is_stored_with_it(desk: Desk) -> None:
    queue = await desk.queue()
    desk.place.clock.now_ms = 90_000
    await queue.do(Enqueue("a", b"", 1))
    desk.place.clock.now_ms = 5_000
    assert 90_000 <= (await desk.queue()).now_ms() < 95_000


async def test_a_clock_that_jumps_ahead_ends_leases_and_back_does_not_bring_them_back(
    desk: Desk,
) -> None:
    queue = await desk.queue()
    await queue.do(Enqueue("a", b"", 1))
    [lease] = (await queue.do(Dequeue("w"))).leases
    desk.place.clock.now_ms = 9_000_000
    await queue.sweep()
    desk.place.clock.now_ms = 2_000
    for _ in range(2):
        with pytest.raises(LeaseLost):
            await queue.do(Complete("a", lease.token))
        queue = await desk.queue()


# -- one owner


@ASKED
async def test_who_was_followed_gives_no_answer_at_all(desk: Desk, asked: Ask) -> None:
    first = await desk.queue()
    await first.do(Enqueue("a", b"", 1))
    second = await desk.queue()
    assert second.epoch > first.epoch
    with pytest.raises(OwnerLost, match="'q'"):
        await asked(first)
    assert first.is_lost and not second.is_lost
    with pytest.raises(OwnerLost):
        await first.look(Depth())
    assert await page(second) == ["a"]


async def test_an_owner_is_followed_in_mid_commit(desk: Desk) -> None:
    first = await desk.queue()
    await first.do(Enqueue("a", b"", 1))
    desk.faults.close()
    late: list[asyncio.Future[Any]] = [asyncio.ensure_future(first.do(Enqueue("b", b"", 1)))]
    await until_waiting(desk.faults)
    late.append(asyncio.ensure_future(first.do(Dequeue("w"))))
    late.append(asyncio.ensure_future(first.look(Depth())))
    gate, desk.faults.gate = desk.faults.gate, None
    second = await desk.queue()
    taken = await second.do(Dequeue("v"))
    assert gate is not None
    gate.set()
    for task in late:
        with pytest.raises(OwnerLost):
            await task
    assert await page(second) == ["a"] and [one.id for one in taken.leases] == ["a"]
    third = await desk.queue()
    assert (await third.look(Get("a"))).worker == "v", "the commit of the first came to nothing"


async def test_of_many_who_acquire_at_once_the_one_of_the_highest_epoch_owns(desk: Desk) -> None:
    stores = [await desk.store() for _ in range(4)]
    owners = await asyncio.gather(
        *(store.acquire("q", SIMPLE) for store in stores * 3), return_exceptions=True
    )
    held = [one for one in owners if not isinstance(one, BaseException)]
    assert all(isinstance(one, OwnerLost) for one in owners if isinstance(one, BaseException))
    last = max(held, key=lambda one: one.epoch)
    assert len({one.epoch for one in held}) == len(held)
    for owner in held:
        if owner is not last:
            with pytest.raises(OwnerLost):
                await owner.do(Enqueue("z", b"", 1))
    assert (await last.do(Enqueue("a", b"", 1))).is_changed


async def test_an_acquire_that_is_cancelled_leaves_nothing_behind(desk: Desk) -> None:
    for turns in range(4):
        task = asyncio.ensure_future(desk.queue())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    queue = await desk.queue()
    assert (await queue.do(Enqueue("a", b"", 1))).is_changed


# -- failed commits


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_request_whose_commit_failed_is_done_once(desk: Desk, is_stored: bool) -> None:
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 2))))
    setattr(desk.faults, "failing_after" if is_stored else "failing_before", 1)
    request = Request("s", 1)
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(queue.do(Dequeue("w"), request))]
    tasks.append(asyncio.ensure_future(queue.look(Depth())))
    for task in tasks:
        with pytest.raises(StorageUnavailable, match="planted"):
            await task
    with pytest.raises(OwnerLost, match="a commit failed"):
        await queue.do(Dequeue("w"), request)
    other = await desk.queue()
    running = (await other.look(Depth()))[State.RUNNING]
    assert running == is_stored
    given: Dequeued = await other.do(Dequeue("w"), request)
    assert [one.id for one in given.leases] == ["a"] and given.leases[0].attempt == 1
    assert (await other.look(Depth()))[State.RUNNING] == 1


@pytest.mark.parametrize("is_stored", [False, True])
async def test_an_enqueue_whose_commit_failed_is_taken_once(desk: Desk, is_stored: bool) -> None:
    queue = await desk.queue()
    setattr(desk.faults, "failing_after" if is_stored else "failing_before", 1)
    with pytest.raises(StorageUnavailable):
        await queue.do(Enqueue("a", b"x", 1), Request("s", 1))
    other = await desk.queue()
    again: Enqueued = await other.do(Enqueue("a", b"x", 1), Request("s", 1))
    assert again == ("a", State.PENDING, 1, True)
    assert await page(other) == ["a"]


async def test_a_request_that_comes_again_with_another_mark_is_refused(desk: Desk) -> None:
    queue = await desk.queue()
    marked = Request("s", 1, 0, "of a")
    first = await queue.do(Enqueue("a", b"x", 1), marked)
    queue = await desk.queue()
    assert await queue.do(Enqueue("a", b"x", 1), marked) == first
    for other in (Request("s", 1, 0, "of b"), Request("s", 1)):
        with pytest.raises(RequestInvalid, match="number 1 was used for 'enqueue of a', ") as found:
            await queue.do(Enqueue("b", b"x", 1), other)
        assert found.value.field == "number"
    with pytest.raises(RequestInvalid, match="mark has 65 bytes, not 0 to 64"):
        await queue.do(Enqueue("b", b"x", 1), Request("s", 2, 0, "m" * 65))
    assert await page(queue) == ["a"]


async def test_a_caller_that_leaves_takes_nothing_back(desk: Desk) -> None:
    queue = await desk.queue()
    desk.faults.close()
    task = asyncio.ensure_future(queue.do(Enqueue("a", b"x", 1)))
    await until_waiting(desk.faults)
    task.cancel()
    await asyncio.wait([task])
    desk.faults.let()
    assert await page(queue) == ["a"]
    assert await page(await desk.queue()) == ["a"]


# -- the end of a hold, a store and a queue


async def test_release_and_close_answer_what_waits(desk: Desk) -> None:
    store = await desk.store()
    queues = [await store.acquire(name, SIMPLE) for name in ("q", "r")]
    desk.faults.close()
    tasks = [asyncio.ensure_future(queue.do(Enqueue("a", b"x", 1))) for queue in queues]
    await until_waiting(desk.faults, 2)
    tasks += [asyncio.ensure_future(queue.do(Enqueue("b", b"x", 1))) for queue in queues]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.aclose())
    while not all(queue.is_lost for queue in queues):
        await asyncio.sleep(0)
    for queue in queues:
        with pytest.raises(OwnerLost, match="released"):
            await queue.do(Dequeue("w"))
    desk.faults.let()
    await asyncio.wait_for(closing, 60)
    assert [(await task).id for task in tasks] == ["a", "a", "b", "b"]
    with pytest.raises(StorageUnavailable):
        await store.acquire("q", SIMPLE)
    await store.aclose()
    assert await page(await desk.queue("q")) == ["a", "b"]


async def test_a_store_of_several_users_is_closed_by_the_last(desk: Desk) -> None:
    store = await desk.store()
    await store.open()
    queue = await store.acquire("q", SIMPLE)
    await store.aclose()
    assert (await queue.do(Enqueue("a", b"", 1))).is_changed
    await store.aclose()
    with pytest.raises(OwnerLost):
        await queue.do(Dequeue("w"))


async def test_a_deleted_queue_is_gone_and_its_counters_are_not(desk: Desk) -> None:
    queue = await desk.queue()
    await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", b"x" * 2_000, 1) for n in range(9))))
    [lease] = (await queue.do(Dequeue("w"), Request("s", 1))).leases
    await queue.delete()
    assert queue.is_lost
    store = await desk.store()
    assert list(await store.queues("", "", 9)) == [] == list(await store.due(10**15, "", 9))
    with pytest.raises(PriorityQueueNotFound):
        await store.acquire("q", None)
    again = await store.acquire("q", SIMPLE)
    assert again.epoch > queue.epoch and await page(again) == []
    await again.do(Enqueue("m0", b"", 1))
    [other] = (await again.do(Dequeue("w"), Request("s", 1))).leases
    assert other.token.epoch > lease.token.epoch, "not the answer of the queue before"
    with pytest.raises((LeaseLost, LeaseForeign)):
        await again.do(Complete("m0", lease.token))
    third = await desk.queue()
    assert await page(third) == ["m0"] and (await third.look(Get("m0"))).worker == "w"


async def test_a_deletion_that_failed_leaves_a_whole_queue_or_none(desk: Desk) -> None:
    queue = await desk.queue()
    await queue.do(Enqueue("a", b"", 1))
    desk.faults.failing_before = 1
    with pytest.raises(StorageUnavailable):
        await queue.delete()
    assert queue.is_lost
    queue = await desk.queue()
    assert await page(queue) == ["a"]
    desk.faults.failing_after = 1
    with pytest.raises(StorageUnavailable):
        await queue.delete()
    with pytest.raises(PriorityQueueNotFound):
        await desk.queue("q", None)


# -- reads over all queues


@pytest.mark.parametrize("name", ["", "x" * 257, "ä" * 129, "\udc80", 7])
async def test_a_name_that_cannot_be_is_refused(desk: Desk, name: Any) -> None:
    with pytest.raises(RequestInvalid, match="queue"):
        await desk.queue(name)


NAMES = ["a", "a/b", "a/ä\n", "a0", "b%", "b\x00", "x" * 256, "é" * 128]


async def test_queues_are_listed_in_order_and_in_pages(desk: Desk) -> None:
    store = await desk.store()
    for name in reversed(NAMES):
        await (await store.acquire(name, SIMPLE)).do(Enqueue(name[:9], name.encode()[:9], 1))
    assert list(await store.queues("", "", 99)) == sorted(NAMES)
    assert list(await store.queues("a", "", 99)) == ["a", "a/b", "a/ä\n", "a0"]
    paged: list[str] = []
    after = ""
    while found := await store.queues("", after, 3):
        paged += found
        after = found[-1]
    assert paged == sorted(NAMES)
    for name in NAMES:
        assert await page(await desk.queue(name)) == [name[:9]]


async def test_what_is_due_is_listed_until_it_is_done(desk: Desk) -> None:
    store = await desk.store()
    queues = {name: await store.acquire(name, SIMPLE) for name in NAMES}
    assert list(await store.due(10**12, "", 99)) == []
    for number, name in enumerate(sorted(NAMES)):
        await queues[name].do(Enqueue("a", b"", 1, (), 1_000 * (number + 1)))
    assert list(await store.due(1_999, "", 99)) == []
    assert list(await store.due(4_000, "", 99)) == sorted(NAMES)[:3]
    assert list(await store.due(4_000, "a", 1)) == ["a/b"]
    desk.place.clock.now_ms = 4_000
    for name in sorted(NAMES)[:3]:
        other = await desk.queue(name, None)
        assert (await other.sweep()).steps == 1
    assert list(await store.due(4_000, "", 99)) == []


async def test_a_sweep_that_finds_nothing_due_stores_that(desk: Desk) -> None:
    queue = await desk.queue("q", QueueSettings(answers_kept_ms=1_000))
    await queue.do(Enqueue("a", b"", 1), Request("s", 1))
    await queue.do(Configure(QueueSettings(answers_kept_ms=900_000)))
    await queue.do(Enqueue("b", b"", 1), Request("s", 2, 1))
    store = await desk.store()
    desk.place.clock.now_ms = 800_000
    queue = await store.acquire("q", None)
    await queue.sweep()
    assert list(await store.due(800_000, "", 9)) == []


# -- events


async def positions(store: PriorityStore) -> list[tuple[int, str, int]]:
    found = []
    for outbox in range(store.outboxes):
        seen = await store.events(outbox, 0, 10_000)
        assert [one.position for one in seen] == sorted({one.position for one in seen})
        found += [(one.position, one.event.id, one.event.version) for one in seen]
    return found


async def outbox_of(store: PriorityStore) -> int:
    """Return the outbox that has events."""
    for outbox in range(store.outboxes):
        if await store.events(outbox, 0, 1):
            return outbox
    raise AssertionError("there are no events")


async def test_events_are_stored_with_their_changes_in_order_without_gaps(desk: Desk) -> None:
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 2))))
    [lease] = (await queue.do(Dequeue("w"))).leases
    desk.faults.failing_before = 1
    with pytest.raises(StorageUnavailable):
        await queue.do(Complete("a", lease.token))
    queue = await desk.queue()
    await queue.do(Complete("a", lease.token))
    desk.faults.failing_after = 1
    with pytest.raises(StorageUnavailable):
        await queue.do(Prioritise("b", 7))
    store = await desk.store()
    found = await positions(store)
    assert [one[1:] for one in found] == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)]


async def test_an_outbox_is_read_in_pages_and_forgotten_from_its_beginning(desk: Desk) -> None:
    queue = await desk.queue()
    await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", b"", 1) for n in range(9))))
    store = await desk.store()
    outbox = await outbox_of(store)
    first = await store.events(outbox, 0, 4)
    rest = await store.events(outbox, first[-1].position, 99)
    assert [one.event.id for one in (*first, *rest)] == [f"m{n}" for n in range(9)]
    assert first[0].event.queue == "q" and first[0].event.to_state is State.PENDING
    await store.forget_events(outbox, rest[-1].position)
    assert not await store.events(outbox, 0, 9)
    await queue.do(Enqueue("z", b"", 1))
    [later] = await store.events(outbox, 0, 9)
    assert later.position > rest[-1].position, "positions are not given again"


async def test_a_full_outbox_refuses_and_nothing_is_changed(desk: Desk) -> None:
    store = await desk.store(StoreLimits(events_max=3))
    queue = await store.acquire("q", SIMPLE)
    await queue.do(EnqueueMany(tuple(Enqueue(id, b"", 1) for id in "abc")))
    for act in (queue.do(Enqueue("d", b"", 1)), queue.do(Dequeue("w")), queue.sweep()):
        with pytest.raises(Overloaded, match="events_max is 3"):
            await act
    assert await page(queue) == ["a", "b", "c"]
    outbox = await outbox_of(store)
    await store.forget_events(outbox, (await store.events(outbox, 0, 9))[-1].position)
    assert (await queue.do(Enqueue("d", b"", 1))).is_changed


async def test_without_events_there_are_none(desk: Desk) -> None:
    store = await desk.store(events=False)
    queue = await store.acquire("q", SIMPLE)
    await queue.do(Enqueue("a", b"", 1))
    assert not await positions(store)


async def test_refusals_leave_nothing_behind(desk: Desk) -> None:
    queue = await desk.queue()
    for _ in range(3):
        with pytest.raises(MessageNotFound):
            await queue.do(Cancel("nobody"), Request("s", 1))
    store = await desk.store()
    assert not await positions(store)
    assert (await (await desk.queue()).do(Enqueue("a", b"", 1), Request("s", 1))).is_changed


def check(queue: OwnedQueue) -> None:
    """Check that the core of the queue is consistent."""
    owned: Any = queue
    owned._core.check()


async def test_what_is_remembered_of_requests_goes_when_it_is_acknowledged_or_old(
    desk: Desk,
) -> None:
    settings = QueueSettings(answers_kept_ms=1_000)
    queue = await desk.queue("q", settings)
    for number in range(1, 5):
        await queue.do(Enqueue(f"m{number}", b"", 1), Request("s", number, number - 1))
    queue = await desk.queue()
    check(queue)
    assert await queue.do(Enqueue("m4", b"", 1), Request("s", 4)) == ("m4", State.PENDING, 1, True)
    with pytest.raises(RequestStale):
        await queue.do(Enqueue("m1", b"", 1), Request("s", 1))
    desk.place.clock.now_ms += 2_000
    assert (await queue.sweep()).steps == 1
    queue = await desk.queue()
    check(queue)
    assert (await queue.do(Enqueue("new", b"", 1), Request("s", 1))).is_changed
    queue = await desk.queue()
    check(queue)
    assert (await queue.do(Enqueue("new", b"", 1), Request("s", 1))).is_changed, "the same answer"
