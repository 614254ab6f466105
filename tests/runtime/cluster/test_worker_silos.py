"""The silo in which a call to a stateless worker runs, in clusters in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.runtime.worker_world import World
from tests.runtime.worker_world import in_cluster as in_any_cluster

from millstream.runtime import (
    Contract,
    DeactivationReason,
    Grain,
    NotHosted,
    Observer,
    Silo,
    SiloUnavailable,
    grain,
    stateless_worker,
)

ENDED: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ENDED.clear()


class Sizer(Contract):
    async def where(self) -> str:
        raise NotImplementedError

    async def work(self, seconds: float) -> str:
        raise NotImplementedError

    async def ask(self, key: str) -> str:
        raise NotImplementedError


@grain(name="Sizer", placement=stateless_worker(max_local=2))
class SizerGrain(Sizer, Grain):
    async def where(self) -> str:
        return self.context.silo

    async def work(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.context.silo

    async def ask(self, key: str) -> str:
        return await self.grain(Plain, key).ask(self.key)

    async def on_activate(self) -> None:
        await asyncio.sleep(0.01)

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        ENDED.append(self.context.silo)


class Plain(Grain):
    async def ask(self, key: str) -> str:
        return await self.grain(Sizer, key).where() + " " + self.context.silo


class Viewer(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def show(self, text: str) -> None:
        self.seen.append(text)


@grain(placement=stateless_worker(max_local=2))
class Teller(Grain):
    async def tell(self, viewer: Viewer) -> None:
        await viewer.show(self.context.silo)


def in_cluster(main: Callable[[World], Awaitable[None]], **cluster: Any) -> None:
    in_any_cluster(main, **{"grains": [SizerGrain, Plain, Teller], **cluster})


async def find_entry(silo: Silo) -> object:
    return await silo.assembly.directory.find_entry("Sizer", "a")


async def ask(key: str, silo: Silo) -> list[str]:
    return (await silo.grain(Plain, key).ask("x")).split()


async def ask_back(key: str, silo: Silo) -> str:
    return await silo.grain(Sizer, "a").ask(key)


def test_calls_stay_in_the_silo_of_their_caller() -> None:
    async def main(world: World) -> None:
        for number in range(3):
            here = world.silo(number).address

            async def program(silo: Silo) -> set[str]:
                sizer = silo.grain(Sizer, "a")
                return set(await asyncio.gather(*[sizer.work(0.1) for _ in range(6)]))

            assert await world.at(number, program) == {here}
        assert world.hosts("Sizer") == {0: 2, 1: 2, 2: 2}
        for number in range(3):
            assert await world.at(number, find_entry) is None
            assert world.silo(number).assembly.catalog.count == 2

    in_cluster(main)


def test_calls_of_grains_stay_in_the_silo_of_the_grain() -> None:
    async def main(world: World) -> None:
        for number in range(3):
            for key in "abcdef":
                worker, plain = await world.at(number, partial(ask, key))
                assert worker == plain

    in_cluster(main)


def test_a_silo_that_does_not_host_the_class_sends_each_call_to_a_random_silo_that_does() -> None:
    async def main(world: World) -> None:
        async def program(silo: Silo) -> list[str]:
            return [await silo.grain(Sizer, "a").where() for _ in range(60)]

        found = Counter(await world.at(0, program))
        assert set(found) == {world.silo(1).address, world.silo(2).address}
        assert min(found.values()) >= 15
        assert world.silo(0).assembly.router.silo_of("Sizer", "a") == ""

    in_cluster(main, lacking={"silo-0": [SizerGrain]})


def test_calls_of_a_client_run_in_the_silo_of_their_gateway() -> None:
    async def main(world: World) -> None:
        async def program(client: Any) -> list[set[str]]:
            return [
                {await client.grain(Sizer, key).where() for _ in range(10)} for key in "abcdefgh"
            ]

        found = await world.at_client(program)
        assert all(len(silos) == 1 for silos in found)  # one gateway for each key
        assert len(set.union(*found)) > 1

    in_cluster(main)


def test_a_gateway_that_does_not_host_the_class_relays_calls_of_clients() -> None:
    async def main(world: World) -> None:
        async def program(client: Any) -> list[str]:
            return [await client.grain(Sizer, key).where() for key in "abcdefghijkl"]

        assert set(await world.at_client(program)) == {world.silo(1).address}

    in_cluster(main, lacking={"silo-0": [SizerGrain], "silo-2": [SizerGrain]})


def test_a_call_back_from_another_silo_is_no_cycle_while_the_pool_has_room() -> None:
    async def main(world: World) -> None:
        for key in "abcdef":
            assert await world.at(0, partial(ask_back, key))

    in_cluster(main)


def test_a_worker_calls_an_observer_of_a_client() -> None:
    async def main(world: World) -> None:
        async def program(client: Any) -> list[str]:
            viewer = Viewer()
            async with client.observe(viewer) as reference:
                teller = client.grain(Teller, "a")
                await asyncio.gather(*[teller.tell(reference) for _ in range(5)])
            return viewer.seen

        assert len(await world.at_client(program)) == 5

    in_cluster(main)


def test_a_silo_that_stops_fails_no_call_of_others() -> None:
    async def main(world: World) -> None:
        silos: list[str] = []

        async def program(silo: Silo) -> None:
            for _ in range(400):
                silos.append(await silo.grain(Sizer, "a").work(0.05))

        calling = asyncio.create_task(world.at(0, program))
        await asyncio.sleep(2.0)
        stopped = world.silo(1).address
        await world.cluster.stop_silo("silo-1")
        assert stopped in ENDED
        await calling
        assert len(silos) == 400 and stopped in silos[:30] and stopped not in silos[-300:]

    in_cluster(main, lacking={"silo-0": [SizerGrain]})


def test_calls_of_a_silo_that_crashed_go_to_another_silo() -> None:
    async def main(world: World) -> None:
        lost: list[SiloUnavailable] = []
        silos: list[str] = []

        async def program(silo: Silo) -> None:
            for _ in range(300):
                try:
                    silos.append(await silo.grain(Sizer, "a").work(0.05))
                except SiloUnavailable as error:
                    lost.append(error)

        calling = asyncio.create_task(world.at(0, program))
        await asyncio.sleep(2.0)
        crashed = world.silo(1).address
        world.sim.crash(world.sim.host("silo-1"))
        await calling
        assert len(silos) > 100 and crashed not in silos[-50:]
        assert all(error.silo in (crashed, "") for error in lost)

    in_cluster(main, lacking={"silo-0": [SizerGrain]})


def test_a_type_that_no_silo_hosts_is_refused() -> None:
    async def main(world: World) -> None:
        async def program(silo: Silo) -> None:
            with pytest.raises(NotHosted, match="no active silo hosts grain type 'Sizer'"):
                await silo.grain(Sizer, "a").where()

        await world.at(0, program)

    in_cluster(main, grains=[Plain])
