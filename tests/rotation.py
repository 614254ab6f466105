"""Which long tests a run leaves out: each commit runs some of them, another commit runs others.

With `pytest --rotate N`, a run takes each N-th test of those that take turns in a file. The commit
says which one is the first. A test takes turns if it takes long and is one of many that are alike.
It takes long if the list of long tests names it, or if it is marked `slow`. It is one of many if it
has parameters, or if it is marked `rotates`, as are tests that plant a fault in a
simulation or run a benchmark. All other tests run for each commit.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable

from tests.imports import ROOT

SEED_WITHOUT_COMMIT = 1  # as in an archive


def seed_of_commit() -> int:
    """Another number for each commit, the same for each run of one."""
    if shutil.which("git") is None:
        return SEED_WITHOUT_COMMIT
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return SEED_WITHOUT_COMMIT if told.returncode else 1 + int(told.stdout[:7], 16)


def names_to_leave_out(names: Iterable[str], every: int, seed: int) -> frozenset[str]:
    """Of the tests that take turns, by their full names: all but each `every`-th of a file."""
    counts: Counter[str] = Counter()
    out = []
    for name in names:
        file = name.partition("::")[0]
        if (counts[file] + seed) % every:
            out.append(name)
        counts[file] += 1
    return frozenset(out)
