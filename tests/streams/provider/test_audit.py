"""A silo reports queues that no balancer wants."""

from __future__ import annotations

import asyncio

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import HashRingMapper, PersistentStreams


class Nobody(Grain):
    async def ping(self) -> None: ...


def streams() -> PersistentStreams:
    """silo-9 belongs to the deployment, and never starts."""
    balancer = DeploymentBalancer(silos=["silo-0", "silo-1", "silo-9"])
    return PersistentStreams(MemoryQueues(), mapper=HashRingMapper(queues=6), balancer=balancer)


def test_queues_of_a_silo_that_is_down_are_told_of_by_one_silo(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=2, grains=[Nobody], streams={"default": streams})
        await cluster.start()
        await asyncio.sleep(9.0)
        assert "no silo has read" not in caplog.text
        await asyncio.sleep(60.0)
        await cluster.close()

    run(main, 1)
    found = [line for line in caplog.messages if "no silo has read" in line]
    assert len(found) == 1 and found[0].count("queue-") == 2


def test_a_cluster_whose_queues_are_read_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> None:
        def balanced() -> PersistentStreams:
            return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())

        cluster = SimCluster(simulation, silos=2, grains=[Nobody], streams={"default": balanced})
        await cluster.start()
        await asyncio.sleep(60.0)
        await cluster.close()

    run(main, 1)
    assert "no silo has read" not in caplog.text
