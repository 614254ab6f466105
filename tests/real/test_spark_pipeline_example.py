"""The example of a declarative pipeline writes each row back once in two runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed (extra `pipelines`)")
pytestmark = [pytest.mark.spark_faults, pytest.mark.timeout(400)]
PROGRAM = Path(__file__).parents[2] / "examples" / "spark_pipeline" / "main.py"
WANTED = """run 1: 4 late flights
B6 to BOS: 60 min late
B6 to BOS: 80 min late
B6 to JFK: 60 min late
B6 to JFK: 80 min late
run 2: 4 late flights
AA to BOS: 60 min late
AA to BOS: 80 min late
AA to JFK: 60 min late
AA to JFK: 80 min late
"""


def test_each_late_flight_comes_back_once() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=390, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == WANTED
