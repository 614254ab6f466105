"""Requeueing a message: a repeated call adds one message, whatever its id and shard."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.providers.priority.test_core_vectors import opened, take
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import Moved, QueueSettings, RequestInvalid, State
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.moves import entering
from millstream.providers.priority.core.settings import TEXT_BYTES_MAX
from millstream.providers.priority.core.shards import home_of, shard_name


def failed(core: PriorityCore, id: str) -> None:
    core.enqueue(0, MessageFields(id, id.encode(), 7, {"k": "v"}, lease_ms=9))
    core.fail(0, id, take(core).token)


@pytest.mark.parametrize("id", ["a", "x" * 256, "ä" * 128, "x" + "€" * 85, "a~again-1", "~again-"])
def test_the_same_call_twice_adds_one_message(id: str) -> None:
    core = opened()
    failed(core, id)
    first, again = core.requeue(1, id), core.requeue(2, id)
    assert (first.is_changed, again.is_changed) == (True, False) and first.id == again.id != id
    assert len(first.id.encode()) <= TEXT_BYTES_MAX
    lease = take(core, 3)
    assert (lease.id, lease.payload, lease.deadline_ms) == (first.id, id.encode(), 12)
    core.fail(4, first.id, lease.token)
    assert not core.requeue(5, id).is_changed, "it came again, whatever became of it"
    third = core.requeue(6, first.id)
    assert third.is_changed and len({id, first.id, third.id}) == 3
    assert len(third.id) <= max(len(first.id), len(id)) + 1, "ids do not grow each time"


def test_ids_that_end_alike_come_again_as_two_messages() -> None:
    core = opened()
    long = "x" * (TEXT_BYTES_MAX - 1)
    for id in ("a", "a~again-9", f"{long}1", f"{long}2"):
        failed(core, id)
    made = {core.requeue(1, id).id for id in ("a", "a~again-9", f"{long}1", f"{long}2")}
    assert len(made) == 4


def test_an_id_that_cannot_be_is_named() -> None:
    core = opened()
    failed(core, "a")
    for odd in ("", "x" * 257):
        with pytest.raises(RequestInvalid) as caught:
            core.requeue(1, "a", odd)
        assert caught.value.field == "new_id"


# -- one shard of several, which makes ids of its own

SIMPLE = QueueSettings(shards=3, layout=5)
MORE = replace(SIMPLE, shards_before=2, layout=6)
FEWER = replace(SIMPLE, shards=2, shards_before=3, layout=6)
PLANES = replace(SIMPLE, exclusivity_key="plane")
ENDS = ("~again-1", "~again-1.1", "~again-1.2", "~again-1.3")


def own_ends(id: str, shard: int, *shards: int) -> list[str]:
    """The ids for a requeued message that belong to the shard, in order."""
    made = [id + end for end in ENDS]
    return [one for one in made if all(home_of(one, count) == shard for count in shards)]


def an_id(is_fit: Callable[[str], bool]) -> str:
    return next(id for id in (f"m{number}" for number in itertools.count()) if is_fit(id))


def canceled(id: str, settings: QueueSettings, shard: int, value: str = "") -> PriorityCore:
    """A shard with one cancelled message of sequence 1."""
    core = PriorityCore.create(0, shard_name("q", shard), settings)
    core.enqueue(0, MessageFields(id, b"", 0, {"plane": value} if value else (), floor=0))
    core.cancel(0, id)
    return core


@pytest.mark.parametrize("end", ENDS[:3])
@pytest.mark.parametrize("shard", [1, 2])
def test_the_first_id_that_belongs_to_the_shard_is_made(shard: int, end: str) -> None:
    id = an_id(
        lambda id: home_of(id, 3) == shard and own_ends(id, shard, 3)[:1] == [id + end],
    )
    core = canceled(id, SIMPLE, shard)
    assert [core.requeue(1, id).id for _ in range(2)] == [id + end] * 2
    core.check()


def first_is_of_more(id: str) -> bool:
    """Does the id stay in shard 1 when three shards become two, as its second new id does?

    Its first new id must come from another shard.
    """
    return (
        home_of(id, 3) == 1
        and own_ends(id, 1, 2)[:2] == [id + end for end in ENDS[:2]]
        and (own_ends(id, 1, 3)[:1] == [id + ENDS[1]])
    )


def test_while_there_are_fewer_shards_an_id_belongs_to_the_shard_before_and_now() -> None:
    id = an_id(first_is_of_more)
    assert canceled(id, FEWER, 1).requeue(1, id).id == id + ENDS[1]
    assert canceled(id, replace(FEWER, shards_before=0), 1).requeue(1, id).id == id + ENDS[0]


def test_what_came_again_is_known_by_its_id_when_shards_are_others() -> None:
    id = an_id(first_is_of_more)
    core = canceled(id, SIMPLE, 1)
    assert core.requeue(1, id).id == id + ENDS[1]
    core.adopt(2, FEWER)
    core.adopt(3, replace(SIMPLE, shards=2, layout=7))
    again = core.requeue(4, id)
    assert (again.id, again.is_changed) == (id + ENDS[1], False)


def test_a_shard_that_is_being_added_makes_none_until_that_is_over() -> None:
    id = an_id(lambda id: own_ends(id, 2, 3)[:1] == [id + ENDS[0]] and home_of(id, 3) == 2)
    core = canceled(id, MORE, 2)
    with pytest.raises(Moved, match="must be offered to its former shard first"):
        core.requeue(1, id)
    core.settle(2, MORE.layout)
    assert core.requeue(3, id).id == id + ENDS[0]


def test_in_an_exclusive_queue_and_in_one_without_shards_any_id_is_the_shard_s_own() -> None:
    id = an_id(lambda id: id + ENDS[0] not in own_ends(id, 1, 3) != [])
    value = an_id(lambda value: home_of(value, 3) == 1)
    assert canceled(id, PLANES, 1, value).requeue(1, id).id == id + ENDS[0]
    assert canceled(id, QueueSettings(), 1).requeue(1, id).id == id + ENDS[0]


def test_a_message_is_never_its_own_second() -> None:
    id = "a" + ENDS[0]
    value = an_id(lambda value: home_of(value, 3) == 1)
    for core in (canceled(id, QueueSettings(), 1), canceled(id, PLANES, 1, value)):
        first = core.requeue(1, id)
        assert (first.id, first.is_changed) == ("a" + ENDS[1], True)


def test_where_no_id_is_the_shard_s_own_the_first_is_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entering, "IDS_AGAIN", 3)
    id = an_id(lambda id: home_of(id, 3) == 1 and own_ends(id, 1, 3) == [id + ENDS[3]])
    core = canceled(id, SIMPLE, 1)
    core.drain()
    with pytest.raises(Moved, match=f"message '{id}{ENDS[0]}' belongs to another shard"):
        core.requeue(1, id)
    assert core.read.depth()[State.CANCELED] == 1 and core.is_drained


# -- in a cluster


def test_in_a_simple_queue_of_several_shards_every_message_can_come_again() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(QueueSettings(shards=4))
            await queue.enqueue(b"")  # its shards are known from here
            for number in range(20):
                await queue.enqueue(b"x", id=f"m{number}", priority=number)
                await queue.cancel(f"m{number}")
                first, again = [await queue.requeue(f"m{number}") for _ in range(2)]
                assert first.is_changed and not again.is_changed and first.id == again.id
                assert (await queue.get(first.id)).state is State.PENDING
            assert (await queue.depth())[State.PENDING] == 21

        await rig.on("client", work())

    in_cluster(main)
