"""The example with flights as messages: no plane is in two places, and the proof detects it if one
is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[2] / "examples" / "flights_queue" / "main.py"
SMALL = ("--days", "6", "--planes", "20")
JUDGED = re.compile(r"^([a-z].*?) {2,}(yes|NO: \d+)$", re.M)


def run_small(*options: str) -> tuple[int, str]:
    """Run the example, and return its exit code and output."""
    command = [sys.executable, str(PROGRAM), *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "253 legs of 20 planes in 6 days" in done.stdout, done.stderr
    return done.returncode, done.stdout


def test_no_plane_is_in_two_places_though_the_queue_loses_its_silo() -> None:
    code, text = run_small("--kill")
    assert "killed silo-0" in text
    broken_off = re.search(r"^(\d+) leases .*, (\d+) of them ended early$", text, re.M)
    assert broken_off is not None
    leases, broken = map(int, broken_off.groups())
    assert leases == 253 + broken and broken > 0
    waited = re.search(r"^(\d+) legs waited for their plane", text, re.M)
    assert waited is not None and int(waited.group(1)) > 0
    judged = JUDGED.findall(text)
    assert len(judged) == 6 and {verdict for _, verdict in judged} == {"yes"}, text
    assert code == 0


def test_the_proof_fails_where_the_queue_is_not_exclusive() -> None:
    code, text = run_small("--simple")
    wrong = [what for what, verdict in JUDGED.findall(text) if verdict != "yes"]
    assert {what.partition(",")[0] for what in wrong} >= {"a plane had one leg at a time"}
    assert len(wrong) >= 2 and code == 1
