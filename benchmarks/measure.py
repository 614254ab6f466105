"""Workloads and clocks that every subject shares.

This module owns payloads, the in-process workload, and CPU of processes. Subjects differ only in
the calls that they are given.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

__all__ = [
    "PAYLOADS",
    "Call",
    "cpu_s",
    "in_process",
    "memory_bytes",
    "settle_memory",
    "two_processes",
]

Call = Callable[[Any], Awaitable[Any]]
PAYLOADS: dict[str, dict[str, Any]] = {
    "100B": {
        "id": 123456,
        "name": "customer-000042",
        "tags": ["a", "b", "c"],
        "price": 19.75,
        "qty": 3,
        "note": "short note for this order",
        "ok": True,
        "x": None,
    },
    "10KB": {f"field_{i:03d}": f"{i:03d}" + "v" * 85 for i in range(100)},
}
now = time.perf_counter


def memory_bytes() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settle_memory() -> None:
    """Exclude existing objects from garbage collection, as silo processes do, for every subject."""
    gc.collect()
    gc.freeze()


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds of all threads of the processes."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
    return total / 1e9


async def _timed(name: str, count: int, work: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    started, cpu = now(), time.process_time()
    await work()
    took, used = now() - started, time.process_time() - cpu
    return {f"{name}_us": took / count * 1e6, f"{name}_cpu_us": used / count * 1e6}


async def in_process(
    add: Sequence[Call], dict_in: Call, echo: Call, suspend: Call, busy: Call
) -> dict[str, float]:
    """Measure one caller, many callers, copies, suspensions and contention; µs per call."""
    settle_memory()
    figures: dict[str, float] = {}
    payload = PAYLOADS["100B"]

    async def repeat(call: Call, argument: Any, count: int) -> None:
        for _ in range(count):
            await call(argument)

    for warm in (add[0], suspend, busy):
        await repeat(warm, 1, 300)
    figures |= await _timed("seq", 20_000, lambda: repeat(add[0], 1, 20_000))
    figures |= await _timed("dict_in", 5_000, lambda: repeat(dict_in, payload, 5_000))
    figures |= await _timed("dict_echo", 5_000, lambda: repeat(echo, payload, 5_000))
    figures |= await _timed("suspend", 5_000, lambda: repeat(suspend, 1, 5_000))

    async def crowd(callers: int, each: int) -> None:
        await asyncio.gather(*(repeat(busy, 1, each) for _ in range(callers)))

    figures |= await _timed("contended10", 5_000, lambda: crowd(10, 500))
    figures |= await _timed("contended100", 5_000, lambda: crowd(100, 50))

    async def pairs() -> None:
        await asyncio.gather(*(repeat(call, 1, 200) for call in add[:100]))

    figures |= await _timed("c100x100", 20_000, pairs)
    chance = random.Random(7)
    plans = [[chance.randrange(len(add)) for _ in range(40)] for _ in range(1000)]

    async def wander(plan: list[int]) -> None:
        for at in plan:
            await add[at](1)

    async def wanderers() -> None:
        await asyncio.gather(*map(wander, plans))

    figures |= await _timed("c1000x10k", 40_000, wanderers)
    return figures


async def two_processes(calls: Sequence[Call], pids: Sequence[int]) -> dict[str, float]:
    """Measure echo calls to another process: latency one at a time, then 64 and 1,024 in flight."""
    settle_memory()
    figures: dict[str, float] = {}
    for name, payload in PAYLOADS.items():
        for call in calls:  # grains are located and activated before the measurement
            await call(payload)
        laps = []
        for _ in range(1_000):
            started = now()
            await calls[0](payload)
            laps.append(now() - started)
        laps.sort()
        figures[f"{name}_p50_us"] = laps[len(laps) // 2] * 1e6
        figures[f"{name}_p99_us"] = laps[len(laps) * 99 // 100] * 1e6
        for in_flight in (64, 1024):
            total = max(4_000 if name == "100B" else 1_500, in_flight)
            left = iter(range(total))

            async def caller(call: Call, left: Any = left, payload: Any = payload) -> None:
                for _ in left:
                    await call(payload)

            started, cpu = now(), cpu_s(pids)
            await asyncio.gather(*(caller(calls[i % len(calls)]) for i in range(in_flight)))
            figures[f"{name}_c{in_flight}_calls_s"] = total / (now() - started)
            figures[f"{name}_c{in_flight}_cpu_us"] = (cpu_s(pids) - cpu) / total * 1e6
    return figures
