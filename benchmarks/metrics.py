"""The cost of metrics for local calls: two silos of one process, one of which counts its calls.

Short windows of both take turns, in both orders, because the speed of a machine changes within a
second. Figures:

- `metrics_off_us`, `metrics_on_us`: processor time of a local call, the median of all windows.
- `metrics_percent`: the cost of metrics, the median of the ratios of neighbouring windows.
- `metrics_wait_percent`: the same for calls that suspend once.
- `collect_ms`: time to collect all metrics of the silo with 10,000 grains.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from pathlib import Path

from benchmarks.measure import Call, settle_memory
from millstream.runtime import Grain, Metrics, Silo

__all__ = ["ours"]

CALLS = 2_000
PAIRS = 150
SUSPENDED = 300
GRAINS = 10_000


class Counter(Grain):
    """The called grain."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, by: int) -> int:
        self.n += by
        return self.n

    async def suspend(self, by: int) -> int:
        await asyncio.sleep(0)
        return by


async def ours(work: Path) -> dict[str, float]:
    """Both silos, with the same grains."""
    async with (
        Silo(grains=[Counter]) as plain,
        Silo(grains=[Counter], parts={"metrics": Metrics()}) as counting,
    ):
        for silo in (plain, counting):
            for number in range(GRAINS):
                await silo.grain(Counter, f"k{number}").add(0)
        settle_memory()
        gc.disable()
        one, other = plain.grain(Counter, "k0"), counting.grain(Counter, "k0")
        off_us, on_us, ratio = await compare(one.add, other.add, CALLS)
        _, _, waited = await compare(one.suspend, other.suspend, SUSPENDED)
        took = []
        for _ in range(20):
            began_s = time.perf_counter()
            counting.services.metrics.collect()
            took.append(time.perf_counter() - began_s)
        gc.enable()
        return {
            "metrics_off_us": off_us,
            "metrics_on_us": on_us,
            "metrics_percent": 100 * (ratio - 1),
            "metrics_wait_percent": 100 * (waited - 1),
            "collect_ms": 1e3 * statistics.median(took),
        }


async def compare(one: Call, other: Call, count: int) -> tuple[float, float, float]:
    """Return the time of a call of each in microseconds, and the median of their ratios."""
    times: tuple[list[float], list[float]] = ([], [])
    for call in (one, other):
        await window(call, count)
    for number in range(PAIRS):
        order = ((0, one), (1, other)) if number % 2 else ((1, other), (0, one))
        for which, call in order:
            times[which].append(await window(call, count))
    ratios = [on / off for off, on in zip(*times, strict=True)]
    off_us, on_us = (1e6 * statistics.median(found) / count for found in times)
    return off_us, on_us, statistics.median(ratios)


async def window(call: Call, count: int) -> float:
    """Return the processor time of some calls in seconds."""
    began_s = time.process_time()
    for _ in range(count):
        await call(1)
    return time.process_time() - began_s
