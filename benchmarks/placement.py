"""Placement of activations over three silos, and the time until rebalancing has evened them out.

The silos share one process and one event loop, so processor time counts for all three. Figures:

- `random_spread`, `activations_spread`, `load_spread`: the most activations of a silo for each
  one of the silo with the fewest, after 9,000 placements by one caller.
- `start_us`: time for a call that places and starts a grain, by LEAST_LOADED.
- `even_s`: time until 100,000 activations, all in one silo, are evened out.
- `moved_per_s`: activations moved in each second of it.
- `still_p50_us`, `still_p99_us`: calls of random grains in another silo, before.
- `even_p50_us`, `even_p99_us`: the same calls meanwhile.
- `lag_max_ms`: the longest time between two calls beyond their pause, meanwhile.

`MILLSTREAM_ACTIVATIONS=10000` sets another number of activations.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from millstream.runtime import (
    LEAST_ACTIVATIONS,
    LEAST_LOADED,
    Env,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    Rebalancing,
    Silo,
    grain,
)

__all__ = ["ours"]

ACTIVATIONS = int(os.environ.get("MILLSTREAM_ACTIVATIONS", "100000"))
PLACED = 9_000
STILL_CALLS = 3_000
PAUSE_S = 0.002
OPTIONS = Rebalancing(first_after_s=0, every_s=2, moves_max=10_000, start_above=0.02, stop_below=0)


class ByChance(Grain):
    """Placed at random."""

    async def where(self) -> str:
        """Return the silo."""
        return self.context.silo


@grain(placement=LEAST_ACTIVATIONS)
class ByCount(ByChance):
    """Placed by the number of activations."""


@grain(placement=LEAST_LOADED)
class ByLoad(ByChance):
    """Placed by load."""


CLASSES = {"random": ByChance, "activations": ByCount, "load": ByLoad}


async def ours(work: Path) -> dict[str, float]:
    """Place activations, and even them out."""
    return {**await place(), **await even_out()}


async def place() -> dict[str, float]:
    """Return the spread of activations by each strategy."""
    figures: dict[str, float] = {}
    for name, cls in CLASSES.items():
        async with LocalCluster(silos=3, grains=[cls]) as cluster:
            await asyncio.sleep(2.5)  # the silos have reported their load
            silo, found = cluster.silos[0], Counter[str]()
            began_s = time.monotonic()
            for key in range(PLACED):
                found[await silo.grain(cls, f"{key}").where()] += 1
            if cls is ByLoad:
                figures["start_us"] = (time.monotonic() - began_s) / PLACED * 1e6
            fewest = min(found[each.address] for each in cluster.silos)
            figures[f"{name}_spread"] = max(found.values()) / max(1, fewest)
    return figures


async def even_out() -> dict[str, float]:
    """Fill one silo, let two others join, and measure until all have the same number."""
    table, choice = MemoryMembershipTable(), Env(seed=1).choice
    silos = [Silo(grains=[ByChance], membership=table, rebalancing=OPTIONS) for _ in range(3)]
    async with silos[0]:
        for key in range(ACTIVATIONS):
            await silos[0].grain(ByChance, f"{key}").where()
        await silos[0].rebalancer.suspend()
        async with silos[1], silos[2]:
            await asyncio.sleep(2.5)
            still, _ = await call(silos[1], choice, lambda done: done >= STILL_CALLS)
            await silos[0].rebalancer.resume()
            began_s = time.monotonic()
            during, lag_s = await call(silos[1], choice, lambda done: is_even(silos))
            even_s = time.monotonic() - began_s
            moved = sum(silo.rebalancer.status().moved for silo in silos)
            return {
                "even_s": even_s,
                "moved_per_s": moved / even_s,
                **percentiles("still", still),
                **percentiles("even", during),
                "lag_max_ms": lag_s * 1e3,
            }


def is_even(silos: list[Silo]) -> bool:
    """Return whether no silo has more activations than another one, but for 1 %."""
    counts = [silo.services.activation_count for silo in silos]
    return max(counts) - min(counts) <= ACTIVATIONS * 0.01 and sum(counts) >= ACTIVATIONS * 0.99


async def call(
    silo: Silo, choice: Callable[[int], int], is_over: Callable[[int], bool]
) -> tuple[list[float], float]:
    """Call random grains, with a short pause after each call. Returns times and longest lag."""
    times: list[float] = []
    lag_s, ended_s = 0.0, time.monotonic()
    while not is_over(len(times)):
        await asyncio.sleep(PAUSE_S)
        began_s = time.monotonic()
        lag_s = max(lag_s, began_s - ended_s - PAUSE_S)
        await silo.grain(ByChance, f"{choice(ACTIVATIONS)}").where()
        ended_s = time.monotonic()
        times.append(ended_s - began_s)
    return times, lag_s


def percentiles(name: str, times: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in microseconds."""
    cuts = statistics.quantiles(times, n=100)
    return {f"{name}_p50_us": cuts[49] * 1e6, f"{name}_p99_us": cuts[98] * 1e6}
