"""Positions of ended subscriptions leave the rows of states; those of live ones stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore, StorageUnavailable, state
from millstream.runtime.testing import FailingStore
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

NOTES = StreamNamespace("notes", int, subscriptions="explicit")  # its mark is only for the state
MARKED = StreamNamespace("marked", int, subscriptions="implicit")


@dataclass
class Numbers:
    items: list[int] = field(default_factory=list)


class Reader(Grain):
    numbers = state(Numbers)

    async def listen(self, *, key: str, name: str = "") -> None:
        await self.stream(NOTES, key).subscribe(self.on_note, name=name)

    async def leave(self, key: str) -> None:
        for subscription in await self.stream(NOTES, key).subscriptions(self):
            await subscription.unsubscribe()

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def write(self) -> None:
        await self.numbers.write()

    async def items(self) -> list[int]:
        return self.numbers.value.items

    async def positions(self) -> list[str]:
        """Return the streams whose subscriptions have positions in the stored row."""
        await self.numbers.read()
        return sorted(name.split("/")[-5 if "explicit" in name else -1] for name in self._names())

    def _names(self) -> list[str]:
        return list(self.numbers.cursors)

    @subscribe(NOTES, commit_with=numbers)
    async def on_note(self, event: Event[int]) -> None:
        self.numbers.value.items.append(event.item)
        if event.item == 99:
            await self.leave(event.key)

    @subscribe(MARKED, commit_with=numbers)
    async def on_marked(self, event: Event[int]) -> None:
        self.numbers.value.items.append(event.item)


def cluster_of(store: MemoryStateStore | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.02),
            options=StreamOptions(delivery=DeliveryOptions(backoff=Backoff(0.01, 1.0, 0.01))),
        )

    return LocalCluster(
        silos=1,
        grains=[Reader],
        streams={"default": provider},
        stores={"default": store or MemoryStateStore()},
    )


class Hearing:
    """A reader that has handled one event of each of these streams, and one of its mark."""

    def __init__(self, cluster: LocalCluster, *keys: str) -> None:
        self.cluster, self.keys = cluster, keys
        self.reader = cluster.grain(Reader, "r")
        self.count = 0

    async def begin(self) -> Any:
        for key in self.keys:
            await self.reader.listen(key=key)
            await self.publish(key)
        await self.cluster.stream(MARKED, "r").publish(0)
        await self.heard(len(self.keys) + 1)
        return self.reader

    async def publish(self, key: str, item: int = 1) -> None:
        await self.cluster.stream(NOTES, key).publish(item)

    async def heard(self, count: int) -> None:
        items: list[int] = []

        async def look() -> None:
            nonlocal items
            items = await self.reader.items()

        for _ in range(2_000):
            await look()
            if len(items) >= count:
                return
            await spin(3)
        raise AssertionError(f"heard {items}, not {count}")


async def test_what_the_grain_has_unsubscribed_is_left_out_of_the_next_write() -> None:
    async with cluster_of() as cluster:
        reader = await Hearing(cluster, "a", "b").begin()
        assert await reader.positions() == ["a", "b", "on_marked"]
        await reader.leave("a")
        await reader.write()
        assert await reader.positions() == ["b", "on_marked"]


async def test_a_handler_that_unsubscribes_leaves_its_value_and_no_position() -> None:
    async with cluster_of() as cluster:
        hearing = Hearing(cluster, "a")
        reader = await hearing.begin()
        await hearing.publish("a", 99)
        await hearing.heard(3)
        await reader.write()
        assert await reader.positions() == ["on_marked"]
        assert sorted(await reader.items()) == [0, 1, 99]


async def test_what_somebody_else_has_removed_is_found_by_the_next_activation() -> None:
    async with cluster_of() as cluster:
        hearing = Hearing(cluster, "a", "b")
        reader = await hearing.begin()
        await reader.end()
        (handle,) = await cluster.stream(NOTES, "a").subscriptions()
        await handle.unsubscribe()
        await hearing.publish("b")
        await hearing.heard(4)
        await spin(200)
        await reader.write()
        assert await reader.positions() == ["b", "on_marked"]


async def test_those_that_live_stay_also_where_nobody_can_tell() -> None:
    store = FailingStore()
    async with cluster_of(store) as cluster:
        hearing = Hearing(cluster, "a", "b")
        reader = await hearing.begin()
        for times in (0, 3):
            await reader.end()
            if times:
                store.fail("read", "subscription/", times=times)
            await hearing.publish("b")
            await hearing.heard(4 + bool(times))
            await spin(200)
            await reader.write()
            assert await reader.positions() == ["a", "b", "on_marked"]


async def test_an_unsubscribe_that_failed_keeps_the_position_until_it_is_done() -> None:
    store = FailingStore()
    async with cluster_of(store) as cluster:
        hearing = Hearing(cluster, "a")
        reader = await hearing.begin()
        store.fail("clear", "subscription/")
        with pytest.raises(StorageUnavailable):
            await reader.leave("a")
        await reader.write()
        assert await reader.positions() == ["a", "on_marked"]
        await reader.leave("a")
        await reader.write()
        assert await reader.positions() == ["on_marked"]


async def test_who_subscribes_again_has_a_position_again() -> None:
    async with cluster_of() as cluster:
        hearing = Hearing(cluster, "a")
        reader = await hearing.begin()
        await reader.leave("a")
        await reader.listen(key="a")
        await hearing.publish("a", 2)
        await hearing.heard(3)
        await until(lambda: True)
        assert await reader.positions() == ["a", "on_marked"]
