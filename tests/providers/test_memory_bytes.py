"""The memory of a memory queue: its limit in bytes, and the immediate release of processed
messages."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.partition import Partition
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.memory.room import QueueRoom
from millstream.runtime import ConfigError, Grain, LocalCluster, QueueFull, QueueUnavailable
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

PARCELS = StreamNamespace("parcels", bytes)
KIB = 1024
SEEN: list[int] = []
GATE = asyncio.Event()


class Depot(Grain):
    @subscribe(PARCELS)
    async def on_parcel(self, event: Event[bytes]) -> None:
        await GATE.wait()
        SEEN.append(len(event.item))


@pytest.fixture(autouse=True)
def fresh() -> None:
    global GATE
    GATE = asyncio.Event()
    SEEN.clear()


def cluster_of(memory: MemoryOptions) -> LocalCluster:
    def streams() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(memory),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(),
            options=StreamOptions(enqueue_wait_s=0.01),
        )

    return LocalCluster(grains=[Depot], streams={"default": streams})


def queue_of(cluster: LocalCluster) -> Any:
    catalog = cluster.silos[0].assembly.catalog
    return catalog.of("millstream.MemoryQueue")["default/queue-0"].grain


# --- the limit in bytes ---------------------------------------------------------------------------


async def test_a_queue_at_its_limit_of_bytes_refuses_and_takes_again_when_some_are_done() -> None:
    memory = MemoryOptions(capacity_bytes=100 * KIB, enqueue_wait_s=0.01)
    async with cluster_of(memory) as cluster:
        stream = cluster.silos[0].stream(PARCELS, "a")
        for _ in range(9):
            await stream.publish(bytes(10 * KIB))
        with pytest.raises(QueueFull, match=r"of 102400 bytes \(capacity_bytes\)"):
            await stream.publish(bytes(10 * KIB))
        GATE.set()
        await until(lambda: len(SEEN) == 9)
        await until(lambda: queue_of(cluster)._log.room.bytes_taken == 0)
        await stream.publish(bytes(90 * KIB))
        await until(lambda: len(SEEN) == 10)


async def test_a_message_that_is_larger_than_the_queue_says_so_at_once() -> None:
    async with cluster_of(MemoryOptions(capacity_bytes=KIB)) as cluster:
        with pytest.raises(ValueError, match="its queue accepts 1024"):
            await cluster.silos[0].stream(PARCELS, "a").publish(bytes(2 * KIB))


def test_a_limit_of_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_bytes is 0"):
        MemoryOptions(capacity_bytes=0)


async def test_who_waits_for_bytes_and_gives_up_has_taken_nothing() -> None:
    room = QueueRoom(events_max=10, bytes_max=10)
    await room.acquire(1, 8)
    waiting = asyncio.ensure_future(room.acquire(5, 5))
    await asyncio.sleep(0)
    assert not room.try_acquire(1, 1)  # the queue of waiting callers comes first
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (room.events_taken, room.bytes_taken) == (1, 8)
    assert room.try_acquire(9, 2) and not room.try_acquire(1, 0)
    room.release(10, 10)
    assert (room.events_taken, room.bytes_taken) == (0, 0)
    room.close("gone")
    with pytest.raises(QueueUnavailable, match="gone"):
        await room.acquire(1, 1)


# --- releasing messages ---------------------------------------------------------------------------


class Parcel:
    """An object for weak references."""


def test_trim_frees_what_every_group_is_past_though_the_segment_is_not_full() -> None:
    partition: Partition[Parcel] = Partition()
    partition.register("fast")
    partition.register("slow")
    parcels = [Parcel() for _ in range(10)]
    watched = [weakref.ref(parcel) for parcel in parcels]
    for parcel in parcels:
        partition.append(parcel)
    del parcels, parcel
    for group, count in (("fast", 8), ("slow", 3)):
        partition.pull(group, count)
        partition.commit(group)
    partition.trim()
    gc.collect()
    assert [one() is None for one in watched] == [True] * 3 + [False] * 7
    assert (partition.first, partition.segment_count) == (3, 1)
    partition.check()
    assert [one() for one in watched[3:]] == partition.read_at(3, 10)


async def test_a_queue_holds_nothing_of_what_was_handled() -> None:
    async with cluster_of(MemoryOptions()) as cluster:
        GATE.set()
        stream = cluster.silos[0].stream(PARCELS, "a")
        for _ in range(20):
            await stream.publish(bytes(KIB))
        await until(lambda: len(SEEN) == 20)
        grain: MemoryQueue = queue_of(cluster)
        await until(lambda: grain._log._partition.first == 20)
        slots = grain._log._partition._chain.head.slots
        assert not any(slots)
