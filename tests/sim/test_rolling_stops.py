"""Silos stop gracefully, one after the other; no call of a client or another silo fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.runtime import Grain, MillstreamError
from millstream.runtime.testing import SimCluster, Simulation, run

STOPS = 8
CALLERS = 4
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


class Desk(Grain):
    async def count(self) -> int:
        await asyncio.sleep(0.001)
        return 1


class Callers:
    """Calls grains from one host until the test ends."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.is_over = False
        self.answered = 0
        self.failed: Counter[str] = Counter()

    async def run(self, grain: Callable[[type[Desk], str], Desk]) -> None:
        await asyncio.gather(*(self._call(grain) for _ in range(CALLERS)))

    async def _call(self, grain: Callable[[type[Desk], str], Desk]) -> None:
        while not self.is_over:
            try:
                self.answered += await grain(
                    Desk, f"key-{self._simulation.rng.randrange(30)}"
                ).count()
            except MillstreamError as error:
                self.failed[repr(error)] += 1
            await asyncio.sleep(0.01)


async def from_outside(callers: Callers, cluster: SimCluster, simulation: Simulation) -> None:
    async with cluster.client(simulation.host("client")) as client:
        await callers.run(client.grain)


async def roll(simulation: Simulation) -> Callers:
    """Stop the silos in turn; the last one stays and makes calls, too."""
    cluster = SimCluster(simulation, silos=4, grains=[Desk])
    await cluster.start()
    callers = Callers(simulation)
    stays = cluster.silo("silo-3")
    assert stays is not None
    programs: list[tuple[str, Coroutine[Any, Any, None]]] = [
        ("client", from_outside(callers, cluster, simulation)),
        ("silo-3", callers.run(stays.grain)),
    ]
    tasks = [
        asyncio.ensure_future(simulation.call(simulation.host(name), program))
        for name, program in programs
    ]
    for number in range(STOPS):
        await asyncio.sleep(simulation.rng.uniform(0.0, 0.5))
        await cluster.stop_silo(f"silo-{number % 3}")
        await cluster.until_active()
    callers.is_over = True
    await asyncio.gather(*tasks)
    await cluster.close()
    return callers


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.spare
def test_no_call_fails_while_silos_stop_one_after_the_other(seed: int) -> None:
    callers = run(roll, seed, max_virtual_s=600.0).result
    assert callers.answered > 100 * STOPS
    assert callers.failed == {}
