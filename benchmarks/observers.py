"""One grain that notifies 10,000 observers of a client.

The limit is the same work without grains: 10,000 methods of objects in this process, called in
tasks that begin a few at a time. Grain, gateway and client share this process and its event loop,
so the lag is that of all three together. Figures:

- `notify_ms`: how long the grain's turn that calls `notify` takes, with its call.
- `all_ms`: from the call until the last observer has run.
- `observer_us`: processor time for each observer.
- `observer_bytes`: memory for each observer, in the client and in the set.
- `lag_max_ms`: how late the event loop was meanwhile, looked at each millisecond.
- `busy_max_ms`: the most processor time between two looks. On a busy machine it is the better
  figure, because other programs delay the loop, too.
- `lag_limit_ms`: the limit for both, 20 ms.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.measure import memory_bytes, settle_memory
from millstream.runtime import PREFER_LOCAL, Grain, LocalCluster, Observer, ObserverSet, grain

__all__ = ["limit", "ours"]

OBSERVERS = 10_000
ROUNDS = 5
LOOK_S = 0.001
LAG_LIMIT_MS = 20.0
AT_ONCE = 50


class Viewer(Observer):
    """Counts the goals of all viewers."""

    seen = 0

    async def goal(self, scorer: str) -> None:
        Viewer.seen += 1


@grain(placement=PREFER_LOCAL)
class Match(Grain):
    """Notifies its viewers."""

    def __init__(self) -> None:
        self.viewers = ObserverSet(self, Viewer, expires_s=3600)

    async def watch(self, viewers: list[Viewer]) -> None:
        for viewer in viewers:
            self.viewers.add(viewer)

    async def score(self, scorer: str) -> None:
        self.viewers.notify(Viewer.goal, scorer)


async def ours(work: Path) -> dict[str, float]:
    """Observers of a client that a grain notifies."""
    async with LocalCluster(grains=[Match]) as cluster, AsyncExitStack() as stack:
        match = cluster.grain(Match, "final")
        await match.watch([])
        before = memory_bytes()
        refs = [
            await stack.enter_async_context(cluster.observe(Viewer())) for _ in range(OBSERVERS)
        ]
        await match.watch(refs)
        settle_memory()
        held = memory_bytes() - before
        found = await measure(lambda: match.score("Ada"))
        return {**found, "observer_bytes": held / OBSERVERS}


async def limit(work: Path) -> dict[str, float]:
    """Objects in this process, called in tasks."""
    viewers = [Viewer() for _ in range(OBSERVERS)]
    running: set[asyncio.Task[None]] = set()

    async def start_all() -> None:
        for first in range(0, OBSERVERS, AT_ONCE):
            for viewer in viewers[first : first + AT_ONCE]:
                task = asyncio.create_task(viewer.goal("Ada"))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0)

    return await measure(start_all)


async def measure(notify: Callable[[], Awaitable[None]]) -> dict[str, float]:
    """Notify all observers some times, and watch the event loop. Return medians of the rounds."""
    rounds: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        gc.collect()
        rounds.append(await notify_once(notify))
        await asyncio.sleep(0.2)
    middle = [sorted(figures)[ROUNDS // 2] for figures in zip(*rounds, strict=True)]
    return {
        "notify_ms": 1e3 * middle[0],
        "all_ms": 1e3 * middle[1],
        "observer_us": 1e6 * middle[2] / OBSERVERS,
        "lag_max_ms": 1e3 * middle[3],
        "busy_max_ms": 1e3 * middle[4],
        "lag_limit_ms": LAG_LIMIT_MS,
    }


async def notify_once(notify: Callable[[], Awaitable[None]]) -> tuple[float, ...]:
    """Return the seconds of the turn, of all calls and of the processor, and the greatest lags."""
    lags: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(lags))
    await asyncio.sleep(10 * LOOK_S)
    lags.clear()
    wanted = Viewer.seen + OBSERVERS
    began_s, cpu_s = time.monotonic(), time.process_time()
    await notify()
    turn_s = time.monotonic() - began_s
    while Viewer.seen < wanted:  # noqa: ASYNC110  no event per call, which would cost time
        await asyncio.sleep(LOOK_S)
    all_s, busy_s = time.monotonic() - began_s, time.process_time() - cpu_s
    watching.cancel()
    return turn_s, all_s, busy_s, max(lag for lag, _ in lags), max(busy for _, busy in lags)


async def watch(lags: list[tuple[float, float]]) -> None:
    """Record how late the event loop is, and the processor time since the look before."""
    loop = asyncio.get_running_loop()
    while True:
        due_s, cpu_s = loop.time() + LOOK_S, time.process_time()
        await asyncio.sleep(LOOK_S)
        lags.append((loop.time() - due_s, time.process_time() - cpu_s))
