"""The generator example counts every arrival once while a silo joins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[2] / "examples" / "generator" / "main.py"


def test_each_event_counts_once_and_each_queue_has_one_reader() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r": 500 flights, .* late, right$", done.stdout, re.M)) == 8
    queues = re.findall(r"queue-\d", done.stdout)
    assert sorted(queues) == [f"queue-{number}" for number in range(8)]
    assert len(re.findall("^silo-. reads queue", done.stdout, re.M)) == 3
