"""Rebalancing in the suite `calls`: every third seed evens out its accounts, also during faults.

Owns: the options of a seed, and the judge of the end. After the repair the accounts that are in use
are spread evenly over the silos, and then none moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.sim.suites.run.record import Run

from millstream.runtime import Rebalancing, Silo
from millstream.runtime.testing import SimCluster, Simulation

__all__ = ["check_even", "rebalancing_of", "use_and_check"]

EVERY = 3
ROUND_S = 2.0
EVEN_S = 30.0  # a few rounds, and stagnant ones while accounts are busy
USED_S = 1.0  # accounts end after a few seconds without use
OPTIONS = Rebalancing(
    first_after_s=1.0, every_s=ROUND_S, start_above=0.05, stop_below=0.0, stagnant_rounds_max=100
)


def rebalancing_of(simulation: Simulation) -> Rebalancing | None:
    """Return the options of rebalancing of a seed; None: this seed has none."""
    return OPTIONS if simulation.seed % EVERY == 0 else None


async def use_and_check(
    run: Run, cluster: SimCluster, use: Callable[[Silo], Awaitable[object]]
) -> None:
    """Keep all accounts in use once all faults have ended, and judge how they are spread."""
    if rebalancing_of(run.simulation) is None:
        return
    name = cluster.names[0]

    async def use_for(seconds: float) -> None:
        until_s = run.simulation.loop.time() + seconds
        while run.simulation.loop.time() < until_s:
            silo = cluster.silo(name)
            assert silo is not None
            await use(silo)
            await asyncio.sleep(USED_S)

    host = run.simulation.host(name)
    await run.simulation.call(host, use_for(EVEN_S))
    before = run.figures["departures"]
    await run.simulation.call(host, use_for(5 * ROUND_S))
    counts = [len(silo.assembly.catalog.of("account")) for silo in cluster.silos()]
    moved = run.figures["departures"] - before
    run.figures["accounts evened out"] += sum(counts)
    for text in check_even(counts, moved):
        run.on_violated(text)


def check_even(counts: list[int], moved: int) -> list[str]:
    """Check the activations of each silo, and the moves since they should have ended."""
    found = []
    if max(counts) - min(counts) > 1:
        found.append(f"the accounts are not evened out: {counts}")
    if moved:
        found.append(f"{moved} accounts moved although they were even")
    return found
