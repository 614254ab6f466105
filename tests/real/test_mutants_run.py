"""The command that plants faults, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.mutants.planting import ROOT
from tests.mutants.rooms import ROOMS

pytestmark = pytest.mark.real


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the directory of the tests."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_faults_of_small_cores_are_planted_by_two_processes_and_seen() -> None:
    run = python("-m", "tests.mutants", "wire", "--sample", "2", "--jobs", "2")
    assert run.returncode == 0, run.stdout + run.stderr
    *_, first, second, third, total = (line.split() for line in run.stdout.splitlines())
    modules = [row[0].rpartition("/")[2] for row in (first, second, third)]
    assert modules == [path.rpartition("/")[2] for path in ROOMS["wire"]]
    assert total[0] == "all"
    planted, seen, equivalent = int(total[1]), int(total[2]), int(total[-1])
    assert planted + equivalent == 6
    assert seen == planted


def test_what_a_process_did_before_it_failed_is_kept() -> None:
    program = (
        "from tests.mutants.spreading import spread\n"
        "assert spread(40, 1, str) == spread(40, 3, str) == {n: str(n) for n in range(40)}\n"
        "done = spread(40, 2, lambda n: 100 // (n - 7))\n"
        "assert 7 not in done and len(done) == 39, done\n"
    )
    run = python("-c", program)
    assert run.returncode == 0, run.stderr
    assert "ZeroDivisionError" in run.stderr
