"""A lagging stream: its events leave the cache and are read again; none is lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter, MemoryReader
from millstream.runtime import CursorTooOld, Grain, LocalCluster
from millstream.streams import (
    AdapterHost,
    CacheLimits,
    Event,
    HashRingMapper,
    Page,
    PersistentStreams,
    QueueId,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)

LINES = StreamNamespace("lines", int, subscriptions="implicit")
SEEN: dict[str, list[int]] = defaultdict(list)
OTHER: list[int] = []
GATES: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    OTHER.clear()
    GATES.clear()


def gate(name: str) -> asyncio.Event:
    return GATES.setdefault(name, asyncio.Event())


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key.startswith("slow"):
            await gate(self.key).wait()
        SEEN[self.key].append(event.item)


class Another(Grain):
    """A second subscription of each stream."""

    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key == "slow":
            OTHER.append(event.item)


class Faults:
    """The results of the next calls of readers: an error, a value, or no answer. Also lost
    events."""

    def __init__(self, *coming: Any) -> None:
        self.coming = list(coming)
        self.calls = 0


class FaultyQueues(MemoryQueues):
    def __init__(self, faults: Faults) -> None:
        super().__init__(MemoryOptions())
        self.faults = faults

    async def open(self, provider: str, host: AdapterHost, /) -> FaultyAdapter:
        adapter = FaultyAdapter(host, self._options)
        adapter.faults = self.faults
        return adapter


class FaultyAdapter(MemoryAdapter):
    faults: Faults

    def reader(self, queue: QueueId, /) -> FaultyReader:
        reader = FaultyReader(self._queue(queue))
        reader.faults = self.faults
        return reader


class FaultyReader(MemoryReader):
    faults: Faults

    async def read_from(self, *arguments: Any) -> Any:
        self.faults.calls += 1
        fault = self.faults.coming.pop(0) if self.faults.coming else None
        if fault == "hang":
            await asyncio.get_running_loop().create_future()
        if isinstance(fault, BaseException):
            raise fault
        return await super().read_from(*arguments) if fault is None else fault


def cluster_of(faults: Faults, grains: Sequence[type[Grain]] = (Reader,)) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            FaultyQueues(faults),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=StreamOptions(
                cache=CacheLimits(events_max=40, stream_events_max=6),
                read_retry_s=0.01,
                call_limit_s=0.05,
            ),
        )

    return LocalCluster(silos=1, grains=list(grains), streams={"default": provider})


def provider_of(cluster: LocalCluster) -> PersistentStreams:
    provider = cluster.silos[0].services.part("default")
    assert isinstance(provider, PersistentStreams)
    return provider


async def start_lagging(cluster: LocalCluster, count: int, *keys: str) -> None:
    """Publish to slow streams, until the agent has read all events."""
    for number in range(count):
        for key in keys:
            await cluster.stream(LINES, key).publish(number)
    agents = provider_of(cluster).manager.agents()
    await until(lambda: agents[0].reader.core.read_count >= count * len(keys))


async def test_a_stream_that_is_behind_stops_no_other_and_goes_on_where_it_is() -> None:
    async with cluster_of(Faults()) as cluster:
        await start_lagging(cluster, 300, "slow", "slow-too")
        (agent,) = provider_of(cluster).manager.agents()
        assert agent.cache.events + agent.cache.chained_events <= 44 and len(agent.behind) == 2
        for number in range(100):
            await cluster.stream(LINES, "fast").publish(number)
        await until(lambda: len(SEEN["fast"]) == 100)
        gate("slow").set()
        await until(lambda: len(SEEN["slow"]) == 300)
        assert not SEEN["slow-too"]
        gate("slow-too").set()
        await until(lambda: len(SEEN["slow-too"]) == 300)
        assert SEEN["slow"] == SEEN["slow-too"] == list(range(300))
        await until(lambda: agent.undone == 0)
        (stats,) = provider_of(cluster).stats()
        assert 500 <= stats.evicted <= 600 and stats.purged + stats.evicted == stats.read == 700
        agent.cache.check()
        agent.behind.check()


async def test_a_fast_subscription_of_a_stream_that_is_behind_sees_everything() -> None:
    faults = Faults()
    async with cluster_of(faults, [Reader, Another]) as cluster:
        await start_lagging(cluster, 300, "slow")
        await until(lambda: len(OTHER) == 300)
        assert OTHER == list(range(300)) and SEEN["slow"] == []
        (agent,) = provider_of(cluster).manager.agents()
        agent.cache.check()
        agent.behind.check()
        assert agent.cache.events <= 200
        gate("slow").set()
        await until(lambda: len(SEEN["slow"]) == 300)
        assert SEEN["slow"] == list(range(300))


FAULTS: dict[str, Any] = {
    "raises": ValueError("odd"),
    "raises CancelledError": asyncio.CancelledError(),
    "returns no page": 7,
    "returns a page that does not lead on": Page([], Token(0, 0), False),
    "returns what is no message": Page([None], Token(9, 0), False),  # type: ignore[list-item]
    "never ends": "hang",
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_a_reader_does_wrongly_is_counted_and_tried_again(name: str) -> None:
    faults = Faults(FAULTS[name], FAULTS[name])
    async with cluster_of(faults) as cluster:
        await start_lagging(cluster, 100, "slow")
        gate("slow").set()
        await until(lambda: len(SEEN["slow"]) == 100)
        assert SEEN["slow"] == list(range(100))
        (stats,) = provider_of(cluster).stats()
        assert (stats.faults, stats.gaps) == (2, 0)


async def test_what_is_gone_is_left_out_counted_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults(CursorTooOld("gone", first=Token(1, 51)))
    async with cluster_of(faults) as cluster:
        await start_lagging(cluster, 100, "slow")
        gate("slow").set()
        await until(lambda: bool(SEEN["slow"]) and SEEN["slow"][-1] == 99)
        (agent,) = provider_of(cluster).manager.agents()
        await until(lambda: agent.undone == 0)
        agent.cache.check()
        agent.behind.check()
    lost = sorted(set(range(100)) - set(SEEN["slow"]))
    assert lost == list(range(lost[0], 50)) and SEEN["slow"] == sorted(SEEN["slow"])
    assert agent.findings.gap_count == 1
    assert f"events of lines/slow from {Token(1, lost[0] + 1)} to" in caplog.text
    assert f"before {Token(1, 51)} are lost" in caplog.text
