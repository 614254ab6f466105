"""Durable jobs of the suite `calls`: programs schedule, cancel and wait for jobs under faults.

Owns: `JobNotes`, which judges jobs, and the actions of programs. The jobs call the accounts of the
suite. The store of the queues has a clock that is set forward and back, and its commits fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.sim.suites.priority.store import make_store
from tests.sim.suites.run.record import Run

from millstream.providers.priority import PriorityQueues
from millstream.providers.priority.jobs import (
    JOB_ID_HEADER,
    Job,
    JobCancelled,
    JobOptions,
    JobRetry,
    Jobs,
    JobState,
    JobTimeout,
    job_of,
    schedule,
)
from millstream.runtime import MillstreamError
from millstream.runtime.testing import Random, make_random

__all__ = ["JobNotes"]

LEASE_S = 3.0
STEP_MAX_S = 3.0
EARLY_S = 0.002
LATE_S = 3.0  # after the repair: the clocks of the queues and of the programs differ
WITHIN_S = 90.0
RETRY = JobRetry(attempts=1_000, first_delay_s=0.5, delay_max_s=2.0, refused_delay_s=1.0)
OPTIONS = JobOptions(lease_s=LEASE_S, kept_s=3_600, drain_s=2.0)
WAIT_S = 1.0
Charge = Callable[[str], Coroutine[Any, Any, str]]


@dataclass
class Known:
    """A job, as far as the programs know.

    `due_s`: the due time by the loop's clock. `cancelled_s`: when a cancellation was confirmed
    although no attempt had begun.
    """

    job: Job[str] | None
    due_s: float
    ran_s: list[float] = field(default_factory=list)
    results: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    is_cancelled: bool = False
    cancelled_s: float | None = None


class JobNotes:
    """The jobs of a run, and the parts of its cluster.

    Attributes:
        is_calm: the faults have ended, so a job runs once and in time.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rng = run.simulation.rng
        fails = self._rng.choice((0.0, 0.0, 0.01))
        self._store, self._clock, self.commits = make_store(run.simulation, fails)
        env = run.simulation.env(run.simulation.host("client"))
        self._started_s = env.wall_s() - run.simulation.loop.time()
        self._known: dict[str, Known] = {}
        self._stepped_s = 0.0  # the sum of the steps forward
        self.is_calm = False

    @property
    def parts(self) -> Mapping[str, Callable[[], Any]]:
        """The parts of each silo."""
        return {
            "priority": lambda: PriorityQueues(self._store),
            "jobs": lambda: Jobs(retry=RETRY, options=OPTIONS),
        }

    def _now_s(self) -> float:
        return self._run.simulation.loop.time()

    async def step_clock(self) -> None:
        """Set the clock of the queues now and then until the faults end, in three of ten seeds."""
        rng = make_random(self._run.simulation.seed, "clock of jobs")
        is_stepped = rng.random() < 0.3
        while is_stepped and not self.commits.is_over:
            await asyncio.sleep(rng.uniform(1.0, 15.0))
            step_s = rng.uniform(-STEP_MAX_S, STEP_MAX_S)
            self._clock.step_s += step_s
            self._stepped_s += max(0.0, step_s)
            self._run.figures["clock steps"] += 1

    # -- programs

    async def act(self, rng: Random, runtime: Any, op: str, charge: Charge) -> None:
        """Schedule, cancel or wait for a job, as a program does."""
        roll = rng.random()
        try:
            if roll < 0.6 or not self._known:
                await self.schedule(rng, runtime, op, charge)
            elif roll < 0.8:
                known = rng.choice(list(self._known.values())[-20:])
                await self._cancel(known, runtime, charge)
            else:
                await self._wait(rng.choice(list(self._known.values())), runtime, charge)
        except MillstreamError as error:
            self._run.figures[f"jobs: {type(error).__name__}"] += 1

    async def schedule(self, rng: Random, runtime: Any, op: str, charge: Charge) -> None:
        """Schedule a job under a name that no other job has."""
        delay_s = rng.choice((0.0, rng.uniform(0.0, 8.0)))
        known = self._known[op] = Known(None, self._now_s() + delay_s)
        due: datetime | timedelta = timedelta(seconds=delay_s)
        if rng.random() < 0.5:
            due = datetime.fromtimestamp(self._started_s + known.due_s, UTC)
        known.job = await schedule(runtime, due, charge, op)
        self._run.figures["jobs"] += 1

    async def _cancel(self, known: Known, runtime: Any, charge: Charge) -> None:
        if known.job is None:
            return
        job = job_of(runtime, known.job.id, charge)
        if await job.cancel():
            cancelled_s, known.is_cancelled = self._now_s(), True
            self._run.figures["jobs cancelled"] += 1
            if (await job.status()).attempts == 0:
                known.cancelled_s = cancelled_s

    async def _wait(self, known: Known, runtime: Any, charge: Charge) -> None:
        if known.job is not None:
            try:
                known.told.add(await job_of(runtime, known.job.id, charge).result(WAIT_S))
                self._run.figures["job results"] += 1
            except (JobTimeout, JobCancelled):
                pass

    # -- the account

    def on_ran(self, op: str, headers: Mapping[str, str]) -> str:
        """Judge the start of an attempt, and return its result."""
        known, now_s = self._known[op], self._now_s()
        self._run.figures["job runs"] += 1
        early_s = known.due_s - now_s
        if early_s > self._stepped_s + EARLY_S:
            self._run.on_violated(f"job {op}: {early_s:.3f} s early")
        if known.cancelled_s is not None and now_s > known.cancelled_s:
            self._run.on_violated(f"job {op}: {now_s - known.cancelled_s:.3f} s after its cancel")
        if known.job is not None and headers.get(JOB_ID_HEADER) != known.job.id:
            self._run.on_violated(f"job {op}: it ran as {headers.get(JOB_ID_HEADER)}")
        if self.is_calm and (known.ran_s or -early_s > LATE_S):
            self._run.on_violated(f"job {op}: {-early_s:.3f} s late or twice without a fault")
        known.ran_s.append(now_s)
        result = f"{op}/{len(known.ran_s)}"
        known.results.add(result)
        return result

    # -- the end

    async def finish(self, runtime: Any, charges: Sequence[Charge]) -> None:
        """Wait for all jobs, and schedule a few without faults."""
        unfinished = ""
        try:
            async with asyncio.timeout(WITHIN_S):
                for op, known in self._known.items():
                    unfinished = op
                    if known.job is not None and not known.is_cancelled:
                        await self._finish(known, runtime, charges[0])
        except (MillstreamError, TimeoutError) as error:
            self._run.on_violated(f"job {unfinished} is not finished after the repair: {error!r}")
            return
        self.is_calm = True
        for number, charge in enumerate(charges):
            op, delay_s = f"calm:{number}", number / 4
            known = self._known[op] = Known(None, self._now_s() + delay_s)
            known.job = await schedule(runtime, timedelta(seconds=delay_s), charge, op)
        for number in range(len(charges)):
            await self._finish(self._known[f"calm:{number}"], runtime, charges[0])

    async def _finish(self, known: Known, runtime: Any, charge: Charge) -> None:
        assert known.job is not None
        job = job_of(runtime, known.job.id, charge)
        try:
            known.told.add(await job.result(WITHIN_S))
        except JobCancelled:
            known.is_cancelled = True  # its cancellation was not confirmed to the program
            return
        if (await job.status()).state is not JobState.SUCCEEDED:
            self._run.on_violated(f"job {job.id}: a result, and no success")

    def check(self) -> list[str]:
        """Check that each job ran, and that its result is that of one of its runs."""
        found = []
        for op, known in self._known.items():
            if known.told - known.results:
                found.append(f"job {op}: its result {known.told} is of no run")
            if len(known.told) > 1:
                found.append(f"job {op}: several results: {known.told}")
            if known.job is not None and not known.is_cancelled and not known.ran_s:
                found.append(f"job {op} never ran")
        return found
