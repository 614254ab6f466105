"""A message that comes again: the same call twice adds one message, whatever its id and shard."""

from __future__ import annotations

import pytest
from tests.providers.priority.test_core_vectors import opened, take
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import QueueSettings, RequestInvalid, State
from millstream.providers.priority.core.body import NewMessage
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.settings import TEXT_BYTES_MAX


def failed(core: PriorityCore, id: str) -> None:
    core.enqueue(0, NewMessage(id, id.encode(), 7, {"k": "v"}, lease_ms=9))
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


def test_in_a_simple_queue_of_several_shards_every_message_can_come_again() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()

        async def work() -> None:
            await queue.create(QueueSettings(shards=4))
            await queue.enqueue(b"")  # its shards are known now
            for number in range(20):
                await queue.enqueue(b"x", id=f"m{number}", priority=number)
                await queue.cancel(f"m{number}")
                first, again = [await queue.requeue(f"m{number}") for _ in range(2)]
                assert first.is_changed and not again.is_changed and first.id == again.id
                assert (await queue.get(first.id)).state is State.PENDING
            assert (await queue.depth())[State.PENDING] == 21

        await rig.on("client", work())

    in_cluster(main)
