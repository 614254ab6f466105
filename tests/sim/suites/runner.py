"""Runs suites over many seeds, and reports the results.

Owns: the list of suites, the outcome of one seed, the summary. Invariants: a failing seed is
reported at once, with the command that repeats it. The summary counts events of the runs, so that a
suite without events is seen.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.sim.suites.ledger.suite import ledger
from tests.sim.suites.memory.suite import memory
from tests.sim.suites.priority.suite import priority
from tests.sim.suites.streams.suite import streams

from millstream.runtime import Env
from millstream.runtime.testing import Simulation, SimulationFailed, run

from .calls_suite import calls
from .membership_suite import membership
from .pipeline_suite import pipeline

__all__ = [
    "SUITES",
    "SeedOutcome",
    "SimOptions",
    "find_outcome",
    "is_noticed",
    "run_seed",
    "run_sim",
]

SUITES: dict[str, Callable[[Simulation], Coroutine[Any, Any, Counter[str]]]] = {
    "membership": membership,
    "calls": calls,
    "streams": streams,
    "memory": memory,
    "pipeline": pipeline,
    "ledger": ledger,
    "priority": priority,
}
VIRTUAL_S_MAX = 600.0
JUDGED_SEEDS_MAX = 40
"""Seeds that run until a planted fault is noticed.

Any change of the code changes the history of a seed. A fault that only a fourth of the seeds shows
is missed by three fixed seeds after almost every second change."""
FAILURES_SHOWN = 3
PROGRESS_EVERY_S = 60.0
"""A longer run reports its progress at this interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The options of `python -m tests.sim`."""

    suites: Sequence[str] = tuple(SUITES)
    first_seed: int = 1
    seeds: int = 30
    jobs: int = 1
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The result of one seed of one suite; `failure` is empty if all promises were kept."""

    suite: str
    seed: int
    virtual_s: float
    trace_hash: str
    figures: dict[str, int]
    failure: str = ""


def run_seed(suite: str, seed: int) -> SeedOutcome:
    """Run one seed of a suite in this process."""
    replay = f"python -m tests.sim --suite {suite} --seed {seed}"
    try:
        outcome = run(SUITES[suite], seed, max_virtual_s=VIRTUAL_S_MAX, replay=replay)
    except SimulationFailed as error:
        return SeedOutcome(suite, seed, 0.0, "", {}, error.report)
    return SeedOutcome(suite, seed, outcome.virtual_s, outcome.trace_hash, dict(outcome.result))


def find_outcome(
    suite: str, has: Callable[[SeedOutcome], bool], first: Iterable[int] = ()
) -> SeedOutcome:
    """Run seeds until an outcome without a failure has a property, and return this outcome.

    For `first`, see `is_noticed`. Raises AssertionError if a seed fails, or if none has the
    property.
    """
    for seed in (*first, *range(1, JUDGED_SEEDS_MAX + 1)):
        outcome = run_seed(suite, seed)
        assert not outcome.failure, outcome.failure
        if has(outcome):
            return outcome
    raise AssertionError(f"no seed up to {JUDGED_SEEDS_MAX} of {suite} has the property")


def is_noticed(suite: str, *texts: str, first: Iterable[int] = ()) -> bool:
    """Return whether a seed fails with all texts; run seeds until one does.

    `first` are seeds that showed the fault in an earlier form of the code: they save time.
    """
    failures = (run_seed(suite, seed).failure for seed in (*first, *range(1, JUDGED_SEEDS_MAX + 1)))
    return any(failure and all(text in failure for text in texts) for failure in failures)


def run_sim(options: SimOptions) -> int:
    """Run each seed of each suite; return the exit code."""
    level = logging.getLogger("millstream").level
    _be_quiet()
    try:
        reports = [_run_suite(suite, options) for suite in options.suites]
    finally:
        logging.getLogger("millstream").setLevel(level)
    if options.is_json:
        print(json.dumps(reports))
    return 1 if any(report["failed"] for report in reports) else 0


def _run_suite(suite: str, options: SimOptions) -> dict[str, Any]:
    now_s = Env().wall_s
    started_s = now_s()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    outcomes = list(_report(suite, len(seeds), _outcomes(suite, seeds, options.jobs), now_s))
    report = summarise(suite, seeds, outcomes, now_s() - started_s)
    if not options.is_json:
        print("\n".join(lines_of(report)), flush=True)
    return report


def _report(
    suite: str, count: int, outcomes: Iterable[SeedOutcome], now_s: Callable[[], float]
) -> Iterator[SeedOutcome]:
    """Yield the outcomes, and print failures and progress to standard error meanwhile."""
    started_s = told_s = now_s()
    failed = 0
    for done, outcome in enumerate(outcomes, 1):
        failed += bool(outcome.failure)
        if outcome.failure and failed <= FAILURES_SHOWN:
            print(f"\n{outcome.failure}", file=sys.stderr, flush=True)
        at_s = now_s()
        if at_s - told_s >= PROGRESS_EVERY_S and done < count:
            told_s = at_s
            verdict = f"{failed} failed" if failed else "no failure"
            text = f"{suite}: {done:,} of {count:,} seeds in {told_s - started_s:.0f} s, {verdict}"
            print(text, file=sys.stderr, flush=True)
        yield outcome


def _outcomes(suite: str, seeds: Iterable[int], jobs: int) -> Iterator[SeedOutcome]:
    if jobs == 1:
        yield from (run_seed(suite, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(min(jobs, os.cpu_count() or 1), initializer=_be_quiet) as pool:
        yield from pool.map(partial(run_seed, suite), seeds, chunksize=4)


def _be_quiet() -> None:
    """Hide the product's warnings, because the faults are intended."""
    logging.getLogger("millstream").setLevel(logging.CRITICAL)


def summarise(
    suite: str, seeds: range, outcomes: Sequence[SeedOutcome], wall_s: float
) -> dict[str, Any]:
    """Summarise as plain values: seeds, hours, failures, and sums of the figures."""
    figures: Counter[str] = Counter()
    slowest: dict[str, int] = {}
    for outcome in outcomes:
        for name, value in outcome.figures.items():
            if name.endswith(" ms"):
                slowest[name] = max(slowest.get(name, 0), value)
            else:
                figures[name] += value
    return {
        "suite": suite,
        "seeds": [seeds.start, seeds.stop - 1],
        "count": len(outcomes),
        "failed": [outcome.seed for outcome in outcomes if outcome.failure],
        "virtual_hours": round(sum(outcome.virtual_s for outcome in outcomes) / 3600, 2),
        "wall_s": round(wall_s, 1),
        "figures": dict(figures),
        "slowest_ms": slowest,
    }


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report for people."""
    first, last = report["seeds"]
    failed = ", ".join(map(str, report["failed"]))
    verdict = f"FAILED: {failed}" if failed else "no failure"
    yield (
        f"{report['suite']}: {report['count']} seeds ({first} to {last}), "
        f"{report['virtual_hours']} simulated hours in {report['wall_s']} s: {verdict}"
    )
    happened = [f"{value:,} {name}" for name, value in report["figures"].items()]
    for name, ms in report["slowest_ms"].items():
        happened.append(f"{name.removesuffix(' ms')} at most {ms / 1000:.1f} s")
    yield f"  {', '.join(happened)}"
