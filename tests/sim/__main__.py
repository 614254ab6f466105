"""`python -m tests.sim` simulates clusters with faults, in virtual time.

Exit codes: 0 success, 1 a seed broke a promise, 2 wrong arguments, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.sim.suites.runner import SUITES, SimOptions, run_sim

__all__ = ["main"]

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    sim = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate clusters.")
    sim.add_argument("--suite", choices=SUITES, action="append", help="default: every suite")
    sim.add_argument("--seed", type=positive, help="run just this seed: replays a failure")
    sim.add_argument("--seeds", type=positive, default=30, help="how many seeds per suite (30)")
    sim.add_argument("--start", type=positive, default=1, help="the first seed (1)")
    sim.add_argument("--jobs", type=positive, default=1, help="processes (1)")
    sim.add_argument("--json", action="store_true", help="print one JSON value and no more")
    return sim


def positive(given: str) -> int:
    """Parse a whole number above 0."""
    value = int(given)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites; return the exit code."""
    arguments = parser().parse_args(argv)
    options = SimOptions(
        suites=arguments.suite or tuple(SUITES),
        first_seed=arguments.seed or arguments.start,
        seeds=1 if arguments.seed else arguments.seeds,
        jobs=arguments.jobs,
        is_json=arguments.json,
    )
    try:
        return run_sim(options)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
