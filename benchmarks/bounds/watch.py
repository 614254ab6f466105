"""Clocks and scales: the longest stop of the loop, and the memory of processes.

This module owns `LoopWatch`, bytes of processes, and `sized`. Watching costs one callback per
iteration of the loop and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from types import TracebackType

__all__ = ["LoopWatch", "held_bytes", "resident_bytes", "settled", "sized"]


def sized(count: int, size: float, least: int = 2) -> int:
    """Return a workload's count at a size: 1 is the full one."""
    return max(least, round(count * size))


class LoopWatch:
    """`async with LoopWatch() as watch: ...`; then `watch.longest_s` is the longest iteration."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s = 0.0
        self._is_over = False

    async def __aenter__(self) -> LoopWatch:
        gc.collect()
        gc.freeze()
        self._loop = asyncio.get_running_loop()
        self._last_s = time.perf_counter()
        self._tick()
        await asyncio.sleep(0)
        self.longest_s = 0.0
        return self

    def _tick(self) -> None:
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - self._last_s)
        self._last_s = now
        if not self._is_over:
            self._loop.call_soon(self._tick)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.sleep(0)
        self._is_over = True
        gc.unfreeze()

    @property
    def longest_ms(self) -> float:
        return self.longest_s * 1e3


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled(pid: int, within_s: float = 10.0) -> int:
    """Return the resident bytes of a process when they have not grown for a quarter of a second."""
    found, until = resident_bytes(pid), time.perf_counter() + within_s
    while time.perf_counter() < until:
        await asyncio.sleep(0.25)
        now = resident_bytes(pid)
        if now <= found:
            return now
        found = now
    return found


def held_bytes() -> int:
    """Return the bytes of this process's Python objects, while `tracemalloc` runs."""
    import tracemalloc

    gc.collect()
    return tracemalloc.get_traced_memory()[0]
