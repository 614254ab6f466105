"""Placement by load in clusters in virtual time. The names of Orleans' tests are in the conformance
page."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.runtime.worker_world import World, in_cluster

from millstream.runtime import (
    LEAST_LOADED,
    ConfigError,
    Contract,
    Grain,
    MillstreamError,
    NotHosted,
    Overloaded,
    PlacementOptions,
    Silo,
    grain,
)
from millstream.runtime.cluster.load import STALE_S, LoadReport
from millstream.runtime.extending import SystemTarget

GIB = 2**30
REPORTED_S = 2.5
"""Seconds after which all silos know the loads of all silos."""
SMOOTHED_S = 30.0
"""Seconds after which smoothing has no effect any more."""


class Where(Contract):
    async def where(self) -> str:
        raise NotImplementedError


@grain(name="Where", placement=LEAST_LOADED)
class WhereGrain(Where, Grain):
    async def where(self) -> str:
        return self.context.silo


async def place(keys: range, silo: Silo) -> Counter[str]:
    return Counter([await silo.grain(Where, f"{key}").where() for key in keys])


def use(world: World, number: int, cpu: float, free: int = 6 * GIB) -> None:
    env: Any = world.silo(number).assembly.env
    env.simulate_usage(cpu, (GIB, free, 8 * GIB))


def addresses(world: World, *numbers: int) -> set[str]:
    return {world.silo(number).address for number in numbers}


def in_silos(main: Any, silos: int = 3, **cluster: Any) -> None:
    in_cluster(main, silos=silos, grains=[WhereGrain], **cluster)


def test_activations_go_to_the_silos_with_the_lowest_load() -> None:
    async def main(world: World) -> None:
        for number, cpu in enumerate([0.6, 0.1, 0.9]):
            use(world, number, cpu)
        await asyncio.sleep(SMOOTHED_S)
        found = await world.at(0, partial(place, range(60)))
        first, best, worst = (world.silo(number).address for number in range(3))

        assert found[best] > found[first] > found[worst] < 3

    in_silos(main)


def test_a_new_silo_catches_up() -> None:
    """ElasticPlacementTest.CatchingUp."""

    async def main(world: World) -> None:
        await world.at(0, partial(place, range(300)))
        world.cluster.add_silo()
        await world.cluster.until_active()
        await asyncio.sleep(REPORTED_S)
        new = world.silo(3).address
        found = await world.at(0, partial(place, range(300, 400)))
        assert found[new] >= 40 > max(found[silo] for silo in found if silo != new)

    in_silos(main)


def test_activations_leave_silos_that_stop_and_stay_even() -> None:
    """ElasticPlacementTest.StoppingSilos."""

    async def main(world: World) -> None:
        await world.at(0, partial(place, range(200)))
        await world.cluster.remove_silo("silo-3")
        await world.cluster.until_active()
        await asyncio.sleep(REPORTED_S)
        await world.at(0, partial(place, range(400)))
        counts = [world.silo(number).assembly.catalog.count for number in range(3)]
        assert sum(counts) == 400
        assert max(counts) <= 2 * min(counts)

    in_silos(main, silos=4)


@pytest.mark.parametrize("is_short", ["cpu", "memory"])
def test_overloaded_silos_get_no_activations(is_short: str) -> None:
    """ElasticPlacementTest.LoadAwareGrainShouldNotAttemptToCreateActivationsOnBusySilos."""

    async def main(world: World) -> None:
        for number in range(3):
            use(world, number, 0.5)
        if is_short == "cpu":
            use(world, 0, 1.0)
        else:
            use(world, 0, 0.0, free=GIB // 2)
        await asyncio.sleep(SMOOTHED_S)
        assert set(await world.at(0, partial(place, range(50)))) == addresses(world, 1, 2)

    in_silos(main)


def test_if_all_silos_are_overloaded_all_get_activations() -> None:
    """ElasticPlacementTest.AllSilosOverloaded. Orleans refuses the calls."""

    async def main(world: World) -> None:
        for number in range(3):
            use(world, number, 1.0)
        await asyncio.sleep(SMOOTHED_S)
        assert set(await world.at(0, partial(place, range(90)))) == addresses(world, 0, 1, 2)

    in_silos(main)


def test_a_burst_by_three_callers_within_one_period_is_spread() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(REPORTED_S)
        keys = [range(at, 1_000, 3) for at in range(3)]
        founds = await asyncio.gather(
            *(world.at(number, partial(place, keys[number])) for number in range(3))
        )
        total = Counter[str]()
        for found in founds:
            total.update(found)
        assert sum(total.values()) == 1_000
        assert max(total.values()) <= 3 * min(total[silo] for silo in addresses(world, 0, 1, 2))

    in_silos(main)


def test_a_silo_that_does_not_host_the_type_places_it_by_load() -> None:
    async def main(world: World) -> None:
        use(world, 1, 0.9)
        await asyncio.sleep(SMOOTHED_S)
        assert set(await world.at(0, partial(place, range(20)))) == addresses(world, 2)

    in_silos(main, lacking={"silo-0": [WhereGrain]})


def test_each_silo_uses_its_own_options() -> None:
    """With a weight for activations alone, processor time has no effect."""

    async def main(world: World) -> None:
        use(world, 0, 0.9)
        await asyncio.sleep(SMOOTHED_S)
        found = await world.at(0, partial(place, range(90)))
        assert min(found[silo] for silo in addresses(world, 0, 1, 2)) >= 15

    names = ["cpu", "memory_used", "memory_available", "memory_total", "lag"]
    options = PlacementOptions(**{f"{name}_weight": 0.0 for name in names})
    in_silos(main, placement_options=options)


def test_a_silo_that_joined_gets_the_reports_of_silos_whose_load_does_not_change() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(60)
        world.cluster.add_silo()
        await world.cluster.until_active()
        await asyncio.sleep(REPORTED_S)
        loads = world.silo(3).assembly.loads
        assert loads.known == dict.fromkeys(addresses(world, 0, 1, 2, 3), 0)

    in_silos(main)


def test_reports_are_repeated_so_that_no_silo_becomes_stale() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(3 * STALE_S)
        for number in range(3):
            silos = addresses(world, 0, 1, 2)
            found = await world.at(number, partial(known_loads, silos))
            assert not any(load.is_stale for load in found.values())
            assert all(load.cpu == 0 and load.lag_s is not None for load in found.values())

    in_silos(main)


async def known_loads(silos: set[str], silo: Silo) -> dict[str, Any]:
    return silo.assembly.loads.of(silos)


class OldGatewayTarget(SystemTarget):
    """The `$gateway` target of a version that knows only counts."""

    target_name = "$gateway"

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    async def load(self, silo: str, activations: int) -> None:
        self.told.append((silo, activations))


@pytest.mark.parametrize("activations", [0, 1_000])
def test_a_silo_of_an_older_version_gets_counts_and_reports_its_count(activations: int) -> None:
    async def main(world: World) -> None:
        old, target = world.silo(1), OldGatewayTarget()
        old.assembly.targets.add(target)
        old.assembly.loads.close()
        await asyncio.sleep(1)
        await world.at(1, partial(tell_count, addresses(world, 0, 2), activations))
        await asyncio.sleep(3 * STALE_S)
        assert {silo for silo, _ in target.told} == addresses(world, 0, 2)
        found = await world.at(0, partial(place, range(60)))
        assert (found[old.address] == 0) is (activations == 1_000)
        await asyncio.sleep(REPORTED_S)
        told = dict(target.told)
        assert all(told[silo] == found[silo] for silo in addresses(world, 0, 2))

    in_silos(main)


async def tell_count(others: set[str], activations: int, silo: Silo) -> None:
    """Report a count as an older version does."""
    call = silo.assembly.targets.call
    for other in others:
        await call(other, "$gateway", OldGatewayTarget.load, silo.address, activations)


class RefusingTarget(OldGatewayTarget):
    """A `$gateway` target that fails `failures` times, and notes the times of reports."""

    def __init__(self, failure: MillstreamError, failures: int) -> None:
        super().__init__()
        self.at_s: list[float] = []
        self._failure, self._failures = failure, failures

    async def report_load(self, silo: str, report: LoadReport) -> None:
        if silo == SENDER[0]:
            self.at_s.append(asyncio.get_running_loop().time())
            if len(self.at_s) <= self._failures:
                raise self._failure


SENDER: list[str] = [""]


def replace_target(world: World, target: OldGatewayTarget) -> None:
    SENDER[:] = [world.silo(0).address]
    world.silo(1).assembly.targets.add(target)


def test_a_report_that_was_not_taken_is_repeated_with_the_next_measurement() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(10)
        target = RefusingTarget(Overloaded("full", "limit", 1), 3)
        replace_target(world, target)
        await asyncio.sleep(16)
        waits = [after - before for before, after in pairwise(target.at_s)]
        assert waits[:3] == pytest.approx([1, 1, 1], abs=0.2)
        assert len(waits) >= 4 and all(4.8 < wait < 6.2 for wait in waits[3:])

    in_silos(main)


def test_a_silo_of_an_older_version_is_asked_for_reports_once() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(10)
        target = RefusingTarget(NotHosted("no method"), 1_000)
        replace_target(world, target)
        await asyncio.sleep(30)
        assert len(target.at_s) == 1
        assert [silo for silo, _ in target.told].count(SENDER[0]) >= 4

    in_silos(main)


def test_the_loads_of_silos_that_left_are_forgotten() -> None:
    async def main(world: World) -> None:
        await world.at(0, partial(place, range(40)))
        await asyncio.sleep(REPORTED_S)
        left = world.silo(1).address
        assert left in world.silo(0).assembly.loads.known
        await world.cluster.remove_silo("silo-1")
        await asyncio.sleep(REPORTED_S)
        for number in (0, 2):
            silo = world.cluster.silo(f"silo-{number}")
            assert silo is not None and left not in silo.assembly.loads.known

    in_silos(main)


def test_a_silo_whose_loop_lags_gets_no_activations() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(REPORTED_S)
        heart: Any = world.silo(1).assembly.heart
        heart.close()  # so that the lag stays
        heart.lag_s = 3.0
        await asyncio.sleep(SMOOTHED_S)
        found = await world.at(1, partial(place, range(40)))
        assert set(found) == addresses(world, 0, 2)

    in_silos(main)


def test_wrong_options_are_refused() -> None:
    options: Any = 0.5
    with pytest.raises(ConfigError, match=r"Silo\(placement_options=\.\.\.\)"):
        Silo(grains=[], placement_options=options)
