"""Consumers outside of the cluster, while silos stop and crash and consumers vanish, in virtual
time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Client, MillstreamError
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    HashRingMapper,
    PersistentStreams,
    StreamError,
    StreamNamespace,
    StreamOptions,
)

LINES = StreamNamespace("lines", int)
SILENCE_S = 20.0
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        options=StreamOptions(consumer_silence_s=SILENCE_S),
    )


@asynccontextmanager
async def started(simulation: Simulation, silos: int = 3) -> AsyncIterator[SimCluster]:
    cluster = SimCluster(simulation, silos=silos, grains=[], streams={"default": provider})
    await cluster.start()
    yield cluster
    await cluster.close()


async def rows(cluster: SimCluster) -> int:
    return len(await cluster.stores["default"].scan("subscription/", "", 1_000))


async def publish(client: Client, numbers: range, pause_s: float) -> None:
    """Publish each number until it is accepted: a stop may refuse it, with an error."""
    for number in numbers:
        while True:
            try:
                await client.stream(LINES, "s").publish(number)
                break
            except MillstreamError:
                await asyncio.sleep(0.05)
        await asyncio.sleep(pause_s)


class Reader:
    """A consumer on a host of its own, which keeps the events that it sees."""

    def __init__(self, cluster: SimCluster, name: str, body_s: float = 0.0) -> None:
        self.seen: list[int] = []
        self.marked = 0
        self.is_ready = asyncio.Event()
        self._cluster = cluster
        self._name = name
        self._body_s = body_s

    async def run(self, host: str, count: int) -> None:
        simulation = self._cluster.simulation
        await simulation.call(simulation.host(host), self._read(host, count))

    async def _read(self, host: str, count: int) -> None:
        simulation = self._cluster.simulation
        async with self._cluster.client(simulation.host(host)) as client:
            async with client.stream(LINES, "s").consume(name=self._name) as events:
                self.is_ready.set()
                async for event in events:
                    self.seen.append(event.item)
                    self.marked += event.redelivered
                    await asyncio.sleep(self._body_s)
                    if len(self.seen) >= count:
                        return


@pytest.mark.parametrize("name", ["audit", ""])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.spare
def test_a_consumer_that_lives_sees_each_event_once_while_silos_stop(seed: int, name: str) -> None:
    async def play(simulation: Simulation) -> list[int]:
        async with started(simulation) as cluster:
            reader = Reader(cluster, name, 0.01)
            reading = asyncio.ensure_future(reader.run("reader", 300))
            await reader.is_ready.wait()
            async with cluster.client(simulation.host("writer")) as writer:
                writing = simulation.spawn(
                    simulation.host("writer"), publish(writer, range(300), 0.05)
                )
                for number in range(6):
                    await asyncio.sleep(simulation.rng.uniform(0.5, 2.5))
                    await cluster.stop_silo(f"silo-{number % 3}")
                    await cluster.until_active()
                await writing
                await reading
            return reader.seen

    assert run(play, seed, max_virtual_s=600).result == list(range(300))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_consumer_outlives_the_crash_of_its_gateway(seed: int) -> None:
    """The content of a memory queue is lost with its silo; later events are seen."""

    async def play(simulation: Simulation) -> list[int]:
        async with started(simulation) as cluster:
            reader = Reader(cluster, "", 0.0)
            reading = asyncio.ensure_future(reader.run("reader", 20))
            await reader.is_ready.wait()
            async with cluster.client(simulation.host("writer")) as writer:
                await publish(writer, range(10), 0.0)
                while len(reader.seen) < 10:
                    await asyncio.sleep(0.1)
                for number in (1, 2):
                    simulation.crash(f"silo-{number}")
                await asyncio.sleep(60.0)
                await publish(writer, range(10, 20), 0.0)
                await reading
            return reader.seen

    assert run(play, seed, max_virtual_s=600).result == list(range(20))


@pytest.mark.parametrize("is_silent", [True, False])
def test_who_vanishes_without_a_name_is_forgotten(is_silent: bool) -> None:
    async def play(simulation: Simulation) -> tuple[int, int, int]:
        async with started(simulation, 2) as cluster:
            reader = Reader(cluster, "", 0.0)
            reading = asyncio.ensure_future(reader.run("reader", 20))
            await reader.is_ready.wait()
            before = await rows(cluster)
            await asyncio.sleep(3 * SILENCE_S)  # it gets no event, and is alive
            while_there = await rows(cluster)
            simulation.crash("reader", is_silent=is_silent)
            await asyncio.sleep(2 * SILENCE_S)
            await asyncio.gather(reading, return_exceptions=True)
            return before, while_there, await rows(cluster)

    assert run(play, 3, max_virtual_s=600).result == (1, 1, 0)


def test_who_was_cut_off_for_too_long_is_told_that_events_were_missed() -> None:
    async def play(simulation: Simulation) -> int:
        async with started(simulation, 2) as cluster:
            reader = Reader(cluster, "", 0.0)
            reading = asyncio.ensure_future(reader.run("reader", 20))
            await reader.is_ready.wait()
            for silo in cluster.names:
                simulation.network.partition("reader", silo)
            await asyncio.sleep(4 * SILENCE_S)
            left = await rows(cluster)
            simulation.repair()
            with pytest.raises(StreamError, match="the subscription ended"):
                await reading
            return left

    assert run(play, 4, max_virtual_s=600).result == 0


def test_who_has_a_name_and_vanishes_in_the_middle_goes_on_there() -> None:
    async def play(simulation: Simulation) -> tuple[list[int], list[int], int]:
        async with started(simulation, 2) as cluster:
            first, second = Reader(cluster, "audit", 1.0), Reader(cluster, "audit", 0.0)
            reading = asyncio.ensure_future(first.run("one", 20))
            await first.is_ready.wait()
            async with cluster.client(simulation.host("writer")) as writer:
                await publish(writer, range(20), 0.0)
                while len(first.seen) < 5:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.5)
                simulation.crash("one", is_silent=True)
                await asyncio.gather(reading, return_exceptions=True)
                await asyncio.sleep(3 * SILENCE_S)
                await second.run("two", 16)
            return first.seen, second.seen, second.marked

    first, second, marked = run(play, 5, max_virtual_s=600).result
    assert first == list(range(5)) and second == list(range(4, 20)) and marked


@pytest.mark.spare
def test_a_body_that_takes_longer_than_a_delivery_may_gets_each_event_once() -> None:
    async def play(simulation: Simulation) -> list[int]:
        async with started(simulation, 2) as cluster:
            reader = Reader(cluster, "", 150.0)
            reading = asyncio.ensure_future(reader.run("reader", 2))
            await reader.is_ready.wait()
            async with cluster.client(simulation.host("writer")) as writer:
                await publish(writer, range(2), 0.0)
            await reading
            return reader.seen

    assert run(play, 6, max_virtual_s=3600).result == list(range(2))


def test_a_silo_that_stops_does_not_wait_for_consumers_that_wait() -> None:
    async def play(simulation: Simulation) -> list[float]:
        async with started(simulation, 2) as cluster:
            reader = Reader(cluster, "", 0.0)
            reading = asyncio.ensure_future(reader.run("reader", 1))
            await reader.is_ready.wait()
            took = []
            for name in cluster.names:
                begun = simulation.loop.time()
                await cluster.stop_silo(name)
                took.append(simulation.loop.time() - begun)
                await cluster.until_active()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return took

    assert max(run(play, 7, max_virtual_s=600).result) < 5.0
