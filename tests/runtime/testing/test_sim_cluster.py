"""`SimCluster` is used as `LocalCluster` is."""

from __future__ import annotations

import inspect

import pytest

from millstream.runtime import ConfigError, Grain, LocalCluster, MemoryStateStore, state
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.runtime.testing import (
    SimCluster,
    Simulation,
    SimulationFailed,
    check_all,
    current_host,
    run,
)

OF_THE_SIMULATION = {"membership", "env", "transport"}
OF_SIMULATIONS = {"simulation", "lacking", "skew_s"}


class Counter(Grain):
    total = state(int, store="more")

    async def add(self) -> int:
        self.total.value += 1
        await self.total.write()
        return self.total.value


def test_both_kinds_of_cluster_take_the_same_arguments() -> None:
    local = inspect.signature(LocalCluster).parameters
    simulated = inspect.signature(SimCluster).parameters
    assert set(local) - OF_THE_SIMULATION == set(simulated) - OF_SIMULATIONS
    for name in set(local) & set(simulated) - {"cluster", "stores"}:
        assert local[name].default == simulated[name].default
        assert local[name].annotation == simulated[name].annotation


def test_a_simulated_cluster_starts_and_stops_with_its_block() -> None:
    made: list[str] = []

    class Part(SiloPart):
        async def start(self, services: SiloServices, name: str, /) -> None:
            host = current_host()
            assert host is not None
            made.append(f"{name} of {host.name}")

    async def driver(simulation: Simulation) -> int:
        stores = {"more": MemoryStateStore()}
        async with SimCluster(
            simulation, silos=2, grains=[Counter], parts={"part": Part}, stores=stores, cluster="c"
        ) as cluster:
            host = simulation.host("client")

            async def calls() -> int:
                async with cluster.client(host) as client:
                    return await client.grain(Counter, "a").add()

            added = await simulation.call(host, calls())
            assert len(cluster.silos()) == 2
        assert not cluster.silos()
        findings = check_all(simulation.history, live_within_s=10.0)
        assert findings == [] and findings.looked_at["Activated"] == 1
        return added

    assert run(driver, seed=1).result == 1
    assert sorted(made) == ["part of silo-0", "part of silo-1"]


def test_what_a_block_raises_is_what_fails_the_run() -> None:
    async def driver(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=2, grains=[Counter]):
            raise ZeroDivisionError("in the block")

    with pytest.raises(SimulationFailed, match="in the block"):
        run(driver, seed=1)

    async def none(simulation: Simulation) -> None:
        with pytest.raises(ConfigError, match="start at least one"):
            SimCluster(simulation, silos=0, grains=[Counter])

    run(none, seed=1)
