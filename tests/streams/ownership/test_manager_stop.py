"""A silo that stops gracefully frees all queues cleanly, even with a slow store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Etag,
    Grain,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    StorageUnavailable,
)
from millstream.runtime.extending import unseal
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe
from millstream.streams.ownership.record import QueueRecord, QueueState

NOTES = StreamNamespace("notes", int)
SEEN: list[int] = []
CHANGED = asyncio.Event()


@pytest.fixture(autouse=True)
def clean() -> None:
    global CHANGED
    CHANGED = asyncio.Event()  # belongs to the loop of one test
    SEEN.clear()


async def until_seen(count: int) -> None:
    async with asyncio.timeout(20):
        while len(SEEN) < count:
            CHANGED.clear()
            await CHANGED.wait()


class Reader(Grain):
    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        SEEN.append(event.item)
        CHANGED.set()


class SlowStore(MemoryStateStore):
    """Takes some time for each write, and fails some."""

    fail_next = 0
    turns = 5

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.fail_next and key.startswith("queue/"):
            self.fail_next -= 1
            raise StorageUnavailable("not now")
        return await super().write(key, data, expect, fence)


def silo_on(store: SlowStore) -> Silo:
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    return Silo(
        grains=[Reader],
        membership=MemoryMembershipTable(),
        stores={"default": store},
        streams={"default": streams},
    )


async def records(store: SlowStore) -> list[QueueRecord]:
    rows = await store.scan("queue/default/", "", 100)
    datas = [unseal(key, row.data).content for key, row in rows]
    return [msgspec.msgpack.decode(data, type=QueueRecord) for data in datas]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("failing", [0, 3])
async def test_a_stop_frees_every_queue_before_it_goes_on(failing: int) -> None:
    store = SlowStore()
    async with silo_on(store) as silo:
        for number in range(200):
            await silo.stream(NOTES, f"{number % 20}").publish(number)
        await until_seen(200)
        store.fail_next, store.turns = failing, 1_000
    found = await records(store)
    assert len(found) == 8
    assert {record.state for record in found} == {QueueState.FREE}
    if not failing:  # another silo's write may have followed a write of unknown outcome
        assert all(record.handoff is not None and record.handoff.clean for record in found)


async def test_a_stop_while_queues_are_being_acquired_frees_them() -> None:
    store = SlowStore()
    async with silo_on(store):
        pass  # the first writes are under way
    assert {record.state for record in await records(store)} <= {QueueState.FREE}
