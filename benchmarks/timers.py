"""The cost of timers: 10,000 grains with a timer of one second each.

The limit is 10,000 tasks of asyncio that sleep for a second again and again, without grains. Both
start over one second, so their ticks are spread over the period. Figures:

- `tick_us`: processor time per tick, beyond the same time without timers.
- `busy_percent`: processor time of all ticks, as a share of one core.
- `timer_bytes`: memory per timer, beyond a grain without a timer.
- `lag_p99_ms`, `lag_max_ms`: how late the event loop was while the timers ticked, looked at each
  10 ms.
- `late_p99_ms`: how late ticks began, after the period since the end of the tick before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import memory_bytes, settle_memory
from millstream.runtime import Grain, Silo, timer

__all__ = ["ours", "tasks"]

GRAINS = 10_000
PERIOD_S = 1.0
WATCHED_S = 10.0
LOOK_S = 0.01
TICKS: list[float] = []


class Plain(Grain):
    """A grain without a timer."""

    async def wake(self) -> None: ...


class Ticking(Grain):
    """A grain with one timer, whose ticks record how late they are."""

    def __init__(self) -> None:
        self._ended_s = time.monotonic()

    async def wake(self) -> None: ...

    @timer(every=PERIOD_S)
    async def _tick(self) -> None:
        now = time.monotonic()
        TICKS.append(now - self._ended_s - PERIOD_S)
        self._ended_s = now


async def ours(work: Path) -> dict[str, float]:
    """Grains in one silo."""
    async with Silo(grains=[Plain, Ticking]) as silo:

        async def wake(cls: type[Plain] | type[Ticking], name: str) -> None:
            await silo.grain(cls, name).wake()

        return await measure(lambda name: wake(Plain, name), lambda name: wake(Ticking, name))


async def tasks(work: Path) -> dict[str, float]:
    """Tasks that sleep."""
    running: list[asyncio.Task[None]] = []

    async def start(name: str) -> None:
        running.append(asyncio.create_task(tick()))

    async def tick() -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            TICKS.append(time.monotonic() - began_s - PERIOD_S)

    async def nothing(name: str) -> None: ...

    found = await measure(nothing, start)
    for task in running:
        task.cancel()
    return found


async def measure(
    plain: Callable[[str], Awaitable[None]], ticking: Callable[[str], Awaitable[None]]
) -> dict[str, float]:
    """Start the objects without timers, then those with timers, and watch both."""
    plain_bytes = await start_all(plain)
    idle_s, _ = await watch()
    timed_bytes = await start_all(ticking)
    TICKS.clear()
    busy_s, lags = await watch()
    ticks = sorted(TICKS)
    return {
        "tick_us": 1e6 * (busy_s - idle_s) / len(ticks),
        "busy_percent": 100 * (busy_s - idle_s) / WATCHED_S,
        "timer_bytes": (timed_bytes - plain_bytes) / GRAINS,
        "lag_p99_ms": 1e3 * part(lags, 0.99),
        "lag_max_ms": 1e3 * lags[-1],
        "late_p99_ms": 1e3 * part(ticks, 0.99),
    }


async def start_all(start: Callable[[str], Awaitable[None]]) -> int:
    """Start all objects of a kind within one period. Return the bytes that they take."""
    before = memory_bytes()
    at_once = GRAINS // 100
    for first in range(0, GRAINS, at_once):
        await asyncio.gather(*(start(f"{n}") for n in range(first, first + at_once)))
        await asyncio.sleep(PERIOD_S / 100)
    settle_memory()
    return memory_bytes() - before


async def watch() -> tuple[float, list[float]]:
    """Return the processor time of some seconds, and the lags of the loop in order."""
    lags: list[float] = []
    loop = asyncio.get_running_loop()
    began_s, end_s = time.process_time(), loop.time() + WATCHED_S
    while loop.time() < end_s:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        lags.append(loop.time() - due_s)
    return time.process_time() - began_s, sorted(lags)


def part(values: list[float], share: float) -> float:
    """Return the value below which a share of sorted values lies."""
    return values[int(share * (len(values) - 1))]
