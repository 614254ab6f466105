"""The example of server-sent events: a browser that reconnects continues after its last event."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[2] / "examples" / "sse" / "main.py"


def prices_in(text: str) -> list[int]:
    return [json.loads(line)["cents"] for line in text.splitlines()]


def test_a_browser_that_reconnects_misses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    before, _, after = done.stdout.partition("the browser reconnects\n")
    first, second = (
        [json.loads(line)["cents"] for line in t.splitlines()] for t in (before, after)
    )
    assert len(first) == len(second) == 3
    assert first + second == list(range(first[0], first[0] + 6))
