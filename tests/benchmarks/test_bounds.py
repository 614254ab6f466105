"""Each row of `python -m benchmarks bounds` runs at a tiny size; its figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from benchmarks.bounds.table import PROGRAMS, ROWS
from benchmarks.revision import ROOT


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.rotates
@pytest.mark.timeout(300)
def test_every_row_runs() -> None:
    command = [sys.executable, "-m", "benchmarks", "bounds", "--size", "0.002", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["key"] for row in rows} == set(ROWS)
    for row in rows:
        assert row["figure"] is not None, row
        assert row["is_ok"] is (row["figure"] <= row["bound"])


def test_every_row_has_a_program() -> None:
    assert sorted(key for keys in PROGRAMS.values() for key in keys) == sorted(ROWS)
