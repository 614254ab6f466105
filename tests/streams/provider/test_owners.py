"""Tests of streams can see the owner of each queue, and wait until all queues have one."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain
from millstream.runtime.extending import SiloPart
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import HashRingMapper, PersistentStreams
from millstream.streams.testing import owners, wait_owned

QUEUES = {f"queue-{number}" for number in range(6)}


class Nobody(Grain):
    async def ping(self) -> None: ...


def streams(deployed: list[str] | None = None) -> PersistentStreams:
    mapper = HashRingMapper(queues=len(QUEUES))
    return PersistentStreams(
        MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer(silos=deployed)
    )


def test_queues_of_a_silo_that_crashes_have_no_owner_until_others_take_them() -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation, silos=3, grains=[Nobody], streams={"default": streams}
        ) as cluster:
            await cluster.until_settled(calm_s=20.0)
            shared = await wait_owned(cluster)
            assert shared.keys() == QUEUES and owners(cluster) == shared
            assert Counter(shared.values()) == {"silo-0": 2, "silo-1": 2, "silo-2": 2}
            simulation.crash("silo-1")
            kept = {queue: silo for queue, silo in shared.items() if silo != "silo-1"}
            assert owners(cluster) == kept
            taken = await wait_owned(cluster)
            assert taken.keys() == QUEUES and kept.items() <= taken.items()
            assert set(taken.values()) == {"silo-0", "silo-2"}

    for seed in (1, 2):
        run(main, seed)


def test_a_provider_without_a_balancer_shares_its_queues_among_the_silos() -> None:
    def bare() -> PersistentStreams:
        return PersistentStreams(MemoryQueues(), mapper=HashRingMapper(queues=len(QUEUES)))

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation, silos=3, grains=[Nobody], streams={"default": bare}
        ) as cluster:
            await cluster.until_settled(calm_s=20.0)
            shared = Counter((await wait_owned(cluster)).values())
            assert shared == {"silo-0": 2, "silo-1": 2, "silo-2": 2}

    run(main, 1)


def readers(cluster: SimCluster) -> Counter[str]:
    """Count the silos that read each queue, by their own figures."""
    parts = [silo.services.part("default") for silo in cluster.silos()]
    return Counter(agent.queue for part in parts for agent in part.manager.agents())


@pytest.mark.parametrize("lost", ["silo-0", "silo-2"])  # the first and the last silo by name
def test_of_two_that_name_a_queue_the_one_of_the_later_epoch_owns_it(lost: str) -> None:
    """A silo that is cut off keeps reading, because it does not know that others took over."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation, silos=3, grains=[Nobody], streams={"default": streams}
        ) as cluster:
            await cluster.until_settled(calm_s=20.0)
            await wait_owned(cluster)
            simulation.network.isolate(lost)
            async with asyncio.timeout(60.0):
                while lost in owners(cluster).values():
                    await asyncio.sleep(0.05)
            assert sorted(readers(cluster).values()) == [1, 1, 1, 1, 2, 2]
            assert owners(cluster).keys() == QUEUES
            simulation.repair()
            await cluster.until_settled(calm_s=5.0)

    run(main, 1)


def test_who_waits_in_vain_is_told_which_queues_have_no_owner() -> None:
    async def main(simulation: Simulation) -> None:
        def absent() -> PersistentStreams:
            return streams(["silo-0", "silo-9"])

        async with SimCluster(
            simulation, silos=1, grains=[Nobody], streams={"default": absent}
        ) as cluster:
            with pytest.raises(TimeoutError, match="after 20 s: queue-[0-5], queue-[0-5]"):
                await wait_owned(cluster, within_s=20.0)
            assert set(owners(cluster).values()) == {"silo-0"}
            assert len(owners(cluster)) == len(QUEUES) / 2

    run(main, 1)


def test_a_part_without_queues_and_a_name_that_is_none_are_refused() -> None:
    class Desk(SiloPart):
        pass

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation, silos=1, grains=[Nobody], parts={"desk": Desk}
        ) as cluster:
            with pytest.raises(ConfigError, match="'desk' is a Desk, which has no queues"):
                owners(cluster, "desk")
            with pytest.raises(ConfigError, match="default"):
                await wait_owned(cluster)

    run(main, 1)
