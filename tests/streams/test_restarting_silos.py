"""The errors that a client gets for streams and grains while their silos restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, MillstreamError, NotHosted
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import HashRingMapper, PersistentStreams, StreamNamespace

LINES = StreamNamespace("lines", int)


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


def streams() -> PersistentStreams:
    mapper = HashRingMapper(queues=1)
    return PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())


async def all_the_time(act: Callable[[], Awaitable[object]], told: Counter[str]) -> None:
    """Act again and again, and count the results."""
    while True:
        try:
            await act()
        except MillstreamError as error:
            told[f"{type(error).__name__}: {error}"] += 1
        else:
            told["done"] += 1
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("silos", [1, 2])
@pytest.mark.parametrize("seed", range(1, 5))
def test_while_silos_restart_nobody_is_told_to_change_the_program(silos: int, seed: int) -> None:
    async def main(simulation: Simulation) -> Counter[str]:
        told: Counter[str] = Counter()
        async with SimCluster(
            simulation, silos=silos, grains=[Desk], streams={"default": streams}
        ) as cluster:
            host = simulation.host("outside")

            async def program() -> None:
                async with cluster.client(host) as client:
                    stream = client.stream(LINES, "a")
                    acts = [lambda: stream.publish(1), lambda: client.grain(Desk, "a").where()]
                    tasks = [asyncio.create_task(all_the_time(act, told)) for act in acts]
                    for name in cluster.names:
                        await cluster.stop_silo(name)
                    await cluster.until_active()
                    told["again"] = 0
                    before = told["done"]
                    await asyncio.sleep(5)
                    assert told["done"] > before
                    for task in tasks:
                        task.cancel()

            await simulation.call(host, program())
        return told

    told = run(main, seed).result
    assert told["done"] > 10
    assert not [text for text in told if text.startswith(NotHosted.__name__)], told


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_gateway_that_has_neither_grain_nor_provider_says_to_try_again(seed: int) -> None:
    """The other silo, which has them, is being restarted."""

    async def main(simulation: Simulation) -> Counter[str]:
        told: Counter[str] = Counter()
        async with SimCluster(
            simulation, silos=2, grains=[Desk], lacking={"silo-0": {Desk}}
        ) as cluster:
            host = simulation.host("outside")

            async def program() -> None:
                async with cluster.client(host) as client:
                    act = lambda: client.grain(Desk, "a").where()  # noqa: E731
                    task = asyncio.create_task(all_the_time(act, told))
                    await cluster.stop_silo("silo-1")
                    await cluster.until_active()
                    await asyncio.sleep(5)
                    task.cancel()

            await simulation.call(host, program())
        return told

    told = run(main, seed).result
    assert told["done"] > 10
    assert told.keys() - {"done"}
    for text in told.keys() - {"done"}:
        assert "ry again" in text or text.startswith("SiloUnavailable"), text
