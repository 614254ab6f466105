"""Reminders of a grain type of which two versions are hosted, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from millstream.runtime import Contract, Grain, Occurrence, Silo, grain, reminder
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


class BellBase(Grain):
    number = 0

    @reminder
    async def chime(self, occurrence: Occurrence) -> None:
        LOG.append(f"{self.key} chimes on {self.number}")

    async def arm(self) -> int:
        await self.context.reminders.set("chime", every=60.0)
        return self.number

    async def version(self) -> int:
        return self.number


@grain(name="Bell")
class Bell1(BellBase):
    number = 1


@grain(name="Bell", version=2)
class Bell2(BellBase):
    number = 2


@grain(name="Bell")
class BellOf1(Contract):
    async def arm(self) -> int:
        raise NotImplementedError

    async def version(self) -> int:
        raise NotImplementedError


@grain(name="Bell", version=2)
class BellOf2(BellOf1):
    pass


def test_reminders_run_on_any_version_and_move_no_grain() -> None:
    async def driver(sim: Simulation) -> None:
        lacking: dict[str, list[type[Grain]]] = {
            "silo-0": [Bell2],
            "silo-1": [Bell1],
            "silo-2": [Bell1],
        }
        async with SimCluster(sim, silos=3, grains=[Bell1, Bell2], lacking=lacking) as cluster:
            silo, host = cluster.silo("silo-1"), sim.host("silo-1")
            assert silo is not None
            keys = [f"B{number}" for number in range(12)]

            async def arm(silo: Silo) -> dict[str, int]:
                return {key: await silo.grain(BellOf1, key).arm() for key in keys}

            async def look(silo: Silo, contract: type[BellOf1]) -> dict[str, int]:
                return {key: await silo.grain(contract, key).version() for key in keys}

            homes = await sim.call(host, arm(silo))
            assert {*homes.values()} == {1, 2}
            await asyncio.sleep(150.0)
            assert set(LOG) == {f"{key} chimes on {homes[key]}" for key in keys}
            assert await sim.call(host, look(silo, BellOf1)) == homes
            assert {*(await sim.call(host, look(silo, BellOf2))).values()} == {2}
            LOG.clear()
            await asyncio.sleep(100.0)
            assert set(LOG) == {f"{key} chimes on 2" for key in keys}

    run(driver, seed=1)
