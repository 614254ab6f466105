"""Handlers that use `asyncio.TaskGroup` or `asyncio.timeout` get events like all others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, state
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

PLAIN = StreamNamespace("grouped", str, subscriptions="implicit")
STORED = StreamNamespace("grouped-stored", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    SEEN.clear()
    yield


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("of a task")


async def handled_group() -> None:
    """The task fails while its group waits at the end of the block."""
    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())


async def over() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()


@dataclass
class Count:
    events: int = 0


class Reader(Grain):
    count = state(Count)

    async def _see(self, event: Event[str]) -> None:
        SEEN[self.key].append(f"{event.item}:{event.attempt}")
        await handled_group()
        await over()
        if event.item == "bad" and event.attempt == 1:
            raise ValueError("bad")

    @subscribe(PLAIN)
    async def on_plain(self, event: Event[str]) -> None:
        await self._see(event)

    @subscribe(STORED, commit_with=count)
    async def on_stored(self, event: Event[str]) -> None:
        self.count.value.events += 1
        await self._see(event)

    async def counted(self) -> int:
        return self.count.value.events


@pytest.mark.parametrize("namespace", [PLAIN, STORED], ids=["plain", "commit_with"])
async def test_a_handler_that_handled_its_group_and_its_timeout_is_called_once(
    namespace: StreamNamespace[str], caplog: pytest.LogCaptureFixture
) -> None:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=DeliveryOptions(retries=3, backoff=Backoff(0.005))),
        )

    async with LocalCluster(silos=2, grains=[Reader], streams={"default": provider}) as cluster:
        managers = [silo.services.part("default").manager for silo in cluster.silos]
        await until(
            lambda: all([a.reader.is_reading for a in m.agents()] == [True] for m in managers)
        )
        keys = [f"k{i}" for i in range(6)]  # for both silos
        for key in keys:
            await cluster.stream(namespace, key).publish_many(["a", "bad", "z"])
        await until(lambda: all("z:1" in SEEN[key] for key in keys))
        expected = ["a:1", "bad:1", "bad:2", "z:1"]
        if namespace is PLAIN:
            assert all(SEEN[key] == expected for key in keys)
        else:  # effects beside a failure are undone, and the events are redelivered
            assert all(set(SEEN[key]) == set(expected) for key in keys)
            counts = [await cluster.client.grain(Reader, key).counted() for key in keys]
            assert counts == [3] * 6
    assert "CancelledError" not in caplog.text
