"""A queue that another silo takes over by force: handlers under way may end."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from msgspec.structs import replace
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, MemoryStateStore, Silo
from millstream.streams import (
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.ownership.store import OwnershipStore

LINES = StreamNamespace("lines", int)
BEGUN: list[int] = []
ENDED: list[int] = []
CANCELLED: list[int] = []
GATES: dict[int, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def clean() -> None:
    for seen in (BEGUN, ENDED, CANCELLED):
        seen.clear()
    GATES.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        BEGUN.append(event.item)
        try:
            if event.item in GATES:
                await GATES[event.item].wait()
        except asyncio.CancelledError:
            CANCELLED.append(event.item)
            raise
        ENDED.append(event.item)


def silo_of(store: MemoryStateStore) -> tuple[Silo, PersistentStreams]:
    streams = PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.01)),
    )
    silo = Silo(grains=[Reader], stores={"default": store}, streams={"default": streams})
    return silo, streams


async def take(store: MemoryStateStore) -> None:
    """Take the queue over for another silo, which has already ended."""
    records = OwnershipStore(store, "default")
    stored = await records.read("queue-0")
    assert stored is not None
    taken = replace(stored.record, owner="other:1@1", epoch=stored.record.epoch + 1)
    await records.write("queue-0", taken, stored.etag)


async def test_a_handler_runs_on_when_its_queue_is_taken_and_its_event_is_handled_once() -> None:
    store = MemoryStateStore()
    GATES[1].clear()
    silo, streams = silo_of(store)
    async with silo:
        await silo.stream(LINES, "a").publish_many([1, 2])
        await until(lambda: BEGUN == [1])
        await take(store)
        await until(lambda: [one.epoch for one in streams.stats()] == [3])
        await spin(50)
        assert CANCELLED == []
        GATES[1].set()
        await until(lambda: ENDED == [1, 2])
        await spin(50)
    assert (BEGUN, ENDED, CANCELLED) == ([1, 2], [1, 2], [])


async def test_a_silo_that_stops_leaves_no_call_behind() -> None:
    GATES[1].clear()
    silo, _ = silo_of(MemoryStateStore())
    async with silo:
        await silo.stream(LINES, "a").publish(1)
        await until(lambda: BEGUN == [1])
        await silo.kill()
    await spin(20)
    ours = [t for t in asyncio.all_tasks() if "_deliver" in repr(t.get_coro())]
    assert ours == [] and CANCELLED == [1]
