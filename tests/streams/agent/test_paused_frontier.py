"""A paused subscription delays neither the frontier, nor a new owner, nor other subscriptions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Literal

import pytest
from tests.conditions import until
from tests.streams.partition_place import PartitionPlace

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    DeliveryFailure,
    DeliveryOptions,
    Event,
    FlowOptions,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    Token,
)
from millstream.streams.agent.agent import PullingAgent

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: dict[str, list[int]] = defaultdict(list)
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BROKEN.clear()


class Hearer(Grain):
    async def listen(self, key: str) -> None:
        await self.stream(LINES, key).subscribe(self._on_line)

    async def _on_line(self, event: Event[int]) -> None:
        if self.key in BROKEN:
            raise ValueError("broken")
        SEEN[self.key].append(event.item)


class Pause:
    async def give_up(self, failure: DeliveryFailure, /) -> Literal["pause"]:
        return "pause"


OPTIONS = StreamOptions(
    ownership=OwnershipOptions(poll_s=0.02, max_handoff_s=0.5, checkpoint_every_s=0.02),
    delivery=DeliveryOptions(retries=0),
    flow=FlowOptions(ack_every_s=0.0),
    read_wait_s=0.05,
)


def agent_of(cluster: LocalCluster) -> PullingAgent:
    agents: list[PullingAgent] = [
        agent for silo in cluster.silos for agent in silo.services.part("default").manager.agents()
    ]
    return agents[0]


async def publish(cluster: LocalCluster, key: str, *items: int) -> None:
    for item in items:
        await cluster.stream(LINES, key).publish(item)


async def pause_bad(cluster: LocalCluster) -> None:
    """Let one listener of "s" fail at once, while another stream goes on."""
    BROKEN.add("bad")
    await cluster.grain(Hearer, "bad").listen("s")
    await cluster.grain(Hearer, "good").listen("t")
    await publish(cluster, "s", 1, 2)
    await publish(cluster, "t", *range(20))
    await until(lambda: len(SEEN["good"]) == 20 and len(agent_of(cluster).behind) == 1)


async def test_the_frontier_passes_a_paused_subscription_and_its_entry_is_written_with_it() -> None:
    place = PartitionPlace([Hearer], options=OPTIONS, on_give_up=Pause())
    async with place.cluster() as cluster:
        await pause_bad(cluster)
        async with asyncio.timeout(20):
            while (record := await place.record()).upto != Token(1, 21):
                frontier = record.upto or Token(0, 0)
                assert record.listed or frontier < Token(1, 0), "passed, and not named"
                await asyncio.sleep(0)
        (entry,) = (await place.record()).listed
        assert (entry.key, entry.mark) == ("s", Token(1, 0))
        assert agent_of(cluster).cache.events == agent_of(cluster).cache.chained_events == 0
        BROKEN.clear()
        await cluster.grain(Hearer, "bad").listen("s")
        await publish(cluster, "s", 3)
        await until(lambda: SEEN["bad"] == [1, 2, 3])
        async with asyncio.timeout(20):
            while (await place.record()).listed:
                await asyncio.sleep(0)


async def test_a_new_owner_reads_behind_the_frontier_and_the_paused_one_from_its_place() -> None:
    place = PartitionPlace([Hearer], options=OPTIONS, on_give_up=Pause())
    async with place.cluster() as cluster:
        await pause_bad(cluster)
    async with place.cluster() as cluster:
        await until(lambda: bool(cluster.silos[0].services.part("default").manager.agents()))
        await publish(cluster, "t", 20)
        await until(lambda: len(SEEN["good"]) == 21)
        agent = agent_of(cluster)
        assert agent.reader.core.read_count == 1 and len(agent.behind) == 1  # it is still faulted
        assert SEEN["bad"] == []
        BROKEN.clear()
        await cluster.grain(Hearer, "bad").listen("s")
        await until(lambda: SEEN["bad"] == [1, 2])
    assert SEEN["good"] == list(range(21))


async def test_what_the_others_have_done_gives_its_room_back_while_one_is_paused() -> None:
    """A memory queue of 30 events takes 500, because only events of the paused stream stay."""

    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(MemoryOptions(capacity_events=30, enqueue_wait_s=5.0)),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=OPTIONS,
            on_give_up=Pause(),
        )

    async with LocalCluster(silos=1, grains=[Hearer], streams={"default": provider}) as cluster:
        await pause_bad(cluster)
        await publish(cluster, "t", *range(20, 500))
        await until(lambda: len(SEEN["good"]) == 500)
        BROKEN.clear()
        await cluster.grain(Hearer, "bad").listen("s")
        await until(lambda: SEEN["bad"] == [1, 2])
        await until(lambda: not agent_of(cluster).behind.matters)


async def test_after_a_clean_hand_off_nothing_is_delivered_twice() -> None:
    """Two listeners of one stream, of which one is within a batch; the other stream is ahead."""
    place = PartitionPlace([Hearer], options=OPTIONS, on_give_up=Pause())
    async with place.cluster() as cluster:
        await pause_bad(cluster)
        await cluster.grain(Hearer, "too").listen("s")
        await publish(cluster, "s", *range(3, 30))
        await until(lambda: len(SEEN["too"]) == 27)
        delivered = agent_of(cluster).dispatch.delivered_count
        assert delivered == 20 + 27
        await cluster.start_silo()
        first = cluster.silos[0]
        await first.stop()
        await until(lambda: bool(cluster.silos[1].services.part("default").manager.agents()))
        await publish(cluster, "t", 20)
        await publish(cluster, "s", 30)
        await until(lambda: len(SEEN["good"]) == 21 and SEEN["too"][-1] == 30)
        agent = cluster.silos[1].services.part("default").manager.agents()[0]
        assert agent.dispatch.delivered_count == 2
        BROKEN.clear()
        await cluster.grain(Hearer, "bad").listen("s")
        await until(lambda: SEEN["bad"] == list(range(1, 31)))
