"""Faults of simulated ledgers, beside the faults of a script.

Owns: verbs of disks and machines by kind, `outages` of store and table, `comings_and_goings` of
silos, `all_at_once`, `one_loss`. Invariant: all faults end when the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tests.sim.suites.run.plan import Plan
from tests.sim.suites.run.programs import Programs
from tests.sim.suites.run.record import Run

from millstream.runtime.testing import (
    FailingStore,
    FailingTable,
    HostCrashed,
    Random,
    SimCluster,
    Step,
)

__all__ = [
    "HOSTS_MAX",
    "KINDS",
    "REPLICATED_KINDS",
    "SILOS",
    "all_at_once",
    "comings_and_goings",
    "joins",
    "one_loss",
    "outages",
    "with_steps",
]

SILOS = 3
HOSTS_MAX = 8  # hosts of the machine over a run
NETWORK = ("clog", "hold", "latency", "loss", "partition", "partition_oneway")
DISK = ("disk_full", "disk_slow", "disk_stall", "disk_sync_fails")
KINDS = {
    "everything": ("kill", "power_cut", *NETWORK, *DISK),
    "kills": ("crash", "kill", "power_cut"),
    "disk": (*DISK, "kill", "power_cut"),
    "network": (*NETWORK, "kill"),
}
REPLICATED_KINDS = {
    "everything": ("crash", "kill", "pause", "power_cut", *NETWORK, *DISK),
    "kills": ("crash", "kill", "pause", "power_cut"),
    "disks": (*DISK, "crash", "power_cut"),
    "network": (*NETWORK, "kill", "pause"),
    "standing still": ("pause",),
}
# No `disk_damage` and no `disk_rollback`: with one replica both lose acknowledged messages.
RATES = (0.02, 0.2, 1.0)
TABLE_RATES = (0.02, 0.2)
OUTAGE_S = (0.5, 6.0)
CALM_S = (2.0, 20.0)
MOVE_S = (4.0, 15.0)
OLD_S = 12.0
"""A backup is older than the longest outage: by then the rows show the messages that it lacks."""


def all_at_once(rng: Random, plan: Plan, duration_s: float) -> Plan:
    """In some runs, also kill all processes of the machine at one instant."""
    if rng.random() < 0.5:
        return plan
    start_s = rng.uniform(0.0, duration_s - 1.0)
    end_s = min(duration_s - 0.5, start_s + rng.uniform(0.0, 8.0))
    names = [f"silo-{number}" for number in range(plan.silos)]
    steps = [Step(start_s, "kill", (name,)) for name in names]
    steps += [Step(end_s, "restart", (name,)) for name in names]
    return with_steps(plan, steps)


def one_loss(rng: Random, plan: Plan, duration_s: float) -> Plan:
    """In half of the runs, wipe one directory or restore it from an old state. A replica of each
    entry with two acknowledgements remains elsewhere; a second loss might destroy it."""
    what, host = rng.choice(("", "", "disk_wipe", "disk_rollback")), rng.randrange(plan.silos)
    name, end_s = f"silo-{host}", rng.uniform(OLD_S + 0.5, duration_s - 1.0)
    steps = [Step(end_s, what, (name,))] if what else []
    if what == "disk_rollback":
        steps.append(Step(rng.uniform(0.0, end_s - OLD_S), "disk_copy", (name,)))
    return with_steps(plan, steps)


def with_steps(plan: Plan, steps: list[Step]) -> Plan:
    """Add steps to a plan, each at its time."""
    return Plan(plan.kind, plan.silos, tuple(sorted([*plan.script, *steps])))


async def joins(run: Run, rng: Random, programs: Programs) -> None:
    """Start up to two more silos at random times, each with a directory of its own."""
    for _ in range(rng.randrange(3)):
        await asyncio.sleep(rng.uniform(*MOVE_S))
        if run.is_over:
            break
        programs.join()
        run.figures["joins"] += 1


async def outages(
    run: Run, rng: Random, stores: Collection[FailingStore], table: FailingTable
) -> None:
    """Now and then let some or all calls of the stores or the table fail for a while."""
    while not run.is_over:
        await asyncio.sleep(rng.uniform(*CALM_S))
        if run.is_over:
            break
        run.figures["outages"] += 1
        if rng.random() < 0.5:
            rate = rng.choice(RATES)
            for store in stores:
                store.rate = rate
        else:
            table.rate = rng.choice(TABLE_RATES)
        await asyncio.sleep(rng.uniform(*OUTAGE_S))
        table.rate = 0.0
        for store in stores:
            store.rate = 0.0


async def comings_and_goings(
    run: Run, rng: Random, cluster: SimCluster, programs: Programs
) -> None:
    """Start silos on new hosts of the machine, and stop others for good."""
    joined = SILOS
    while not run.is_over:
        await asyncio.sleep(rng.uniform(*MOVE_S))
        if run.is_over:
            break
        if joined < HOSTS_MAX and (len(cluster.names) <= SILOS or rng.random() < 0.5):
            joined += 1
            programs.join()
            run.figures["joins"] += 1
        elif len(cluster.names) > SILOS - 1:
            run.figures["leaves"] += 1
            await leave(cluster, rng.choice(cluster.names))


async def leave(cluster: SimCluster, name: str) -> None:
    """Stop a silo for good."""
    try:
        await cluster.remove_silo(name)
    except HostCrashed:
        pass
