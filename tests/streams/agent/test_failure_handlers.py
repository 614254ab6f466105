"""Failure handlers that never answer or fail are asked again, and no event is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, StorageUnavailable
from millstream.streams import (
    Backoff,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    GiveUpDecision,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


def see(key: str, text: str) -> None:
    SEEN[key].append(text)


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        see(self.key, event.item)
        if event.item == "bad":
            raise ValueError("bad")


class Faulty:
    """Fails in one way at the first call; then it answers."""

    def __init__(self, way: str) -> None:
        self._way = way
        self.asked = 0

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        self.asked += 1
        if self.asked == 1:
            await self._fail()
        return "dead_letter"

    async def _fail(self) -> None:
        nobody = asyncio.get_running_loop().create_future()
        match self._way:
            case "hangs":
                await nobody
            case "awaits what was cancelled":
                nobody.cancel()
                await nobody
            case "cancels its task":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await nobody
            case "runs out of its own time":
                raise TimeoutError("my own")
            case "leaves":
                raise GeneratorExit
            case "cannot store":
                raise StorageUnavailable("away")


def cluster_of(handler: Faulty) -> LocalCluster:
    def provider() -> PersistentStreams:
        delivery = DeliveryOptions(retries=0, backoff=Backoff(0.005), give_up_timeout_s=0.02)
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=delivery),
            on_give_up=handler,
        )

    return LocalCluster(silos=1, grains=[Reader], streams={"default": provider})


WAYS = (
    "hangs",
    "awaits what was cancelled",
    "cancels its task",
    "runs out of its own time",
    "leaves",
    "cannot store",
)


@pytest.mark.parametrize("way", WAYS)
async def test_a_failure_handler_that_does_not_answer_is_asked_again(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Faulty(way)
    with caplog.at_level(logging.WARNING, "millstream.delivery"):
        async with cluster_of(handler) as cluster:
            await cluster.stream(LINES, "k").publish_many(["a", "bad", "z"])
            await until(lambda: SEEN["k"] == ["a", "bad", "z"])
            provider = cluster.silos[0].services.part("default")
            (letter,) = await provider.dead_letters.list()
    assert letter.failure.body == b"\xa3bad" and handler.asked == 2
    said = [one.getMessage() for one in caplog.records if "on_give_up" in one.getMessage()]
    assert len(said) == 1 and "lines/k" in said[0]
    assert ("give_up_timeout_s" in said[0]) == (way == "hangs")


def test_a_time_for_giving_up_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="give_up_timeout_s is 0; it must be a number > 0"):
        DeliveryOptions(give_up_timeout_s=0)
