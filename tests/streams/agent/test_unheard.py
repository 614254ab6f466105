"""Events of streams without subscriptions are acknowledged, and are not cached or routed."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from tests.conditions import until
from tests.contract.reference import LEASES, LEDGER, TAGS, Broker, ReferenceQueues

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Capability,
    Event,
    FlowOptions,
    HashRingMapper,
    PersistentStreams,
    QueueStats,
    StreamNamespace,
    StreamOptions,
)

LINES = StreamNamespace("lines", int)
SEEN: list[int] = []
QUICK = StreamOptions(poll_ceiling_s=0.01, flow=FlowOptions(ack_every_s=0.01))


class Reader(Grain):
    async def listen(self, start: Literal["next", "earliest"]) -> None:
        await self.stream(LINES, "a").subscribe(self._on_line, start=start)

    async def leave(self) -> None:
        for subscription in await self.stream(LINES, "a").subscriptions(self):
            await subscription.unsubscribe()

    async def _on_line(self, event: Event[int]) -> None:
        SEEN.append(event.item)


class Place:
    def __init__(self, cluster: LocalCluster, broker: Broker) -> None:
        self.cluster, self.broker = cluster, broker
        self.stream = cluster.client.stream(LINES, "a")

    def stats(self) -> QueueStats:
        part: Any = self.cluster.silos[0].services.part("default")
        (row,) = part.stats()
        assert isinstance(row, QueueStats)
        return row

    def routed(self) -> int:
        part: Any = self.cluster.silos[0].services.part("default")
        (agent,) = part.manager.agents()
        return int(agent.cache.next_index)

    async def publish(self, first: int, count: int) -> None:
        for item in range(first, first + count):
            await self.stream.publish(item)

    async def until_read(self, count: int) -> None:
        await until(lambda: self.stats().read == count)


def place_of(capabilities: frozenset[Capability], broker: Broker) -> tuple[LocalCluster, Broker]:
    def make() -> PersistentStreams:
        return PersistentStreams(
            ReferenceQueues(broker, capabilities),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.0),
            options=QUICK,
        )

    SEEN.clear()
    return LocalCluster(silos=1, grains=[Reader], streams={"default": make}), broker


ALL = pytest.mark.parametrize(
    "capabilities",
    [
        pytest.param(LEDGER, id="log"),
        pytest.param(LEDGER - {Capability.REWIND, Capability.SEALED}, id="positions"),
        pytest.param(TAGS, id="unordered"),
        pytest.param(LEASES, id="leases"),
    ],
)


@ALL
async def test_events_that_nobody_hears_are_acknowledged_and_only_the_first_is_routed(
    capabilities: frozenset[Capability],
) -> None:
    cluster, broker = place_of(capabilities, Broker())
    async with cluster:
        place = Place(cluster, broker)
        await place.publish(0, 1)
        await place.until_read(1)
        await until(lambda: place.stats().unheard == 1)
        routed = place.routed()
        await place.publish(1, 20)
        await place.until_read(21)
        assert (place.stats().unheard, place.stats().cached, place.routed()) == (21, 0, routed)
        shelf = broker.shelf(place.stats().queue)
        await until(lambda: all(one.is_done or one.token <= shelf.own for one in shelf.stored))


@ALL
async def test_a_subscription_that_comes_hears_what_is_stored_from_then_on(
    capabilities: frozenset[Capability],
) -> None:
    cluster, broker = place_of(capabilities, Broker())
    async with cluster:
        place = Place(cluster, broker)
        reader = cluster.client.grain(Reader, "r")
        await place.publish(0, 5)
        await place.until_read(5)
        await reader.listen("next")
        await place.publish(5, 5)
        await until(lambda: sorted(SEEN) == [5, 6, 7, 8, 9])
        await reader.leave()
        await place.publish(10, 5)
        await place.until_read(15)
        assert place.stats().unheard == 10
        await reader.listen("next")
        await place.publish(15, 1)
        await until(lambda: sorted(SEEN) == [5, 6, 7, 8, 9, 15])


async def test_a_subscription_from_the_earliest_event_on_gets_those_that_nobody_heard() -> None:
    cluster, broker = place_of(LEDGER, Broker(capacity=100_000))
    async with cluster:
        place = Place(cluster, broker)
        await place.publish(0, 10)
        await place.until_read(10)
        await cluster.client.grain(Reader, "r").listen("earliest")
        await place.publish(10, 5)
        await until(lambda: len(SEEN) >= 15)
        assert SEEN[-15:] == list(range(15)) or SEEN == list(range(15))
