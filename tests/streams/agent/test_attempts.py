"""Errors that count as attempts at an event: those of the handler, of any type."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    CallTimeout,
    Grain,
    LocalCluster,
    Overloaded,
    Rejected,
    RuntimeOptions,
    SiloUnavailable,
    StorageUnavailable,
)
from millstream.streams import (
    Backoff,
    DeadLetter,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="implicit")
WAKES = StreamNamespace("wakes", str, subscriptions="implicit")
RETRIES = 2
ATTEMPTS: dict[str, list[int]] = defaultdict(list)
REFUSALS: dict[str, int] = {}
GATE = asyncio.Event()

ERRORS: dict[str, Callable[[], Exception]] = {
    "overloaded": lambda: Overloaded("another grain", "waiting_calls_max", 1),
    "rejected": lambda: Rejected("another grain"),
    "silo": lambda: SiloUnavailable("another silo"),
    "storage": lambda: StorageUnavailable("my own table"),
    "timeout": lambda: CallTimeout("another grain"),
}


@pytest.fixture(autouse=True)
def clean() -> None:
    global GATE
    GATE = asyncio.Event()  # belongs to the loop of one test
    ATTEMPTS.clear()
    REFUSALS.clear()


def note(key: str, attempt: int) -> None:
    ATTEMPTS[key].append(attempt)


class Refuser(Grain):
    async def refuse(self) -> None:
        raise ERRORS[self.key]()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        note(self.key, event.attempt)
        if event.item == "raise":
            raise ERRORS[self.key]()
        if event.item == "call":
            await self.grain(Refuser, self.key).refuse()

    async def hold(self) -> None:
        note("held", 0)
        await GATE.wait()


class Sleeper(Grain):
    """Refuses its activation `REFUSALS[key]` times."""

    async def on_activate(self) -> None:
        if REFUSALS[self.key] > 0:
            REFUSALS[self.key] -= 1
            raise ERRORS[self.key]() if self.key in ERRORS else ValueError("cannot wake")

    @subscribe(WAKES)
    async def on_wake(self, event: Event[str]) -> None:
        note(self.key, event.attempt)


def cluster_of() -> LocalCluster:
    def provider() -> PersistentStreams:
        delivery = DeliveryOptions(retries=RETRIES, backoff=Backoff(0.005, 2, 0.01))
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=delivery),
        )

    return LocalCluster(
        silos=1,
        grains=[Reader, Refuser, Sleeper],
        streams={"default": provider},
        options=RuntimeOptions(waiting_calls_max=1),
    )


async def letters_of(cluster: LocalCluster) -> list[DeadLetter]:
    return list(await cluster.silos[0].services.part("default").dead_letters.list())


@pytest.mark.parametrize("way", ["raise", "call"])
@pytest.mark.parametrize("kind", ERRORS)
async def test_what_a_handler_raises_is_an_attempt_also_errors_of_the_runtime(
    kind: str, way: str
) -> None:
    async with cluster_of() as cluster:
        await cluster.stream(LINES, kind).publish_many([way, "next"])
        await until(lambda: len(ATTEMPTS[kind]) == RETRIES + 2)
        assert ATTEMPTS[kind] == [1, 2, 3, 1]
        (letter,) = await letters_of(cluster)
        assert letter.failure.attempts == RETRIES + 1
        assert letter.failure.error.startswith(type(ERRORS[kind]()).__name__)


async def refused(cluster: LocalCluster) -> None:
    """Wait until a delivery was refused more often than events are retried."""
    (agent,) = cluster.silos[0].services.part("default").manager.agents()
    timers: set[Any] = set()
    async with asyncio.timeout(10):
        while len(timers) < RETRIES + 3:
            timers.update(agent.dispatch._timers)
            await asyncio.sleep(0)


async def test_a_delivery_that_finds_its_grain_overloaded_is_no_attempt() -> None:
    async with cluster_of() as cluster:
        reader = cluster.grain(Reader, "k")
        holding = asyncio.ensure_future(reader.hold())
        await until(lambda: "held" in ATTEMPTS)
        waiting = asyncio.ensure_future(reader.hold())  # fills the mailbox, which has one place
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await reader.hold()
        await cluster.stream(LINES, "k").publish("a")
        try:
            await refused(cluster)
        finally:
            GATE.set()
        await asyncio.gather(holding, waiting)
        await until(lambda: bool(ATTEMPTS["k"]))
        assert ATTEMPTS["k"] == [1]
        assert await letters_of(cluster) == []


@pytest.mark.parametrize("kind", ERRORS)
async def test_an_activation_that_fails_for_want_of_others_is_no_attempt(kind: str) -> None:
    REFUSALS[kind] = RETRIES + 3
    async with cluster_of() as cluster:
        await cluster.stream(WAKES, kind).publish("a")
        await until(lambda: bool(ATTEMPTS[kind]))
        assert (ATTEMPTS[kind], REFUSALS[kind]) == ([1], 0)
        assert await letters_of(cluster) == []


async def test_an_activation_that_fails_by_itself_is_an_attempt() -> None:
    REFUSALS["k"] = RETRIES
    async with cluster_of() as cluster:
        await cluster.stream(WAKES, "k").publish("a")
        await until(lambda: bool(ATTEMPTS["k"]))
        assert (ATTEMPTS["k"], REFUSALS["k"]) == ([RETRIES + 1], 0)


async def test_events_are_given_up_whose_grain_never_activates() -> None:
    REFUSALS["k"] = RETRIES + 1
    async with cluster_of() as cluster:
        await cluster.stream(WAKES, "k").publish_many(["a", "b"])
        await until(lambda: bool(ATTEMPTS["k"]))
        assert ATTEMPTS["k"] == [1]
        (letter,) = await letters_of(cluster)
        assert (letter.failure.body, letter.failure.attempts) == (b"\xa1a", RETRIES + 1)
