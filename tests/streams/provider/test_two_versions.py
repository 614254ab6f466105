"""Events of streams for a grain type of which two versions are hosted, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from millstream.providers.memory import MemoryQueues
from millstream.runtime import Contract, Grain, Silo, grain
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

LANDINGS = StreamNamespace("landings", int)
WEATHER = StreamNamespace("weather", int)
KEYS = [f"P{number}" for number in range(8)]
SEEN: dict[str, list[tuple[int, int]]] = defaultdict(list)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    SEEN.clear()
    yield


class PortBase(Grain):
    number = 0

    @subscribe(LANDINGS)
    async def on_landing(self, event: Event[int]) -> None:
        SEEN[self.key].append((event.item, self.number))

    async def version(self) -> int:
        return self.number


@grain(name="Port")
class Port1(PortBase):
    number = 1


@grain(name="Port", version=2)
class Port2(PortBase):
    number = 2

    @subscribe(WEATHER)
    async def on_weather(self, event: Event[int]) -> None:
        SEEN[f"weather of {self.key}"].append((event.item, self.number))


@grain(name="Port")
class PortOf1(Contract):
    async def version(self) -> int:
        raise NotImplementedError


@grain(name="Port", version=2)
class PortOf2(PortOf1):
    pass


def make_streams() -> PersistentStreams:
    delivery = DeliveryOptions(retries=0, backoff=Backoff(0.05, 2, 0.2))
    return PersistentStreams(MemoryQueues(), options=StreamOptions(delivery=delivery))


class World:
    """Silos 0 and 1 with version 1, and silo 2 with version 2."""

    def __init__(self, simulation: Simulation, cluster: SimCluster) -> None:
        self.simulation = simulation
        self.cluster = cluster

    async def at(self, name: str, work: Callable[[Silo], Coroutine[Any, Any, Any]]) -> Any:
        silo = self.cluster.silo(name)
        assert silo is not None
        return await self.simulation.call(self.simulation.host(name), work(silo))

    async def publish(self, namespace: StreamNamespace[int], *items: int) -> None:
        async def work(silo: Silo) -> None:
            for item in items:
                for key in KEYS:
                    await silo.stream(namespace, key).publish(item)
                await asyncio.sleep(0.01)

        await self.at("silo-0", work)

    async def look(self, contract: type[PortOf1]) -> dict[str, int]:
        async def work(silo: Silo) -> dict[str, int]:
            return {key: await silo.grain(contract, key).version() for key in KEYS}

        found: dict[str, int] = await self.at("silo-0", work)
        return found


def play(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def driver(simulation: Simulation) -> None:
        lacking: dict[str, list[type[Grain]]] = {
            "silo-0": [Port2],
            "silo-1": [Port2],
            "silo-2": [Port1],
        }
        async with SimCluster(
            simulation,
            silos=3,
            grains=[Port1, Port2],
            lacking=lacking,
            streams={"default": make_streams},
        ) as cluster:
            await main(World(simulation, cluster))

    run(driver, seed=1)


def test_events_run_on_any_version_and_move_no_grain() -> None:
    async def main(world: World) -> None:
        homes = await world.look(PortOf1)
        assert {*homes.values()} == {1, 2}
        await world.publish(LANDINGS, 1, 2)
        await asyncio.sleep(5.0)
        assert SEEN == {key: [(1, homes[key]), (2, homes[key])] for key in KEYS}
        assert await world.look(PortOf1) == homes

    play(main)


def test_an_event_activates_a_grain_of_any_version() -> None:
    async def main(world: World) -> None:
        await world.publish(LANDINGS, 1)
        await asyncio.sleep(5.0)
        assert {key: len(seen) for key, seen in SEEN.items()} == dict.fromkeys(KEYS, 1)
        assert {version for seen in SEEN.values() for _, version in seen} == {1, 2}

    play(main)


def test_a_move_to_a_later_version_loses_and_repeats_no_event() -> None:
    async def main(world: World) -> None:
        homes = await world.look(PortOf1)
        assert 1 in homes.values()
        events = list(range(30))
        publishing = asyncio.create_task(world.publish(LANDINGS, *events))
        await asyncio.sleep(0.1)
        assert {*(await world.look(PortOf2)).values()} == {2}
        await publishing
        await asyncio.sleep(5.0)
        for key in KEYS:
            assert [item for item, _ in SEEN[key]] == events
            versions = [version for _, version in SEEN[key]]
            assert versions == sorted(versions), "no event runs on version 1 after the move"
            assert versions[-1] == 2
        assert any(versions[0][1] == 1 for versions in SEEN.values())

    play(main)


def test_a_handler_that_only_the_later_version_has_waits_until_the_grain_moves_up() -> None:
    async def main(world: World) -> None:
        homes = await world.look(PortOf1)
        old = [key for key in KEYS if homes[key] == 1]
        new = [key for key in KEYS if homes[key] == 2]
        await world.publish(WEATHER, 1, 2)
        await asyncio.sleep(5.0)
        assert SEEN == {f"weather of {key}": [(1, 2), (2, 2)] for key in new}
        await world.look(PortOf2)
        await asyncio.sleep(5.0)
        assert SEEN == {f"weather of {key}": [(1, 2), (2, 2)] for key in (*old, *new)}

    play(main)
