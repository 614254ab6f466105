"""The number of queues grows and shrinks while silos publish, join and crash.

Each stream has one publisher, which sends the next item after the last one was accepted. The log of
the queues survives the silos. The test judges for each stream: each accepted item is handled, first
deliveries are in order, and each change of the number of queues ends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from tests.contract.reference import LEDGER, Broker, ReferenceQueues, Shelf

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, MillstreamError, RuntimeOptions, Silo
from millstream.runtime.testing import Random, SimCluster, Simulation, make_random, run
from millstream.streams import (
    Capability,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    PublishUnknown,
    QueueAdapterFactory,
    QueueId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.ownership.mapper_record import MapperRecords

NOTES = StreamNamespace("notes", int, subscriptions="implicit")
KEYS = [f"k{n}" for n in range(10)]
COUNTS = (1, 2, 3, 4, 6, 9)
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4))]
PLAY_S = 25.0
KINDS = {"ledger": LEDGER, "log": LEDGER - {Capability.OWN_POSITION}}


class World:
    """The observations of one run."""

    def __init__(self, seed: int) -> None:
        self.rng: Random = make_random(seed, "resizing")
        self.firsts: dict[str, list[int]] = defaultdict(list)
        self.accepted: dict[str, set[int]] = defaultdict(set)
        self.is_over = False
        self.resizes = 0

    def handled(self, key: str, item: int) -> None:
        if item not in self.firsts[key]:
            self.firsts[key].append(item)

    def check(self, *, may_lose: bool) -> None:
        for key in KEYS:
            assert self.firsts[key] == sorted(self.firsts[key]), f"{key} was reordered"
            lost = self.accepted[key] - set(self.firsts[key])
            assert may_lose or not lost, f"{key}: accepted and not handled: {sorted(lost)}"


WORLDS: list[World] = []


class NewBroker(Broker):
    """A broker whose queues begin in the era of the provider's record."""

    def shelf(self, queue: QueueId) -> Shelf:
        return self.shelves.setdefault(queue, Shelf(era=0))


class Reader(Grain):
    """A grain whose handler is slow now and then."""

    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        world = WORLDS[-1]
        if not world.is_over and world.rng.random() < 0.05:
            await asyncio.sleep(world.rng.uniform(0.0, 2.0))
        world.handled(self.key, event.item)


async def publish(world: World, cluster: SimCluster, key: str) -> None:
    """Publish one item after the other, through any silo; an item of unknown fate is not
    repeated."""
    item = 0
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.0, 0.25))
        silos = cluster.silos()
        if not silos:
            continue
        silo = world.rng.choice(silos)
        try:
            await cluster.simulation.call(
                cluster.simulation.host(host_of(silo)), silo.stream(NOTES, key).publish(item)
            )
        except PublishUnknown:
            await asyncio.sleep(2.0)  # it may still be stored, before the next item
        except (MillstreamError, asyncio.CancelledError):
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            await asyncio.sleep(2.0)
        else:
            world.accepted[key].add(item)
        item += 1


def host_of(silo: Silo) -> str:
    return silo.address.split(":")[0]


async def resize(world: World, cluster: SimCluster) -> None:
    """Change the number of queues up and down, through any silo."""
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.5, 4.0))
        silos = cluster.silos()
        if not silos:
            continue
        silo = world.rng.choice(silos)
        streams = silo.assembly.parts["default"]
        assert isinstance(streams, PersistentStreams)
        try:
            async with asyncio.timeout(8.0):
                host = cluster.simulation.host(host_of(silo))
                work = streams.resize(queues=world.rng.choice(COUNTS))
                await cluster.simulation.call(host, work)
            world.resizes += 1
        except (ConfigError, MillstreamError, TimeoutError, asyncio.CancelledError):
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise


async def crash(world: World, cluster: SimCluster, *, is_graceful: bool) -> None:
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(4.0, 12.0))
        name = world.rng.choice(cluster.names)
        if world.is_over or len(cluster.silos()) < len(cluster.names):
            continue
        if is_graceful:
            await cluster.stop_silo(name)
            continue
        cluster.simulation.crash(name)
        await asyncio.sleep(world.rng.uniform(0.5, 3.0))
        cluster.boot(name)


def play(seed: int, kind: str) -> World:
    world = World(seed)
    WORLDS.append(world)

    async def main(simulation: Simulation) -> None:
        broker = NewBroker(capacity=100_000)

        def provider() -> PersistentStreams:
            queues: QueueAdapterFactory = MemoryQueues()
            if kind != "memory":
                queues = ReferenceQueues(broker, KINDS[kind])
            return PersistentStreams(
                queues,
                mapper=HashRingMapper(queues=2),
                balancer=DeploymentBalancer(rebalance_delay_s=0.3),
                options=StreamOptions(
                    ownership=OwnershipOptions(poll_s=0.3),
                    delivery=DeliveryOptions(handler_timeout_s=20.0),
                ),
            )

        cluster = SimCluster(
            simulation,
            silos=3,
            grains=[Reader],
            streams={"default": provider},
            options=RuntimeOptions(call_timeout_s=5.0),
        )
        await cluster.start()
        programs = [publish(world, cluster, key) for key in KEYS]
        programs += [resize(world, cluster), crash(world, cluster, is_graceful=kind == "memory")]
        tasks = [simulation.loop.create_task(one) for one in programs]
        await asyncio.sleep(PLAY_S)
        world.is_over = True
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        await cluster.until_active()
        await until_done(world, cluster)
        await cluster.close()

    try:
        run(main, seed)
    finally:
        WORLDS.clear()
    return world


async def until_done(world: World, cluster: SimCluster) -> None:
    """Wait until each change has ended, and each event is handled."""
    records = MapperRecords(cluster.stores["default"], "default", HashRingMapper(queues=2))
    async with asyncio.timeout(90):
        while (await records.read()).old is not None:
            await asyncio.sleep(0.1)
    for _ in range(300):
        if all(world.accepted[key] <= set(world.firsts[key]) for key in KEYS):
            return
        await asyncio.sleep(0.1)


@pytest.mark.spare
@pytest.mark.parametrize("kind", [*KINDS, "memory"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_reordered_while_queues_become_more_and_fewer(
    seed: int, kind: str
) -> None:
    world = play(seed, kind)
    world.check(may_lose=False)
    assert world.resizes > 0 and sum(map(len, world.accepted.values())) > 300
