"""The shared load of the suite `priority`: numbers of messages, their content, and clocks.

This module owns sizes, messages from a seed, callers and figures. Subjects differ only in the calls
that they are given. Costs are CPU of this process, and latencies are laps of the wall clock.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

__all__ = [
    "CALLERS",
    "PAYLOAD",
    "PENDING",
    "Costs",
    "Figures",
    "crowd",
    "laps_of",
    "priorities",
    "scaled",
]

PENDING = {"1k": 1_000, "100k": 100_000, "1M": 1_000_000}
PAYLOAD = b"x" * 100
CALLERS = 64
Figures = dict[str, float]
now = time.perf_counter


def scaled(count: int, size: float, least: int = 100) -> int:
    """Return a number of messages or calls for a run that is scaled by `size`."""
    return max(least, int(count * size))


def priorities(count: int) -> list[int]:
    """Return priorities of `count` messages, the same for every subject."""
    chance = random.Random(7)
    return [chance.randrange(1 << 40) for _ in range(count)]


class Costs:
    """Figures of pieces of work, with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.figures: Figures = {}
        self._prefix = prefix

    def note(self, name: str, value: float) -> None:
        self.figures[f"{self._prefix}_{name}"] = value

    @contextmanager
    def each(self, name: str, count: int) -> Iterator[None]:
        """Record the cost of each of `count` operations, in microseconds of CPU."""
        begin_s = time.process_time()
        yield
        self.note(f"{name}_us", (time.process_time() - begin_s) / count * 1e6)

    def note_laps(self, name: str, laps_s: list[float]) -> None:
        """Note median and 99th percentile, in microseconds."""
        self.note(f"{name}_p50_us", statistics.median(laps_s) * 1e6)
        self.note(f"{name}_p99_us", statistics.quantiles(laps_s, n=100)[98] * 1e6)

    async def crowd(
        self,
        name: str,
        count: int,
        call: Callable[[int], Awaitable[object]],
        callers: int = CALLERS,
    ) -> None:
        """Record rate and laps of calls by several callers at once."""
        begin_s = now()
        laps_s = await crowd(count, call, callers)
        self.note(f"{name}_s", count / (now() - begin_s))
        self.note_laps(name, laps_s)


async def crowd(
    count: int, call: Callable[[int], Awaitable[object]], callers: int = CALLERS
) -> list[float]:
    """Call for each number, by several callers; return the seconds of each call."""
    left, laps_s = iter(range(count)), list[float]()

    async def caller() -> None:
        for number in left:
            begin_s = now()
            await call(number)
            laps_s.append(now() - begin_s)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return laps_s


def laps_of(count: int, call: Callable[[], object]) -> list[float]:
    """Return the seconds of each of `count` plain calls."""
    laps_s = []
    for _ in range(count):
        begin_s = now()
        call()
        laps_s.append(now() - begin_s)
    return laps_s
