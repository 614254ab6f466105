"""A queue over several shards: the shard of each message, and the promises during changes of
shards."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import (
    Enqueued,
    Lease,
    LeaseForeign,
    LeaseLost,
    LeaseToken,
    MessageExists,
    MessageNotFound,
    Moved,
    NewMessage,
    PriorityOptions,
    PriorityQueue,
    PriorityQueueNotFound,
    QueueSettings,
    RequestInvalid,
    SettingsConflict,
    State,
    Template,
    priority_queues,
)
from millstream.providers.priority.core.body import MessageFields as CoreMessage
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.settings import SHARDS_MAX
from millstream.providers.priority.core.shards import (
    STREAMS,
    at_creation,
    change_settings,
    home_of,
    shard_name,
    split_name,
)
from millstream.providers.priority.surface.layouts import HeadBoard, Layout, Plan, Routes

FOUR = QueueSettings(shards=4)
PLANES = QueueSettings("plane", shards=4, retention_ms=2_000)
SOON = PriorityOptions(settle_period_s=0.5)


# -- the shard of a message


@pytest.mark.spare
def test_keys_are_spread_and_a_further_shard_takes_its_share_only() -> None:
    keys = [f"key {number}" for number in range(20_000)]
    for shards in (1, 2, 3, 7, 64):
        sizes = Counter(home_of(key, shards) for key in keys)
        assert set(sizes) == set(range(shards))
        assert max(sizes.values()) < 1.4 * len(keys) / shards
        moved = [key for key in keys if home_of(key, shards) != home_of(key, shards + 1)]
        assert all(home_of(key, shards + 1) == shards for key in moved)
        assert 0.6 < len(moved) / (len(keys) / (shards + 1)) < 1.4


def test_homes_are_the_same_for_ever() -> None:
    assert [home_of(key, 5) for key in ("", "a", "N12345", "ü")] == [2, 0, 4, 2]
    # each key is at an edge of a shard
    assert [home_of(key, 64) for key in ("k67595", "k6616809")] == [60, 55]
    assert sum(number * home_of(f"k{number}", 64) for number in range(20_000)) == 6_330_427_542


def test_a_shard_is_named_after_its_queue() -> None:
    assert shard_name("q", 0) == "q"
    assert [split_name(shard_name("q", number)) for number in (0, 1, 63)] == [
        ("q", 0),
        ("q", 1),
        ("q", 63),
    ]


def test_a_queue_of_streams_has_one_shard() -> None:
    name, two = f"{STREAMS}x", replace(FOUR, shards=2)
    one = replace(FOUR, shards=1)
    assert at_creation(name, one) == one and change_settings(name, one, one, 9) == one
    assert at_creation("x", two) == two and change_settings("x", one, two, 9).shards == 2
    match = "shards is 2, but a queue of a stream provider has 1"
    with pytest.raises(RequestInvalid, match=match) as refused:
        at_creation(name, two)
    assert refused.value.field == "shards"
    with pytest.raises(RequestInvalid, match=match):
        change_settings(name, one, two, 9)


def test_a_new_queue_has_been_nowhere_else() -> None:
    given = replace(FOUR, shards_before=3, layout=9)
    assert at_creation("q", given) == FOUR
    assert at_creation(shard_name("q", 1), given) == given


# -- one shard


def core_of(shard: int, settings: QueueSettings) -> PriorityCore:
    return PriorityCore.create(0, shard_name("q", shard), settings, keeps_rows=False)


def value_at(shard: int, shards: int, but_at: int = -1, of: int = 1) -> str:
    """A value that belongs to a shard, but to another shard for another number of shards."""
    found = (f"v{number}" for number in itertools.count())
    return next(v for v in found if home_of(v, shards) == shard and home_of(v, of) != but_at)


def new(id: str, value: str, floor: int | None = None) -> CoreMessage:
    return CoreMessage(id, b"", 1, {"plane": value}, floor=floor)


GROWING = QueueSettings("plane", retention_ms=100, shards=2, shards_before=1, layout=5)


def test_a_former_shard_takes_a_value_as_long_as_it_has_unfinished_messages_of_it() -> None:
    core, value = core_of(0, QueueSettings("plane", retention_ms=100)), value_at(1, 2)
    core.enqueue(0, new("a", value))
    core.adopt(0, GROWING)
    assert core.enqueue(0, new("b", value)).is_changed
    for _ in range(2):
        (lease,) = core.dequeue(1, "w").leases
        core.complete(1, lease.id, lease.token)
    with pytest.raises(Moved) as found:
        core.enqueue(2, new("c", value))
    assert found.value.floor == 2
    assert not core.enqueue(2, new("b", value)).is_changed, "its id is known there"
    assert core.enqueue(2, new("d", value_at(0, 2))).is_changed
    core.sweep(101)
    with pytest.raises(Moved):
        core.enqueue(102, new("b", value))


def test_a_new_shard_takes_what_was_offered_to_the_former_one_with_higher_tokens() -> None:
    core, value = core_of(1, GROWING), value_at(1, 2)
    with pytest.raises(Moved, match="must be offered to its former shard first"):
        core.enqueue(0, new("a", value))
    assert core.enqueue(0, new("a", value, 7)).is_changed
    (lease,) = core.dequeue(1, "w").leases
    assert lease.token.epoch == 8
    with pytest.raises(Moved, match="belongs to another shard"):
        core.enqueue(1, new("b", value_at(0, 2), 7))
    assert [one.kind for one in core.enqueue_many(1, [new("c", value)]).refusals] == ["Moved"]
    with pytest.raises(Moved):
        core.enqueue_many(1, [new("c", value, 0), new("d", value)], all_or_nothing=True)
    assert core.read.depth()[State.PENDING] == 0


def test_a_floor_is_stored_with_the_settings_and_an_older_layout_is_none() -> None:
    core = PriorityCore.create(0, shard_name("q", 1), GROWING)
    core.drain()
    older = replace(GROWING, layout=4, lease_ms=1)
    assert core.adopt(0, older, 40).settings == GROWING
    changes = core.drain()
    assert changes is not None and changes.counters.epoch == 40
    assert core.adopt(0, older, 39).settings == GROWING and core.drain() is None
    later = replace(GROWING, layout=6, lease_ms=1)
    assert core.adopt(0, later).settings == later


def test_what_a_queue_says_of_its_shards_is_not_for_others_to_say() -> None:
    core = core_of(0, QueueSettings())
    assert core.configure(10, QueueSettings(attempts=9)).settings.layout == 0, "it has one shard"
    core = core_of(0, QueueSettings(shards=2))
    row = core.configure(10, QueueSettings(shards=2))
    assert (row.settings.layout, row.settings.shards_before) == (10, 0)
    row = core.configure(10, replace(row.settings, shards=3, shards_before=7, layout=0))
    assert (row.settings.layout, row.settings.shards_before) == (11, 2)
    assert core.configure(10, QueueSettings(shards=3)).version == row.version
    with pytest.raises(SettingsConflict, match="exclusivity_key"):
        core.configure(10, replace(row.settings, exclusivity_key="plane"))
    assert core.settle(10, 10).settings.shards_before == 2, "of another layout"
    assert core.settle(10, 11).settings.shards_before == 0


# -- the known heads of shards


def test_a_head_is_planned_once_and_none_is_known_for_long() -> None:
    board = HeadBoard()
    assert not board.knows(1, 0.0)
    board.note([[1, 5, 9], [2, 3]], 3, 10.0)
    assert board.knows(3, 10.05) and not board.knows(3, 10.2) and not board.knows(4, 10.0)
    assert board.plan(3) == Plan({0: 1, 1: 2}, 3)
    assert board.knows(2, 10.0) and not board.knows(3, 10.0), "behind 9 there may be more"
    assert board.plan(9) == Plan({0: 2}, 9)
    assert board.plan(1) is None and not board.knows(1, 10.0), "that there is none is not known"
    board.note([[], [4]], 16, 20.0)
    board.forget()
    assert not board.knows(1, 20.0)
    board.note([[], []], 16, 30.0)
    assert not board.knows(1, 30.0)


def test_routes_note_only_who_knew_the_layout_of_now() -> None:
    routes = Routes()
    routes.note(7, 3)
    assert not routes.is_other(0) and routes.is_other(3)
    routes.note(7, 0)
    assert routes.is_other(0) and routes.is_stale
    board = routes.board(())
    routes.learn(Layout(7, 2), 1.0)
    assert not routes.is_other(7) and routes.is_other(0)
    assert routes.board(()) is not board, "it was of other shards"


# -- in a cluster


def test_what_is_enqueued_in_four_shards_comes_in_order() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(FOUR)
            for number in random.Random(3).sample(range(200), 200):
                await queue.enqueue(b"%d" % number, priority=number, id=f"m{number}")
            found = [lease for _ in range(100) for lease in await queue.dequeue(worker="w")]
            found += await queue.dequeue(worker="w", count=100)
            assert [lease.priority for lease in found] == list(range(200))
            assert await queue.dequeue(worker="w") == []
            for lease in found:
                await lease.complete()
            assert (await queue.depth())[State.COMPLETED] == 200

        await rig.on("client", work())
        assert all(len(rig.stored(shard_name("q", number))) > 30 for number in range(4))

    in_cluster(main)


def test_a_list_comes_back_in_its_order_with_its_refusals() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(FOUR)
            await queue.enqueue(b"first", priority=1, id="m3")
            new = [NewMessage(b"x", number, f"m{number}") for number in range(20)]
            found = await queue.enqueue_many(new)
            assert isinstance(found[3], MessageExists)
            assert [getattr(one, "id", None) for one in found] == [
                None if number == 3 else f"m{number}" for number in range(20)
            ]
            with pytest.raises(RequestInvalid, match="all_or_nothing needs messages of one shard"):
                await queue.enqueue_many(new, all_or_nothing=True)
            assert len(await queue.peek(100)) == 20

        await rig.on("client", work())

    in_cluster(main)


def test_looks_show_the_whole_queue() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(PLANES)
            for number in range(60):
                pairs = {"plane": f"p{number % 20}"}
                await queue.enqueue(b"x", priority=number, id=f"m{number}", metadata=pairs)
            assert (await queue.depth())[State.PENDING] == 60
            assert (await queue.depth(value="p7"))[State.PENDING] == 3
            assert {
                value: depth[State.PENDING] for value, depth in (await queue.values()).items()
            } == {f"p{number}": 3 for number in range(20)}
            assert [view.id for view in await queue.peek(5)] == [
                f"m{number}" for number in range(5)
            ]
            found, after = [], 0
            while page := await queue.page(7, after=after):
                found += [view.id for view in page]
                after = page[-1].sequence
            assert sorted(found) == sorted(f"m{number}" for number in range(60))
            assert (await queue.get("m41")).priority == 41
            await queue.prioritise("m41", -1)
            assert [view.id for view in await queue.peek()] == ["m41"]
            await queue.cancel("m41")
            again = await queue.requeue("m41", new_id="again")
            assert again.is_changed and (await queue.get("again")).metadata == (("plane", "p1"),)
            with pytest.raises(MessageNotFound):
                await queue.get("nobody")
            names = [name async for name in priority_queues(rig.client)]
            assert names == ["q"]

        await rig.on("client", work())

    in_cluster(main)


def test_who_does_not_know_of_shards_puts_many_where_they_belong() -> None:
    async def main(rig: Rig) -> None:
        await rig.on("client", rig.queue().create(FOUR))
        new = [NewMessage(b"x", number, f"m{number}") for number in range(20)]
        for host, queue in (("client", rig.queue()), ("silo-0", rig.queue_at("silo-0"))):
            found = await rig.on(host, queue.enqueue_many(new))
            assert [getattr(one, "id", one) for one in found] == [one.id for one in new]
            is_first = host == "client"
            assert {getattr(one, "is_changed", None) for one in found} == {is_first}
        assert sum((await rig.on("client", rig.queue().depth())).values()) == 20

    in_cluster(main)


def test_as_many_shards_as_there_may_be_are_paged() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(QueueSettings(shards=SHARDS_MAX))
            await asyncio.sleep(2)  # reads may use a layout that is a second old
            await queue.enqueue_many([NewMessage(b"", id=f"m{number}") for number in range(200)])
            found, after = [], 0
            while page := await queue.page(50, after=after):
                found += [view.id for view in page]
                after = page[-1].sequence
            assert sorted(found) == sorted(f"m{number}" for number in range(200))

        await rig.on("client", work())

    in_cluster(main)


def test_who_waits_hears_of_a_message_in_any_shard_and_takes_one_only() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(FOUR)
            for number in range(12):
                waiting = asyncio.create_task(queue.dequeue(worker="w", wait_s=60.0))
                await asyncio.sleep(1.0)
                await queue.enqueue(b"x", id=f"m{number}")
                (lease,) = await waiting
                assert lease.id == f"m{number}" and lease.attempt == 1
                await lease.complete()

        await rig.on("client", work())

    in_cluster(main)


def ids_at(*shards: int, of: int = 4) -> list[str]:
    """Return an id for each of these shards."""
    return [next(id for n in range(99) if home_of(id := f"m{n}", of) == one) for one in shards]


def test_what_comes_from_two_shards_at_once_goes_back_with_its_attempt() -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue_at("silo-1")

        async def work() -> None:
            await queue.create(FOUR)
            for _ in range(6):
                waiting = asyncio.create_task(queue.dequeue(worker="w", wait_s=60.0))
                await asyncio.sleep(1.0)
                entering = [
                    queue.enqueue(b"x", priority=number, id=id)
                    for number, id in enumerate(ids_at(0, 1, 2, 3))
                ]
                await asyncio.gather(*entering)
                (first,) = await waiting
                await asyncio.sleep(1.0)
                rest = await queue.dequeue(worker="w", count=4)
                assert [lease.attempt for lease in rest] == [1, 1, 1]
                for lease in (first, *rest):
                    await lease.complete()
                await queue.delete()
                await queue.create(FOUR)

        await rig.on("silo-1", other.dequeue(worker="w"))
        await rig.on("client", work())

    in_cluster(main, templates=(Template("", FOUR),))


def test_who_leaves_while_one_shard_is_slow_gives_back_what_another_gave() -> None:
    async def main(rig: Rig) -> None:
        queue, is_slow = rig.queue(), asyncio.Event()
        one, two = ids_at(1, 2)

        async def slow(name: str) -> None:
            if name == shard_name("q", 2) and is_slow.is_set():
                await asyncio.sleep(1.0)

        async def work() -> None:
            await queue.create(FOUR)
            await queue.enqueue(b"x", id=one)
            await queue.enqueue(b"x", id=two)
            rig.faults.on_before = slow
            is_slow.set()
            taking = asyncio.create_task(queue.dequeue(worker="w", count=2))
            await asyncio.sleep(0.5)
            taking.cancel()
            await asyncio.wait([taking])
            await asyncio.sleep(3.0)
            is_slow.clear()
            found = await queue.dequeue(worker="w", count=2)
            assert sorted((lease.id, lease.attempt) for lease in found) == sorted(
                [(one, 1), (two, 1)]
            )

        await rig.on("client", work())

    in_cluster(main)


def test_what_others_took_does_not_let_less_urgent_messages_pass() -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue_at("silo-1")
        zero = [id for n in range(99) if home_of(id := f"m{n}", 4) == 0]
        (one,) = ids_at(1)

        async def enter() -> None:
            await queue.create(FOUR)
            for priority, id in ((0, zero[0]), (1, zero[1]), (100, zero[2]), (2, one)):
                await queue.enqueue(b"x", priority=priority, id=id)

        async def take(handle: PriorityQueue) -> int:
            (lease,) = await handle.dequeue(worker="w")
            return lease.priority

        await rig.on("client", enter())
        assert await rig.on("client", take(queue)) == 0
        assert await rig.on("silo-1", take(other)) == 1
        assert await rig.on("client", take(queue)) == 2
        assert await rig.on("client", take(queue)) == 100

    in_cluster(main)


def test_a_lease_is_ended_by_its_id_in_the_shard_that_gave_it() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(PLANES)
            for number in range(9):  # so that the numbers of leases differ
                pairs = {"plane": value_at(3, 4)}
                await queue.enqueue(b"x", priority=0, id=f"before {number}", metadata=pairs)
                await (await queue.dequeue(worker="w"))[0].complete()
            for shard in (0, 3):
                await queue.enqueue(b"x", id="twin", metadata={"plane": value_at(shard, 4)})
            leases = await queue.dequeue(worker="w", count=2)
            (last,) = [lease for lease in leases if lease.token.epoch == 10]
            assert (await queue.complete("twin", last.token)).state is State.COMPLETED
            with pytest.raises(LeaseForeign):
                await queue.complete("twin", LeaseToken(77, 2))

        await rig.on("client", work())

    in_cluster(main)


def test_a_lease_that_was_over_elsewhere_is_ended_where_it_holds() -> None:
    """Shard 0 gave many leases of its message with the same id. One of them might have been the
    lease of shard 3.
    """

    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(PLANES)
            # its shards are known from here
            await queue.enqueue(b"x", metadata={"plane": value_at(1, 4)})
            for shard in (0, 3):
                await queue.enqueue(b"x", id="twin", metadata={"plane": value_at(shard, 4)})
            wanted = [{"plane": value_at(shard, 4)} for shard in (0, 3)]
            for _ in range(3):
                await (await queue.dequeue(worker="w", wanted=wanted[0]))[0].release(refund=True)
            (first,) = await queue.dequeue(worker="w", wanted=wanted[0])
            (last,) = await queue.dequeue(worker="w", wanted=wanted[1])
            assert last.token < first.token
            assert (await queue.complete("twin", last.token)).state is State.COMPLETED
            await first.release(refund=True)
            with pytest.raises(LeaseLost):
                await queue.complete("twin", first.token)
            with pytest.raises(MessageNotFound):
                await queue.complete("nobody", first.token)

        await rig.on("client", work())

    in_cluster(main)


def test_who_does_not_know_of_shards_waits_at_all_of_them() -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue_at("silo-1")
        await rig.on("client", queue.create(FOUR))
        waiting = [rig.spawn(other.dequeue(worker="w", wait_s=100.0), "silo-1") for _ in range(9)]
        await rig.on("client", asyncio.sleep(2.0))
        for number in range(9):
            await rig.on("client", queue.enqueue(b"x", id=f"m{number}"))
        async with asyncio.timeout(5.0):
            found = [lease.id for one in await asyncio.gather(*waiting) for lease in one]
        assert sorted(found) == [f"m{number}" for number in range(9)]

    in_cluster(main)


def test_who_leaves_while_it_waits_keeps_nothing() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(FOUR)
            for number in range(8):
                waiting = asyncio.create_task(queue.dequeue(worker="w", wait_s=60.0))
                await asyncio.sleep(1.0)
                entering = asyncio.create_task(queue.enqueue(b"x", id=f"m{number}"))
                await asyncio.sleep(0.001 * number)
                waiting.cancel()
                await asyncio.gather(waiting, entering, return_exceptions=True)
                await asyncio.sleep(1.0)
                if not waiting.cancelled():
                    for lease in waiting.result():
                        await lease.release(refund=True)
                (lease,) = await queue.dequeue(worker="w")
                assert (lease.id, lease.attempt) == (f"m{number}", 1)
                await lease.complete()

        await rig.on("client", work())

    in_cluster(main)


def test_queues_that_are_created_on_use_have_the_shards_of_their_template() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue("wide/a")

        async def work() -> None:
            for number in range(40):
                await queue.enqueue(b"x", id=f"m{number}")
            assert (await queue.settings()).settings.shards == 3
            assert len(await queue.dequeue(worker="w", count=40)) == 40
            with pytest.raises(RequestInvalid, match="in its name"):
                rig.queue("wide/a\x1f1")

        await rig.on("client", work())
        assert len(rig.stored(shard_name("wide/a", 2))) > 5

    in_cluster(main, templates=(Template("wide/", QueueSettings(shards=3)),))


def test_a_deleted_queue_is_gone_from_all_shards_and_may_come_again() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            for _ in range(3):
                await queue.create(FOUR)
                for number in range(20):
                    await queue.enqueue(b"x", id=f"m{number}")
                await queue.delete()
                with pytest.raises(PriorityQueueNotFound):
                    await queue.settings()
            await queue.create()
            assert await queue.dequeue(worker="w", count=100) == []

        await rig.on("client", work())
        assert not any(rig.stored(shard_name("q", number)) for number in range(4))

    in_cluster(main, auto_create=False)


# -- other numbers of shards


async def settled(rig: Rig, queue: PriorityQueue) -> None:
    """Wait until a change of shards is over."""
    while (await queue.settings()).settings.shards_before:
        await asyncio.sleep(0.2)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 5), (5, 2)])
def test_messages_stay_where_they_are_and_new_ones_go_where_they_belong(
    before: int, after: int
) -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue_at("silo-1")

        async def work() -> None:
            for number in range(60):
                await queue.enqueue(b"x", priority=number, id=f"m{number}")
            row = await queue.settings()
            await queue.configure(replace(row.settings, shards=after))
            for number in range(60):  # the existing messages are known
                assert not (await queue.enqueue(b"x", priority=number, id=f"m{number}")).is_changed
            for number in range(60, 120):
                await queue.enqueue(b"x", priority=number, id=f"m{number}")
            with pytest.raises(
                SettingsConflict, match=f"still move from {before} to {after} shards"
            ):
                await queue.configure(replace(row.settings, shards=9))
            found = await queue.dequeue(worker="w", count=120)
            assert [lease.priority for lease in found] == list(range(120))
            for lease in found:
                await lease.complete()
            await settled(rig, queue)
            await queue.enqueue(b"x", id="late")
            (lease,) = await queue.dequeue(worker="w")
            await lease.complete()

        async def from_elsewhere() -> None:
            assert (await other.depth())[State.PENDING] == 0
            await other.enqueue(b"x", id="by another")
            (lease,) = await other.dequeue(worker="w", wait_s=10.0)
            await lease.complete()

        settings = QueueSettings(shards=before, retention_ms=1_000)
        await rig.on("client", queue.create(settings))
        assert await rig.on("silo-1", other.dequeue(worker="w")) == []
        await rig.on("client", work())
        await rig.on("silo-1", from_elsewhere())
        tables = [rig.store._tables.get(shard_name("q", number)) for number in range(5)]
        there = [table is not None and table.settings is not None for table in tables]
        assert there == [number < after for number in range(5)]

    in_cluster(main, options=SOON)


def test_who_waits_while_shards_are_added_hears_of_messages_there() -> None:
    async def main(rig: Rig) -> None:
        queue, other = rig.queue(), rig.queue_at("silo-1")
        await rig.on("client", queue.create())
        waiting = [rig.spawn(other.dequeue(worker="w", wait_s=100.0), "silo-1") for _ in range(30)]
        await rig.on("client", asyncio.sleep(5.0))

        async def work() -> None:
            await queue.configure(replace((await queue.settings()).settings, shards=6))
            for number in range(30):
                await queue.enqueue(b"x", id=f"m{number}")

        begin_s = asyncio.get_running_loop().time()
        await rig.on("client", work())
        found = [lease.id for one in await asyncio.gather(*waiting) for lease in one]
        assert sorted(found) == sorted(f"m{number}" for number in range(30))
        assert asyncio.get_running_loop().time() - begin_s < 5.0

    in_cluster(main, options=SOON)


class Planes:
    """Workers whose leases of a value are judged when they get them."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig = rig
        self.chance = chance
        self.flying: dict[str, str] = {}
        self.tokens: dict[str, int] = {}
        self.done: Counter[str] = Counter()
        self.entered: set[str] = set()

    async def enqueue(self, queue: PriorityQueue, first: int, count: int) -> None:
        for number in range(first, first + count, 2):
            ids = [f"m{number}", f"m{number + 1}"]
            new = [
                NewMessage(b"x", 0, id, {"plane": f"p{self.chance.randrange(12)}"}) for id in ids
            ]
            if self.chance.random() < 0.5:
                assert all(isinstance(one, Enqueued) for one in await queue.enqueue_many(new))
            else:
                for payload, priority, id, metadata, *_ in new:
                    await queue.enqueue(payload, priority=priority, id=id, metadata=metadata)
            self.entered.update(ids)
            await asyncio.sleep(self.chance.random() * 0.6)

    async def work(self, queue: PriorityQueue) -> None:
        while True:
            for lease in await queue.dequeue(worker="w", count=2, wait_s=5.0):
                await self.fly(lease)

    async def fly(self, lease: Lease) -> None:
        plane = dict(lease.metadata)["plane"]
        assert plane not in self.flying, f"{plane} is in two places: {lease.id}"
        assert lease.token.epoch > self.tokens.get(plane, 0), f"the token of {plane} goes back"
        self.flying[plane], self.tokens[plane] = lease.id, lease.token.epoch
        await asyncio.sleep(self.chance.random() * 0.5)
        del self.flying[plane]
        await lease.complete()
        self.done[lease.id] += 1


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.one_in(4)
def test_no_value_is_in_two_shards_while_their_number_changes_and_owners_die(seed: int) -> None:
    async def main(rig: Rig) -> None:
        chance = random.Random(seed)
        planes = Planes(rig, chance)
        first, queue = rig.queue(), rig.queue_at("silo-0")
        await rig.on("client", first.create(QueueSettings("plane", retention_ms=1_000)))
        tasks = [rig.spawn(planes.work(rig.queue())) for _ in range(3)]
        tasks += [rig.spawn(planes.work(queue), "silo-0") for _ in range(3)]
        entering = [
            rig.spawn(planes.enqueue(rig.queue(), 0, 120)),
            rig.spawn(planes.enqueue(queue, 1_000, 120), "silo-0"),
        ]

        async def resize() -> None:
            for shards in chance.sample([2, 3, 4, 5, 1], 5):
                await asyncio.sleep(chance.random() * 4)
                try:
                    now = (await first.settings()).settings
                    await first.configure(replace(now, shards=shards))
                except SettingsConflict:
                    continue

        async def crash() -> None:
            for _ in range(2):
                await asyncio.sleep(2 + chance.random() * 6)
                rig.simulation.crash("silo-1")
                await asyncio.sleep(6.0)
                rig.cluster.boot("silo-1")

        changing, crashing = rig.spawn(resize()), rig.spawn(crash(), "outside")
        await asyncio.gather(*entering, changing, crashing)
        async with asyncio.timeout(120.0):
            while set(planes.done) != planes.entered:
                await asyncio.sleep(0.5)
        assert set(planes.done.values()) == {1}
        await rig.on("client", settled(rig, first))
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()

    in_cluster(main, silos=3, seed=seed, options=SOON, patience_s=60.0)
