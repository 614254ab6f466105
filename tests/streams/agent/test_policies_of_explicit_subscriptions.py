"""Retry policies of explicit subscriptions are stored in their rows, so the next owner has them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, Silo
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
)

LINES = StreamNamespace("lines", str, subscriptions="explicit")
SEEN: dict[str, list[str]] = defaultdict(list)
AT_ONCE = Backoff(0.001, 1.0, 0.001)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Hopeless(ValueError):
    pass


class VeryHopeless(Hopeless):
    pass


class Reader(Grain):
    async def listen(self, which: str) -> None:
        stream = self.stream(LINES, self.key)
        if which == "plain":
            await stream.subscribe(self._on_line)
        elif which == "patient":
            await stream.subscribe(self._on_line, retries=2, backoff=AT_ONCE)
        elif which == "hasty":
            await stream.subscribe(
                self._on_line, retries=2, backoff=AT_ONCE, give_up_on=(Hopeless,)
            )
        else:
            await stream.subscribe(
                self._on_line,
                retries=0,
                on_give_up=which,  # type: ignore[arg-type]
            )

    async def listen_with(self, arguments: dict[str, Any]) -> None:
        await self.stream(LINES, self.key).subscribe(self._on_line, **arguments)

    async def states(self) -> list[str]:
        return [one.state for one in await self.stream(LINES, self.key).subscriptions(self)]

    async def _on_line(self, event: Event[str]) -> None:
        SEEN[self.key].append(f"{event.item}{event.attempt}")
        if event.item == "bad":
            raise VeryHopeless("never")


def cluster_of(silos: int = 1, first_s: float = 60.0) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(
                delivery=DeliveryOptions(backoff=Backoff(first_s, 1.0, first_s)),
                ownership=OwnershipOptions(poll_s=0.02),
            ),
        )

    return LocalCluster(silos=silos, grains=[Reader], streams={"default": provider})


def owner(cluster: LocalCluster) -> Silo | None:
    for silo in cluster.silos:
        if any(agent.reader.is_reading for agent in silo.services.part("default").manager.agents()):
            return silo
    return None


async def test_retries_and_waits_are_the_subscriptions_own() -> None:
    async with cluster_of() as cluster:
        await cluster.grain(Reader, "k").listen("patient")
        await cluster.stream(LINES, "k").publish_many(["a", "bad", "z"])
        await until(lambda: "z1" in SEEN["k"])  # the wait of the provider is a minute
        (letter,) = await dead_letters(cluster).list()
    assert SEEN["k"] == ["a1", "bad1", "bad2", "bad3", "z1"] and letter.failure.attempts == 3


async def test_an_exception_that_is_derived_from_one_that_is_named_is_not_tried_again() -> None:
    async with cluster_of() as cluster:
        await cluster.grain(Reader, "k").listen("hasty")
        await cluster.stream(LINES, "k").publish_many(["bad", "z"])
        await until(lambda: "z1" in SEEN["k"])
    assert SEEN["k"] == ["bad1", "z1"]


@pytest.mark.parametrize("answer", ["skip", "dead_letter", "pause"])
async def test_what_becomes_of_what_is_given_up(answer: str) -> None:
    async with cluster_of() as cluster:
        reader = cluster.grain(Reader, "k")
        await reader.listen(answer)
        await cluster.stream(LINES, "k").publish_many(["bad", "z"])
        (agent,) = cluster.silos[0].services.part("default").manager.agents()
        await until(lambda: agent.dispatch.given_up_count == 1)
        if answer != "pause":
            await until(lambda: "z1" in SEEN["k"])
        assert len(await dead_letters(cluster).list()) == (answer == "dead_letter")
        assert await reader.states() == ["faulted" if answer == "pause" else "active"]


async def test_the_next_owner_of_the_queue_goes_by_the_same_policy() -> None:
    async with cluster_of(silos=2) as cluster:
        await cluster.grain(Reader, "k").listen("hasty")
        await cluster.stream(LINES, "k").publish("a")
        await until(lambda: SEEN["k"] == ["a1"])
        first = owner(cluster)
        assert first is not None
        await first.stop()
        await until(lambda: owner(cluster) not in (None, first))
        stays = next(one for one in cluster.silos if one is not first)
        await stays.stream(LINES, "k").publish_many(["bad", "z"])
        await until(lambda: "z1" in SEEN["k"])
    assert SEEN["k"] == ["a1", "bad1", "z1"]


async def test_who_subscribes_again_sets_the_policy_anew_while_an_event_fails() -> None:
    async with cluster_of() as cluster:
        reader = cluster.grain(Reader, "k")
        await reader.listen("plain")
        await cluster.stream(LINES, "k").publish_many(["bad", "z"])
        await until(lambda: SEEN["k"] == ["bad1"])  # the next attempt is a minute away
        await reader.listen("skip")
        await until(lambda: "z1" in SEEN["k"])
        assert SEEN["k"] == ["bad1", "bad1", "z1"]
        SEEN.clear()
        await reader.listen("skip")
        await cluster.stream(LINES, "k").publish("bad")
        await until(lambda: SEEN["k"] == ["bad1"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"retries": -1}, "retries is -1"),
        ({"retries": True}, "retries is True"),
        ({"backoff": 5}, "backoff is 5"),
        ({"give_up_on": ["x"]}, "give_up_on is .*write a tuple of exception types"),
        ({"on_give_up": "retry"}, "on_give_up is 'retry': write one of 'dead_letter'"),
    ],
)
async def test_a_policy_that_cannot_be_is_refused_before_anything_is_stored(
    arguments: dict[str, Any], text: str
) -> None:
    async with cluster_of() as cluster:
        reader = cluster.grain(Reader, "k")
        with pytest.raises(ConfigError, match=f"subscribe: {text}"):
            await reader.listen_with(arguments)
        assert await reader.states() == []
