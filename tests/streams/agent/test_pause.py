"""A subscription that is paused after a failure loses no event, and no stream waits for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Literal

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    DeliveryFailure,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="explicit")
NOTES = StreamNamespace("notes", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BROKEN.clear()


async def until_seen(wanted: dict[str, list[str]]) -> None:
    await until(lambda: all(SEEN[key] == texts for key, texts in wanted.items()))


def see(key: str, text: str) -> None:
    if key in BROKEN and text == "b":
        raise ValueError(text)
    SEEN[key].append(text)


class Hearer(Grain):
    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def resume(self, token: str) -> None:
        (subscription,) = await self.stream(LINES, "s").subscriptions(self)
        await subscription.resume(start=Token.parse(token))

    async def _on_line(self, event: Event[str]) -> None:
        see(self.key, event.item)

    @subscribe(NOTES)
    async def on_note(self, event: Event[str]) -> None:
        see(self.key, event.item)


class Pause:
    def __init__(self) -> None:
        self.failures: list[DeliveryFailure] = []

    async def give_up(self, failure: DeliveryFailure, /) -> Literal["pause"]:
        self.failures.append(failure)
        see("failures", failure.subscription)
        return "pause"


def cluster_of(silos: int, handler: Pause) -> LocalCluster:
    def provider() -> PersistentStreams:
        ownership = OwnershipOptions(poll_s=0.05, max_handoff_s=0.1)
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=DeliveryOptions(retries=0), ownership=ownership),
            on_give_up=handler,
        )

    return LocalCluster(silos=silos, grains=[Hearer], streams={"default": provider})


async def fail_at_b(cluster: LocalCluster, handler: Pause) -> str:
    """Start two listeners, one of which fails at the second event; return that event's token."""
    BROKEN.add("bad")
    for key in ("bad", "good"):
        await cluster.grain(Hearer, key).listen()
    for text in "abc":
        await cluster.stream(LINES, "s").publish(text)
    await until_seen({"bad": ["a"], "good": ["a", "b", "c"]})
    await until(lambda: bool(handler.failures))
    return str(handler.failures[0].token)


async def test_a_paused_subscription_goes_on_at_the_token_with_all_that_came_meanwhile() -> None:
    handler = Pause()
    async with cluster_of(1, handler) as cluster:
        token = await fail_at_b(cluster, handler)
        await cluster.stream(LINES, "s").publish("d")
        await until_seen({"good": ["a", "b", "c", "d"], "bad": ["a"]})
        BROKEN.clear()
        await cluster.grain(Hearer, "bad").resume(token)
        await cluster.stream(LINES, "s").publish("e")
        await until_seen({"bad": ["a", "b", "c", "d", "e"], "good": ["a", "b", "c", "d", "e"]})
        assert len(handler.failures) == 1


async def test_a_paused_subscription_stays_paused_and_loses_nothing_when_its_queue_moves() -> None:
    handler = Pause()
    async with cluster_of(2, handler) as cluster:
        token = await fail_at_b(cluster, handler)
        providers = [silo.services.part("default") for silo in cluster.silos]
        queue = providers[0].mapper.queue_for(cluster.stream(LINES, "s").id)
        owner = next(
            silo
            for silo, provider in zip(cluster.silos, providers, strict=True)
            if any(agent.queue == queue for agent in provider.manager.agents())
        )
        BROKEN.clear()
        await owner.stop()
        await cluster.stream(LINES, "s").publish("d")
        await until(lambda: "d" in SEEN["good"])
        assert SEEN["bad"] == ["a"]
        await cluster.grain(Hearer, "bad").resume(token)
        await until_seen({"bad": ["a", "b", "c", "d"]})


async def test_other_streams_of_the_queue_do_not_wait_for_a_paused_implicit_subscription() -> None:
    handler = Pause()
    BROKEN.add("x")
    async with cluster_of(1, handler) as cluster:
        for text in "abc":
            for key in ("x", "y", "z"):
                await cluster.stream(NOTES, key).publish(text)
        await until_seen({"x": ["a"], "y": ["a", "b", "c"], "z": ["a", "b", "c"]})
        manager = cluster.silos[0].services.part("default").manager
        await until(lambda: sum(len(agent.behind) for agent in manager.agents()) == 1)
        await until(lambda: sum(agent.cache.events for agent in manager.agents()) == 0)
        assert sum(agent.cache.chained_events for agent in manager.agents()) == 0


async def test_events_that_nobody_subscribed_to_are_counted_from_the_first() -> None:
    async with cluster_of(1, Pause()) as cluster:
        provider = cluster.silos[0].services.part("default")
        await cluster.stream(LINES, "nobody").publish_many(["a"] * 100)
        async with asyncio.timeout(20):
            while sum(one.unheard for one in provider.stats()) < 100:
                await asyncio.sleep(0)
        assert sum(one.unheard for one in provider.stats()) == 100


async def test_a_live_subscription_that_is_resumed_further_back_sees_events_again() -> None:
    handler = Pause()
    async with cluster_of(1, handler) as cluster:
        # the paused subscription keeps b and c in the cache
        token = await fail_at_b(cluster, handler)
        await cluster.grain(Hearer, "good").resume(token)
        await until_seen({"good": ["a", "b", "c", "b", "c"]})
