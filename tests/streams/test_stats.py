"""Figures of silos and queues, as a client reads them."""

from __future__ import annotations

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import LocalCluster
from millstream.streams import HashRingMapper, PersistentStreams, cluster_stats


def streams() -> PersistentStreams:
    mapper = HashRingMapper(queues=1)
    return PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())


async def test_every_silo_is_told_with_what_it_reads() -> None:
    async with LocalCluster(grains=[], silos=2, streams={"news": streams}) as cluster:
        found = await cluster_stats(cluster.client, "news")
        assert sorted(one.silo for one in found) == sorted(silo.address for silo in cluster.silos)
        while not (queues := [queue for one in found for queue in one.queues]):
            found = await cluster_stats(cluster.client, "news")
        assert {queue.queue for queue in queues} == {"queue-0"}
