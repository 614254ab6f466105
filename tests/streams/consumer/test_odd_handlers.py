"""Handlers that end in unusual ways: each fails its own event, and no other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster
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

ODD = StreamNamespace("odd", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Odd(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def throw(error: BaseException) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act


WAYS: dict[str, Callable[[], Any]] = {
    "cancelled": throw(asyncio.CancelledError()),
    "base": throw(Odd("odd")),
    "generator": throw(GeneratorExit()),
    "exit": throw(SystemExit(3)),
    "group": throw(BaseExceptionGroup("g", [Odd()])),
    "unspeakable": throw(Unspeakable()),
    "surrogate": throw(ValueError("\ud800")),
}


class Reader(Grain):
    @subscribe(ODD)
    async def on_event(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)
        if event.item == "bad" and self.key in WAYS:
            WAYS[self.key]()
        if event.item == "bad" and self.key == "awaits":
            nobody = asyncio.get_running_loop().create_future()
            nobody.cancel()
            await nobody
        if event.item == "bad" and self.key == "itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

    async def ping(self) -> str:
        return "here"


def cluster_of(handler: FailureHandler | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=DeliveryOptions(retries=2, backoff=Backoff(0.005))),
            on_give_up=handler,
        )

    return LocalCluster(silos=2, grains=[Reader], streams={"default": provider})


async def settled(cluster: LocalCluster) -> None:
    """Wait until each silo reads one queue, because a hand-over would begin the attempts again."""
    managers = [silo.services.part("default").manager for silo in cluster.silos]
    await until(lambda: all([a.reader.is_reading for a in m.agents()] == [True] for m in managers))


async def publish_and_wait(cluster: LocalCluster, key: str) -> list[DeadLetter]:
    await settled(cluster)
    await cluster.stream(ODD, key).publish_many(["a", "b", "bad", "y", "z"])
    await until(lambda: "z" in SEEN[key])
    provider = cluster.silos[0].services.part("default")
    return list(await provider.dead_letters.list())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", [*WAYS, "awaits"])
async def test_a_handler_that_ends_oddly_fails_its_own_event_only(way: str) -> None:
    async with cluster_of() as cluster:
        (letter,) = await publish_and_wait(cluster, way)
        assert SEEN[way] == ["a", "b", "bad", "bad", "bad", "y", "z"]
        assert (letter.failure.attempts, letter.failure.body) == (3, b"\xa3bad")
        assert await cluster.grain(Reader, way).ping() == "here"


async def test_a_handler_that_cancels_its_own_task_stops_nothing_else() -> None:
    async with cluster_of() as cluster:
        (letter,) = await publish_and_wait(cluster, "itself")
        assert letter.failure.body == b"\xa3bad"
        assert SEEN["itself"][-2:] == ["y", "z"]


class Faulty:
    """Fails, then returns a wrong answer, then skips."""

    def __init__(self) -> None:
        self.asked = 0

    async def give_up(self, failure: DeliveryFailure, /) -> Literal["dead_letter", "skip", "pause"]:
        self.asked += 1
        if self.asked == 1:
            raise OSError("no mail today")
        return "skip" if self.asked > 2 else "perhaps"  # type: ignore[return-value]


async def test_a_failure_handler_that_fails_is_asked_again() -> None:
    handler = Faulty()
    async with cluster_of(handler) as cluster:
        assert await publish_and_wait(cluster, "base") == []
        assert handler.asked == 3
        assert SEEN["base"][-2:] == ["y", "z"]
