"""Call filters beside streams: the calls inside Millstream are not filtered."""

from __future__ import annotations

import asyncio

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import CallFilters, Grain, GrainCall, LocalCluster, Proceed
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

GOALS = StreamNamespace("goals", str)
HEARD: list[str] = []
FILTERED: list[str] = []


class Fan(Grain):
    @subscribe(GOALS)
    async def on_goal(self, event: Event[str]) -> None:
        HEARD.append(event.item)

    async def shout(self, text: str) -> None:
        await self.stream(GOALS, self.key).publish(text)


async def note(call: GrainCall, proceed: Proceed) -> object:
    FILTERED.append(f"{call.grain_id}.{call.method} {'in' if call.grain else 'out'}")
    return await proceed()


@pytest.mark.asyncio
async def test_filters_see_the_calls_of_grains_and_no_call_inside_millstream() -> None:
    HEARD.clear()
    FILTERED.clear()
    async with LocalCluster(
        silos=2,
        grains=[Fan],
        streams={
            "default": lambda: PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
        },
        filters=CallFilters(incoming=[note], outgoing=[note]),
    ) as cluster:
        await asyncio.gather(*(cluster.grain(Fan, f"f{i}").shout(f"goal {i}") for i in range(8)))
        await cluster.stream(GOALS, "f0").publish("from outside")
        await until(lambda: len(HEARD) == 9)
    seen = [f"Fan/f{i}.shout {side}" for i in range(8) for side in ("in", "out")]
    assert sorted(FILTERED) == seen
