"""Joining a cluster whose silos have crashed, in virtual time: which silos are evicted and which
not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream.runtime import (
    ClusterError,
    Grain,
    MemberRow,
    MembershipOptions,
    MemoryStateStore,
    Silo,
    Status,
)
from millstream.runtime.testing import (
    SiloDeclaredDead,
    SimCluster,
    SimMembershipTable,
    SimService,
    Simulation,
    run,
)

OPTIONS = MembershipOptions()
# The time of all probes, at half intervals after the first. `docs/concepts/clusters.md` says 6 s.
DETECTED_S = 6.0
EAGER = MembershipOptions(probe_timeout_s=0.25, missed_probes_max=1, probe_every_s=0.25)


class Idle(Grain):
    async def where(self) -> str:
        return self.context.silo


def simulate(main: Callable[[Simulation], Awaitable[Any]], seed: int = 1) -> Any:
    async def driver(simulation: Simulation) -> Any:
        return await main(simulation)

    return run(driver, seed, max_virtual_s=600.0).result


def clusters(simulation: Simulation, old: int, new: int, **changes: Any) -> SimCluster:
    """Make a cluster of `old` silos, whose other names are the hosts of the `new` ones."""
    cluster = SimCluster(
        simulation,
        silos=old + new,
        grains=[Idle],
        membership_options=MembershipOptions(**changes) if changes else OPTIONS,
    )
    cluster.names = cluster.names[:old]
    return cluster


def crash_all(simulation: Simulation, cluster: SimCluster, *, is_silent: bool) -> list[str]:
    """Crash every host, and return the silos that ran there."""
    addresses = [silo.address for silo in cluster.silos()]
    for name in cluster.names:
        simulation.crash(name, is_silent=is_silent)
    return addresses


def status_of(cluster: SimCluster, silo: str) -> Status | None:
    row = cluster.table.view().row(silo)
    return None if row is None else row.status


async def joins_in(simulation: Simulation, cluster: SimCluster, within_s: float) -> float:
    """Start the cluster's hosts, and return the time until the cluster was whole."""
    started_s = simulation.loop.time()
    for name in cluster.names:
        cluster.boot(name)
    await cluster.until_active(within_s)
    return simulation.loop.time() - started_s


@pytest.mark.one_in(5)
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 1), (3, 1), (5, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("pause_s", [0.0, 20.0])
def test_silos_at_new_addresses_join_after_all_others_crashed(
    old: int, new: int, is_silent: bool, pause_s: float
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, old, new)
        await cluster.start()
        dead = crash_all(simulation, cluster, is_silent=is_silent)
        await asyncio.sleep(pause_s)
        cluster.names = tuple(f"silo-{old + number}" for number in range(new))
        await joins_in(simulation, cluster, DETECTED_S)
        assert [status_of(cluster, silo) for silo in dead] == [Status.DEAD] * old
        assert len(cluster.silos()) == new
        await cluster.silos()[0].grain(Idle, "a").where()
        await cluster.close()

    simulate(main)


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_one_of_several_crashed_silos_comes_back_at_its_address(
    count: int, is_silent: bool
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, count, 0)
        await cluster.start()
        dead = crash_all(simulation, cluster, is_silent=is_silent)
        cluster.names = cluster.names[:1]
        await joins_in(simulation, cluster, DETECTED_S)
        assert [status_of(cluster, silo) for silo in dead] == [Status.DEAD] * count
        await cluster.close()

    simulate(main)


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize(("count", "left"), [(3, 1), (5, 1), (5, 2)])
def test_the_survivors_evict_all_that_crashed_at_once(
    count: int, left: int, is_silent: bool
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, count, 0)
        await cluster.start()
        for name in cluster.names[left:]:
            simulation.crash(name, is_silent=is_silent)
        cluster.names = cluster.names[:left]
        # an interval more, because it may begin just before the crash, and the view may be older
        await cluster.until_active(DETECTED_S + OPTIONS.refresh_s)
        await cluster.close()

    simulate(main)


def lone_silo(
    simulation: Simulation, cluster: SimCluster, name: str, options: MembershipOptions
) -> Silo:
    """Make a silo with its own options, to be started on its host."""
    host = simulation.host(name)
    return Silo(
        grains=[Idle],
        address=f"{name}:7000",
        insecure=True,
        cluster="sim",
        membership=SimMembershipTable(
            SimService(simulation.network, "table"), name, cluster.table, simulation.history
        ),
        stores={"default": MemoryStateStore()},
        membership_options=options,
        env=simulation.env(host),
        transport=simulation.transport(host),
    )


def evicted_by(simulation: Simulation, name: str) -> list[str]:
    events = simulation.history.of(SiloDeclaredDead)
    return [e.silo for _, e in events if e.by == name and not e.silo.startswith(name)]


@pytest.mark.parametrize("live", [1, 2, 3])
def test_a_joiner_that_reaches_only_the_table_evicts_nobody(live: int) -> None:
    async def main(simulation: Simulation) -> None:
        # they would otherwise evict the joiner before it gives up
        patient = {"missed_probes_max": 1000}
        cluster = clusters(simulation, live, 0, **patient)
        await cluster.start()
        for name in cluster.names:
            simulation.network.partition("new", name)
        joiner = lone_silo(
            simulation,
            cluster,
            "new",
            MembershipOptions(
                probe_timeout_s=0.25, missed_probes_max=1, probe_every_s=0.25, join_timeout_s=40.0
            ),
        )
        with pytest.raises(ClusterError, match="join_timeout_s"):
            await simulation.call(simulation.host("new"), joiner.start())
        assert evicted_by(simulation, "new") == []
        await cluster.until_active(OPTIONS.refresh_s)
        await cluster.close()

    simulate(main)


@pytest.mark.parametrize("live", [1, 2, 3])
def test_a_joiner_evicts_nobody_who_is_merely_slow(live: int) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, live, 0)
        await cluster.start()
        for name in cluster.names:  # every probe of the joiner fails, but its messages arrive
            simulation.network.set_latency(0.3, 0.4, "new", name)
        joiner = lone_silo(simulation, cluster, "new", EAGER)
        await simulation.call(simulation.host("new"), joiner.start())
        assert evicted_by(simulation, "new") == []
        assert len(joiner.assembly.membership.active()) == live + 1
        await simulation.call(simulation.host("new"), joiner.stop())
        await cluster.close()

    simulate(main)


def test_a_joiner_that_is_evicted_gives_up_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, 2, 0)
        await cluster.start()
        for name in cluster.names:
            simulation.network.partition("new", name)
        joiner = lone_silo(simulation, cluster, "new", OPTIONS)
        started_s = simulation.loop.time()
        with pytest.raises(ClusterError, match="evicted while it joined"):
            await simulation.call(simulation.host("new"), joiner.start())
        assert simulation.loop.time() - started_s < 2 * DETECTED_S
        await cluster.close()

    simulate(main)


def test_a_joiner_that_waits_says_for_whom_and_how_long_and_does_not_repeat_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> tuple[list[str], float]:
        cluster = clusters(simulation, 3, 1)
        await cluster.start()
        dead = crash_all(simulation, cluster, is_silent=False)
        cluster.names = ("silo-3",)
        took_s = await joins_in(simulation, cluster, DETECTED_S)
        await cluster.close()
        return dead, took_s

    with caplog.at_level(logging.WARNING, "millstream.member"):
        dead, took_s = simulate(main)
    said = [r.getMessage() for r in caplog.records if "waits to join" in r.getMessage()]
    assert 1 <= len(said) <= 1 + took_s / 5
    assert all(silo in said[0] for silo in dead)
    assert "join_timeout_s" in said[0] and "60 s" in said[0]


# --- rows of the dead -----------------------------------------------------------------------------


def test_rows_of_the_dead_are_forgotten_after_their_time_and_not_before() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, 3, 0, dead_rows_kept_s=60.0)
        await cluster.start()
        (dead,) = [silo.address for silo in cluster.silos()[2:]]
        simulation.crash("silo-2")
        cluster.names = cluster.names[:2]
        await cluster.until_active()
        await asyncio.sleep(40.0)
        assert status_of(cluster, dead) is Status.DEAD
        await asyncio.sleep(60.0)
        assert status_of(cluster, dead) is None
        assert cluster.is_whole()
        for silo in cluster.silos():
            assert silo.assembly.membership.view.row(dead) is None
            assert silo.assembly.membership.is_dead(dead)
        await cluster.close()

    simulate(main)


def test_many_dead_rows_are_forgotten_one_by_one_by_one_silo() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = clusters(simulation, 3, 0, dead_rows_kept_s=1e6)
        for number in range(5):
            row = MemberRow(f"old-{number}:1@1", Status.DEAD, alive_s=1.0)
            cluster.table.replace_row(row, cluster.table.view().version)
        fresh = MemberRow(
            "fresh:1@1", Status.DEAD, alive_s=simulation.env(simulation.host("clock")).wall_s()
        )
        cluster.table.replace_row(fresh, cluster.table.view().version)
        await cluster.start()
        before = cluster.table.view().version
        await asyncio.sleep(9 * OPTIONS.refresh_s)
        left = [row.silo for row in cluster.table.view().rows if row.status is Status.DEAD]
        assert left == ["fresh:1@1"]
        assert cluster.table.view().version == before + 5
        assert cluster.is_whole()
        await cluster.close()

    simulate(main)
