"""Observers under random faults, in virtual time: no call runs twice, and all end well."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.runtime.observer_world import Match, Viewer, World, clear_world, in_world

from millstream.runtime import Client, MillstreamError, Silo, one_way

SILOS = 3
STEPS = 12
KNOWN = {
    "CallTimeout",
    "ClientUnavailable",
    "HostCrashed",
    "NotInCluster",
    "Rejected",
    "SiloUnavailable",
}


class Counter(Viewer):
    """Notes each number, in the order of its calls."""

    def __init__(self) -> None:
        super().__init__("counter")
        self.seen: list[int] = []
        self.told: list[int] = []

    async def goal(self, scorer: str) -> str:
        self.seen.append(int(scorer))
        return scorer

    @one_way
    async def tell(self, scorer: str) -> None:
        self.told.append(int(scorer))


class Sender:
    """Calls the observer from one silo after the other."""

    def __init__(self, world: World, key: str) -> None:
        self.world = world
        self.key = key
        self.answered: list[int] = []
        self.failed: dict[int, str] = {}
        self.is_stopped = False

    async def run(self) -> None:
        number = 0
        while not self.is_stopped:
            number += 1
            silos = [one for one in range(SILOS) if self.world.cluster.silo(f"silo-{one}")]
            if silos:
                await self.send(number, silos[number % len(silos)])
            await asyncio.sleep(0.1)

    async def send(self, number: int, silo: int) -> None:
        async def call(silo: Silo) -> str:
            viewer = silo.assembly.references.grain_of("~Counter", Viewer, self.key)
            if number % 5 == 0:
                await viewer.tell(str(number))
            return await viewer.goal(str(number))

        try:
            assert await self.world.on_silo(call, silo) == str(number)
            self.answered.append(number)
        except Exception as error:
            self.failed[number] = type(error).__name__


async def hurt(world: World, dice: random.Random) -> None:
    """Do one fault, and its repair some time later."""
    names = [name for name in world.cluster.names if world.sim.is_up(name)]
    name = dice.choice(names)
    fault = dice.choice(["crash", "silent", "stop", "part", "isolate", "pause", "pause silo"])
    if fault in ("crash", "silent") and len(names) == SILOS:
        world.sim.crash(name, is_silent=fault == "silent")
        await asyncio.sleep(dice.uniform(0.5, 8))
        world.cluster.boot(name)
    elif fault == "stop":
        await world.cluster.stop_silo(name)
    elif fault == "part":
        world.sim.network.partition("client", name)
        await asyncio.sleep(dice.uniform(0.5, 20))
        world.sim.network.repair("client", name)
    elif fault == "isolate":
        world.sim.network.partition(name, dice.choice(names))
        await asyncio.sleep(dice.uniform(0.5, 4))
        world.sim.network.repair()
    elif fault == "pause":
        world.sim.pause("client")
        await asyncio.sleep(dice.uniform(0.5, 20))
        world.sim.resume("client")
    elif fault == "pause silo":
        world.sim.pause(name)
        await asyncio.sleep(dice.uniform(0.1, 2))
        world.sim.resume(name)
    await asyncio.sleep(dice.uniform(0, 3))


async def check_faults(world: World, seed: int) -> None:
    clear_world()
    dice, counter = random.Random(seed), Counter()
    ready, done = asyncio.Event(), asyncio.Event()
    keys: list[str] = []

    async def program(client: Client) -> None:
        async with client.observe(counter) as viewer:
            keys.append(viewer.key)
            ready.set()
            await done.wait()

    task = world.start(program)
    await ready.wait()
    sender = Sender(world, keys[0])
    sending = asyncio.create_task(sender.run())
    for _ in range(STEPS):
        try:
            await hurt(world, dice)
        except MillstreamError:
            await asyncio.sleep(1)
    world.sim.repair()
    world.sim.resume("client")
    await world.cluster.until_active()
    await asyncio.sleep(60)
    first = len(sender.answered)
    await asyncio.sleep(5)
    sender.is_stopped = True
    await sending
    assert len(sender.answered) - first > 30, "calls do not go on after the repair"
    assert counter.seen == sorted(set(counter.seen)), "a call ran twice, or out of order"
    assert counter.told == sorted(set(counter.told)), "a one-way call ran twice, or out of order"
    assert set(sender.answered) <= set(counter.seen), "an answer without a call"
    assert set(sender.failed.values()) <= KNOWN, sender.failed
    done.set()
    await task


@pytest.mark.parametrize("seed", range(6))
def test_no_call_runs_twice_and_calls_go_on_after_the_faults(seed: int) -> None:
    async def main(world: World) -> None:
        await check_faults(world, seed)

    in_world(main, silos=SILOS, seed=seed, grains=(Match,))
