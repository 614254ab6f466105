"""The metrics of ledgers, in virtual time: each equals the figures of the bookie."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.runtime import Metrics, Silo
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import HashRingMapper, PersistentStreams, StreamNamespace

LINES = StreamNamespace("lines", str)


def values(silo: Silo, name: str) -> dict[tuple[str, ...], Any]:
    found = {metric.name: values for metric, values in silo.services.metrics.collect().items()}
    return dict(found[f"millstream_{name}"])


def provider() -> PersistentStreams:
    return PersistentStreams(
        LedgerQueues("ledger"),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
    )


def test_the_silo_that_runs_the_bookie_reports_its_figures() -> None:
    async def driver(sim: Simulation) -> None:
        parts = {"metrics": Metrics}
        async with SimCluster(
            sim, grains=[], streams={"default": provider}, parts=parts, silos=1
        ) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None

            async def main() -> None:
                before = values(silo, "bookie_used_bytes")[("default",)]
                for number in range(20):
                    await silo.stream(LINES, "a").publish(f"{number}" * 1_000)
                await asyncio.sleep(1.0)
                used = values(silo, "bookie_used_bytes")[("default",)]
                assert used - before > 20 * 1_000
                assert values(silo, "bookie_state") == {
                    ("default", "writable"): 1,
                    ("default", "read_only"): 0,
                    ("default", "stopped"): 0,
                }
                assert values(silo, "bookie_ledgers")[("default",)] >= 1
                assert values(silo, "bookie_unsynced_bytes") == {("default",): 0}
                assert values(silo, "bookie_damaged_entries") == {("default",): 0}
                assert values(silo, "bookie_free_bytes")[("default",)] > 0
                live = values(silo, "bookie_live_bytes")[("default",)]
                assert 0 < live <= used
                assert values(silo, "bookie_scrub_failed_entries") == {("default",): 0}

            await sim.call(sim.host(cluster.names[0]), main())

    run(driver, seed=1)
