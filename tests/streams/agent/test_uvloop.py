"""Reading and acknowledging on uvloop, whose timers may fire early and whose handles have less
data."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import uvloop
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
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


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        SEEN[self.key] += 1


@pytest.mark.parametrize("ack_every_s", [0.0, 0.0004, 0.002])
def test_events_are_handled_and_acknowledged_one_by_one(ack_every_s: float) -> None:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=StreamOptions(flow=FlowOptions(ack_every_s=ack_every_s)),
        )

    async def play() -> None:
        SEEN.clear()
        async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
            streams = cluster.silos[0].services.part("default")
            for number in range(1, 301):
                await cluster.stream(LINES, "k").publish(number)
                await until(lambda number=number: SEEN["k"] == number)  # type: ignore[misc]
            (agent,) = streams.manager.agents()
            await until(lambda: agent.undone == 0)
            await until(lambda: agent.reader.core.acked_upto == agent.cache.find_acked())
            (stats,) = streams.stats()
            assert stats.faults == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
