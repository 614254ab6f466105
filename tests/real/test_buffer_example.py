"""The example of the buffer queue stores every span, although its store fails now and then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[2] / "examples" / "buffer_queue" / "main.py"


def test_the_example_stores_all_spans() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stored 20000 of 20000 spans" in done.stdout
    again = re.search(r"(\d+) batches were delivered again", done.stdout)
    assert again is not None and int(again.group(1)) > 0
