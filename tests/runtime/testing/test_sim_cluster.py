"""`SimCluster` is used as `LocalCluster` is."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from millstream.runtime import ConfigError, Grain, LocalCluster, MemoryStateStore, Status, state
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.runtime.testing import (
    SiloEnded,
    SimCluster,
    Simulation,
    SimulationFailed,
    check_all,
    current_host,
    run,
)

OF_THE_SIMULATION = {"env", "transport"}
OF_SIMULATIONS = {"simulation", "lacking", "skew_s"}


class Idle(Grain):
    async def ping(self) -> None: ...


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
    for name in set(local) & set(simulated) - {"cluster", "stores", "membership", "reminders"}:
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
        async with SimCluster(simulation, silos=2, grains=[Idle]):
            raise ZeroDivisionError("in the block")

    with pytest.raises(SimulationFailed, match="ZeroDivisionError") as caught:
        run(driver, seed=1)
    assert "in the block" in caught.value.report

    async def none(simulation: Simulation) -> None:
        with pytest.raises(ConfigError, match="pass a whole number, at least 1"):
            SimCluster(simulation, silos=0, grains=[Counter])

    run(none, seed=1)


def test_a_silo_that_is_wrong_by_itself_fails_the_run_with_what_is_wrong() -> None:
    async def driver(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=1, grains=[Counter]):
            raise AssertionError("it started")

    with pytest.raises(SimulationFailed, match="Counter.total needs store 'more'"):
        run(driver, seed=1)


def test_hosts_join_later_and_leave_for_good() -> None:
    async def driver(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=2, grains=[Idle]) as cluster:
            assert cluster.add_silo() == "silo-2"
            await cluster.until_active()
            assert names_of(cluster) == ["silo-0", "silo-1", "silo-2"]
            await cluster.remove_silo("silo-0")
            simulation.crash("silo-1")
            await cluster.remove_silo("silo-1")
            await cluster.until_settled(calm_s=20.0)
            assert cluster.names == ("silo-2",) == tuple(names_of(cluster))
            assert cluster.add_silo() == "silo-3"  # an earlier silo's name is not used again
            await cluster.until_settled(calm_s=20.0)
            assert names_of(cluster) == ["silo-2", "silo-3"]
        assert check_all(simulation.history, live_within_s=10.0) == []

    for seed in (1, 2):
        run(driver, seed)


def test_a_silo_that_is_removed_while_it_starts_does_not_stay() -> None:
    async def driver(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=1, grains=[Idle]) as cluster:
            name = cluster.add_silo()
            await asyncio.sleep(0)
            await cluster.remove_silo(name)
            await cluster.until_settled(calm_s=20.0)
            (silo,) = cluster.silos()
            rows = silo.assembly.membership.view.rows
            gone = [row.status for row in rows if row.silo.startswith(name)]
            assert all(status is Status.DEAD for status in gone)
        ended = [event.silo for _, event in simulation.history.of(SiloEnded)]
        assert any(silo.startswith(name) for silo in ended)

    run(driver, seed=1)


def test_what_is_no_silo_of_the_cluster_is_refused() -> None:
    async def driver(simulation: Simulation) -> None:
        idle = SimCluster(simulation, silos=1, grains=[Idle])
        with pytest.raises(ConfigError, match="start it first"):
            idle.add_silo()
        async with SimCluster(simulation, silos=2, grains=[Idle]) as cluster:
            await cluster.remove_silo("silo-1")
            with pytest.raises(ConfigError, match="'silo-1' is not a silo.*silos: silo-0"):
                cluster.boot("silo-1")
            with pytest.raises(ConfigError, match="'silo-1' is not a silo"):
                await cluster.remove_silo("silo-1")

    run(driver, seed=1)


def names_of(cluster: SimCluster) -> list[str]:
    return [silo.services.name for silo in cluster.silos()]
