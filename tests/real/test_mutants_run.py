"""The command that plants faults, run as a person would."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.mutants.planting import ROOT

pytestmark = pytest.mark.real


def test_faults_of_a_small_core_are_planted_and_seen() -> None:
    command = [sys.executable, "-m", "tests.mutants", "wire", "--only", "framing", "--sample", "6"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    total = run.stdout.splitlines()[-1].split()
    assert total[0] == "all"
    planted, seen, equivalent = int(total[1]), int(total[2]), int(total[-1])
    assert planted + equivalent == 6
    assert seen == planted
