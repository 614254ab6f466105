"""The row with the number of queues of a provider."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Corrupt,
    Grain,
    MemoryStateStore,
    Row,
    Silo,
)
from millstream.runtime.extending import seal_content
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe
from millstream.streams.ownership.mapper_record import MapperRecords

LINES = StreamNamespace("lines", int)
SEEN: list[int] = []


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        SEEN.append(event.item)


def silo_of(store: MemoryStateStore, queues: int, provider: str = "default") -> Silo:
    streams = PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=queues), balancer=DeploymentBalancer()
    )
    grains = [Reader] if provider == "default" else []
    return Silo(grains=grains, stores={"default": store}, streams={provider: streams})


async def test_another_count_is_refused_also_when_the_whole_cluster_was_started_anew() -> None:
    store = MemoryStateStore()
    async with silo_of(store, 4):
        pass
    match = (
        r"'default': its events are in 4 queues \(queue-0 to queue-3\), mapper epoch 1, but this "
        r"silo has 8 queues \(queue-0 to queue-7\)"
    )
    with pytest.raises(ConfigError, match=match):
        async with silo_of(store, 8):
            raise AssertionError("started")
    async with silo_of(store, 8, "another"):
        pass
    SEEN.clear()
    async with silo_of(store, 4) as silo:
        await silo.stream(LINES, "a").publish(1)
        await until(lambda: SEEN == [1])


async def test_of_two_that_are_first_one_decides() -> None:
    store = MemoryStateStore()
    few = MapperRecords(store, "p", HashRingMapper(queues=2))
    many = MapperRecords(store, "p", HashRingMapper(queues=3))
    ends = await asyncio.gather(few.agree(), many.agree(), few.agree(), return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), ConfigError, type(None)]


async def test_other_names_are_other_queues() -> None:
    store = MemoryStateStore()
    await MapperRecords(store, "p", HashRingMapper(queues=2)).agree()
    other = MapperRecords(store, "p", HashRingMapper(queues=2, prefix="lane"))
    with pytest.raises(ConfigError, match="lane-0 to lane-1"):
        await other.agree()


class Called(HashRingMapper):
    """A mapper whose name describes a rule that its queues do not show."""

    def __init__(self, name: str) -> None:
        super().__init__(queues=2)
        self.name = name


async def test_a_mapper_of_another_name_is_refused_though_its_queues_are_the_same() -> None:
    store = MemoryStateStore()
    await MapperRecords(store, "p", Called("by customer")).agree()
    await MapperRecords(store, "p", Called("by customer")).agree()
    for other in (Called("by region"), HashRingMapper(queues=2)):
        with pytest.raises(ConfigError, match="mapper 'by customer', mapper epoch 1, but this"):
            await MapperRecords(store, "p", other).agree()


class Late(MemoryStateStore):
    """Lets another silo act first at each read."""

    async def read(self, key: str, /) -> Row | None:
        found = await super().read(key)
        await asyncio.sleep(0)
        return found


async def test_silos_that_saw_one_era_raise_it_once_and_keep_the_queues() -> None:
    store = Late()
    ones = [MapperRecords(store, "p", HashRingMapper(queues=2)) for _ in range(5)]
    assert await ones[0].era() == 0
    assert await asyncio.gather(*(one.raise_era(0) for one in ones)) == [1] * 5
    assert await ones[1].raise_era(1) == 2
    await ones[2].agree()
    assert await ones[3].era() == 2


async def test_a_row_that_is_no_record_is_named() -> None:
    store = MemoryStateStore()
    etag = store.put("mapper/p", b"\xc1", None, 0)
    with pytest.raises(Corrupt, match="row mapper/p is not a sealed row"):
        await MapperRecords(store, "p", HashRingMapper(queues=2)).agree()
    no_text = msgspec.msgpack.encode([2, "a", "b", 1])[:-2] + b"\xff\x01"
    for content in (b"\xc1", no_text):
        etag = store.put("mapper/p", seal_content("mapper/p", content), etag, 0)
        with pytest.raises(Corrupt, match="'mapper/p' is not a mapper record"):
            await MapperRecords(store, "p", HashRingMapper(queues=2)).agree()


async def test_a_flipped_bit_in_the_record_is_no_other_number_of_queues() -> None:
    store = MemoryStateStore()
    await MapperRecords(store, "p", HashRingMapper(queues=2)).agree()
    row = store.get("mapper/p")
    assert row is not None
    etag = row.etag
    for bit in range(8 * len(row.data)):
        data = bytearray(row.data)
        data[bit // 8] ^= 1 << bit % 8
        etag = store.put("mapper/p", bytes(data), etag, 0)
        with pytest.raises(Corrupt, match="mapper/p"):
            await MapperRecords(store, "p", HashRingMapper(queues=2)).read()
