"""Ending a subscription from inside its grain: from then on its handler gets no event."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, always_interleave, grain, state
from millstream.runtime.extending import extension_of
from millstream.streams import (
    Backoff,
    DeadLetter,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    FailureHandler,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.consumer.extension import ENDED_MAX, ConsumerExtension

LINES = StreamNamespace("lines", str, subscriptions="explicit")
NOTES = StreamNamespace("notes", str, subscriptions="explicit")  # its mark is only for the state
SEEN: dict[str, list[str]] = defaultdict(list)
GATES: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    GATES.clear()


def see(key: str, text: str) -> None:
    SEEN[key].append(text)


async def pass_gate(text: str) -> None:
    if text in GATES:
        see("gates", text)
        await GATES[text].wait()


@dataclass
class Texts:
    items: list[str] = field(default_factory=list)


class Hearer(Grain):
    texts = state(Texts)

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)
        await self.stream(LINES, "s").subscribe(self._on_all, name="all")

    async def leave(self) -> None:
        """Keep the grain busy until the gate opens; then unsubscribe."""
        await pass_gate("leave")
        await self._leave("s")
        see(self.key, "left")

    async def _leave(self, key: str) -> None:
        for subscription in await self.stream(LINES, key).subscriptions(self):
            if not subscription.name:
                await subscription.unsubscribe()

    async def _on_line(self, event: Event[str]) -> None:
        see(self.key, event.item)
        await pass_gate(event.item)
        if event.item == "leave":
            await self._leave(event.key)
        if event.item == "raise":
            await self._leave(event.key)
            raise ValueError("raise")
        if event.item == "again":
            await self._leave(event.key)
            await self.stream(LINES, event.key).subscribe(self._on_line)
            see(f"again/{self.key}", event.item)
        if event.item == "bad":
            raise ValueError("bad")

    async def _on_all(self, event: Event[str]) -> None:
        see(f"all/{self.key}", event.item)

    async def keep_notes(self) -> None:
        await self.stream(NOTES, "s").subscribe(self.on_note, name="kept")

    @subscribe(NOTES, commit_with=texts)
    async def on_note(self, event: Event[str]) -> None:
        self.texts.value.items.append(event.item)
        see(self.key, event.item)
        if event.item == "raise":
            for subscription in await self.stream(NOTES, "s").subscriptions(self):
                await subscription.unsubscribe()
            raise ValueError("raise")

    async def noted(self) -> list[str]:
        return self.texts.value.items


@grain(reentrant=True)
class Reentrant(Grain):
    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    @always_interleave
    async def leave(self) -> None:
        for subscription in await self.stream(LINES, "s").subscriptions(self):
            await subscription.unsubscribe()

    async def _on_line(self, event: Event[str]) -> None:
        see(self.key, event.item)
        await pass_gate(event.item)


class Ask:
    """Waits at its gate, then stores a dead letter."""

    async def give_up(self, failure: DeliveryFailure, /) -> Literal["dead_letter"]:
        await pass_gate("give up")
        return "dead_letter"


def cluster_of(silos: int, handler: FailureHandler | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        delivery = DeliveryOptions(retries=1, backoff=Backoff(0.005))
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=delivery),
            on_give_up=handler,
        )

    return LocalCluster(silos=silos, grains=[Hearer, Reentrant], streams={"default": provider})


async def letters_of(cluster: LocalCluster) -> list[DeadLetter]:
    return list(await cluster.silos[0].services.part("default").dead_letters.list())


@pytest.mark.parametrize("silos", [1, 2])
async def test_a_handler_that_unsubscribes_sees_nothing_more_of_the_call(silos: int) -> None:
    async with cluster_of(silos) as cluster:
        await cluster.grain(Hearer, "h").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "leave", "b", "c"])
        await until(lambda: SEEN["all/h"] == ["a", "leave", "b", "c"])
        await cluster.stream(LINES, "s").publish("d")
        await until(lambda: SEEN["all/h"][-1] == "d")
        assert SEEN["h"] == ["a", "leave"]


async def test_a_delivery_that_waits_while_its_grain_unsubscribes_is_not_handled() -> None:
    GATES["leave"] = asyncio.Event()
    async with cluster_of(1) as cluster:
        hearer = cluster.grain(Hearer, "h")
        await hearer.listen()
        leaving = asyncio.ensure_future(hearer.leave())
        await until(lambda: SEEN["gates"] == ["leave"])
        await cluster.stream(LINES, "s").publish_many(["a", "b"])
        manager = cluster.silos[0].services.part("default").manager
        async with asyncio.timeout(20):
            while sum(agent.dispatch.calls_out for agent in manager.agents()) < 2:
                await asyncio.sleep(0)
        GATES["leave"].set()
        await leaving
        await until(lambda: SEEN["all/h"] == ["a", "b"])
        assert SEEN["h"] == ["left"]


async def test_a_handler_that_unsubscribes_and_raises_leaves_no_dead_letter() -> None:
    async with cluster_of(1) as cluster:
        await cluster.grain(Hearer, "h").listen()
        await cluster.stream(LINES, "s").publish_many(["raise", "b"])
        await until(lambda: SEEN["all/h"] == ["raise", "b"])
        await cluster.stream(LINES, "s").publish("c")
        await until(lambda: SEEN["all/h"][-1] == "c")
        assert SEEN["h"] == ["raise"]
        assert await letters_of(cluster) == []


async def test_a_handler_that_subscribes_again_sees_what_is_published_from_then_on() -> None:
    async with cluster_of(1) as cluster:
        await cluster.grain(Hearer, "h").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "again", "b", "c"])
        await until(lambda: SEEN["all/h"] == ["a", "again", "b", "c"])
        # the order of the subscriptions does not matter
        await until(lambda: SEEN["again/h"] == ["again"])
        await cluster.stream(LINES, "s").publish_many(["d", "e"])
        await until(lambda: SEEN["h"][-1] == "e")
        assert SEEN["h"] == ["a", "again", "d", "e"]


async def test_another_turn_of_the_grain_ends_the_call_that_is_out() -> None:
    GATES["b"] = asyncio.Event()
    async with cluster_of(1) as cluster:
        await cluster.grain(Reentrant, "r").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "b", "c", "d"])
        await until(lambda: SEEN["gates"] == ["b"])
        await cluster.grain(Reentrant, "r").leave()
        GATES["b"].set()
        await cluster.grain(Hearer, "h").listen()
        await cluster.stream(LINES, "s").publish("e")
        await until(lambda: SEEN["all/h"] == ["e"])
        assert SEEN["r"] == ["a", "b"]


async def test_what_was_committed_before_a_handler_left_and_raised_stays() -> None:
    async with cluster_of(1) as cluster:
        hearer = cluster.grain(Hearer, "h")
        await hearer.keep_notes()
        await cluster.stream(NOTES, "s").publish_many(["a", "b", "raise", "c"])
        await until(lambda: SEEN["h"].count("b") == 2)  # before the failure, and again after it
        assert await hearer.noted() == ["a", "b"]
        await cluster.stream(NOTES, "s").publish("d")
        assert SEEN["h"] == ["a", "b", "raise", "a", "b"]
        assert await letters_of(cluster) == []


async def test_an_event_that_is_being_given_up_is_not_stored_after_its_subscription_ended() -> None:
    GATES["give up"] = asyncio.Event()
    async with cluster_of(1, Ask()) as cluster:
        await cluster.grain(Hearer, "h").listen()
        await cluster.stream(LINES, "s").publish_many(["bad", "b"])
        await until(lambda: SEEN["gates"] == ["give up"])
        await cluster.grain(Hearer, "h").leave()
        GATES["give up"].set()
        await cluster.stream(LINES, "s").publish("c")
        await until(lambda: SEEN["all/h"] == ["bad", "b", "c"])
        for _ in range(100):
            await asyncio.sleep(0)
        assert await letters_of(cluster) == []
        assert SEEN["h"] == ["bad", "bad", "left"]


async def test_an_activation_remembers_a_limited_number_of_ended_subscriptions() -> None:
    async with cluster_of(1) as cluster:
        await cluster.grain(Hearer, "h").listen()
        activation = cluster.silos[0].assembly.catalog.of("Hearer")["h"]
        consumer: ConsumerExtension = extension_of(activation.grain, "streams")
        for number in range(ENDED_MAX + 2):
            consumer.left(str(number))
        assert list(consumer._ended) == [str(number) for number in range(2, ENDED_MAX + 2)]
