"""Chooses the long tests that a run leaves out: each commit runs some, another commit others.

With `pytest --rotate N`, a run takes each N-th of the tests that take turns in a file. The commit
decides the first one. A test takes turns if it takes long and is one of many similar tests.

- A test takes long if the list of long tests names it, or if it is marked `slow`.
- It is one of many if it has parameters, or if it is marked `rotates`, like tests that plant a
  fault in a simulation or run a benchmark.

All other tests run for each commit.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable

from tests.imports import ROOT

SEED_WITHOUT_COMMIT = 1  # for a source archive


def seed_of_commit() -> int:
    """Return a number that depends on the commit only."""
    if shutil.which("git") is None:
        return SEED_WITHOUT_COMMIT
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return SEED_WITHOUT_COMMIT if told.returncode else 1 + int(told.stdout[:7], 16)


def names_to_leave_out(names: Iterable[str], every: int, seed: int) -> frozenset[str]:
    """Return the tests that a run leaves out: all except each `every`-th test of a file."""
    counts: Counter[str] = Counter()
    out = []
    for name in names:
        file = name.partition("::")[0]
        if (counts[file] + seed) % every:
            out.append(name)
        counts[file] += 1
    return frozenset(out)
