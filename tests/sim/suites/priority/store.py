"""The store of the suite: in memory, shared by all silos.

Commits are late or fail. The store is unavailable now and then, like a server that restarts. Its
clock is set forward and back.
"""

from __future__ import annotations

import asyncio
from contextvars import Context

from millstream.providers.priority import MemoryStore
from millstream.runtime import Env, StorageUnavailable
from millstream.runtime.testing import Random, Simulation, make_random

__all__ = ["SteppedClock", "TroubledCommits", "make_store", "restart_store", "step_clock"]

HOST = "queues"
STEP_MAX_S = 5.0
AWAY_MAX_S = 4.0


class SteppedClock(Env):
    """The wall clock of the store's host, which can be set. Its contexts survive crashes of
    silos."""

    __slots__ = ("_inner", "step_s")

    def __init__(self, inner: Env) -> None:
        super().__init__(0)
        self._inner = inner
        self.step_s = 0.0

    def wall_s(self) -> float:
        return self._inner.wall_s() + self.step_s

    def new_context(self) -> Context:
        return self._inner.new_context()


class TroubledCommits:
    """The faults of commits, until the faults end.

    Args:
        fails: the share of commits that fail, before or after they are stored.
    """

    def __init__(self, rng: Random, fails: float) -> None:
        self._rng = rng
        self._fails = fails
        self.is_over = False
        self.is_away = False
        self.failed = 0

    async def before(self, queue: str, /) -> None:
        """Delay or fail a commit before it is stored."""
        if self.is_over:
            return
        roll = self._rng.random()
        if roll < 0.3:
            await asyncio.sleep(self._rng.uniform(0.0, 2.0 if roll < 0.01 else 0.03))
        elif self.is_away:
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))  # refused, or after a while
        self._fail(queue)

    async def after(self, queue: str, /) -> None:
        """Fail a stored commit, so that its owner may not learn the result."""
        if not self.is_over:
            self._fail(queue)

    def _fail(self, queue: str) -> None:
        if self._rng.random() < self._fails or self.is_away:
            self.failed += 1
            raise StorageUnavailable(f"{queue}: the store was away")


def make_store(
    simulation: Simulation, fails: float
) -> tuple[MemoryStore, SteppedClock, TroubledCommits]:
    """Make a store for a simulation, with its clock and its faults."""
    clock = SteppedClock(simulation.env(simulation.host(HOST)))
    commits = TroubledCommits(make_random(simulation.seed, "commits"), fails)
    return MemoryStore(clock, events=True, faults=commits), clock, commits


async def step_clock(simulation: Simulation, clock: SteppedClock, commits: TroubledCommits) -> int:
    """Set the clock now and then until the faults end; return how often."""
    rng, steps = make_random(simulation.seed, "clock"), 0
    while not commits.is_over:
        await asyncio.sleep(rng.uniform(1.0, 20.0))
        clock.step_s += rng.uniform(-STEP_MAX_S, STEP_MAX_S)
        steps += 1
    return steps


async def restart_store(simulation: Simulation, commits: TroubledCommits) -> int:
    """In four of ten seeds, make the store unavailable now and then, like a server that restarts.
    Commits under way are stored or not; other commits fail, and no queue can be opened. Return how
    often that happened."""
    rng, restarts = make_random(simulation.seed, "restarts"), 0
    if rng.random() >= 0.4:
        return 0
    while not commits.is_over:
        await asyncio.sleep(rng.uniform(1.0, 15.0))
        commits.is_away = True
        await asyncio.sleep(rng.uniform(0.1, AWAY_MAX_S))
        commits.is_away = False
        restarts += 1
    return restarts
