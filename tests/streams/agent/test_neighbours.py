"""A slow handler delays no other stream of its queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    CacheLimits,
    Event,
    FlowOptions,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

LINES = StreamNamespace("lines", int, subscriptions="implicit")
SEEN: Counter[str] = Counter()
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def clean() -> None:
    global GATE
    GATE = asyncio.Event()  # belongs to the loop of one test
    SEEN.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key == "slow":
            await GATE.wait()
        SEEN[self.key] += 1


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(MemoryOptions(capacity_events=200, enqueue_wait_s=0.5)),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.01),
        options=StreamOptions(cache=CacheLimits(events_max=100), flow=FlowOptions(ack_every_s=0.0)),
    )


async def test_one_slow_event_stops_no_other_stream_of_its_queue() -> None:
    """While the slow stream is at one event, the others get ten times the capacity of cache and
    queue."""
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        await cluster.stream(LINES, "slow").publish_many([1, 2, 3])
        keys = [f"key-{number}" for number in range(100)]
        for number in range(20):
            for key in keys:
                await cluster.stream(LINES, key).publish(number)
        await until(lambda: all(SEEN[key] == 20 for key in keys))
        assert SEEN["slow"] == 0
        (stats,) = cluster.silos[0].services.part("default").stats()
        assert stats.cached == 3
        GATE.set()
        await until(lambda: SEEN["slow"] == 3)
