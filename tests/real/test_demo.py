"""The main job, run as a person would: `millstream demo flights`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.real


def run_flights(*options: str, timeout_s: float = 110) -> tuple[int, dict[str, Any]]:
    """Run the demo with --json; returns its exit code and report."""
    command = [sys.executable, "-m", "millstream.console", "demo", "flights", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, f"stdout: {done.stdout}\nstderr: {done.stderr[-2000:]}"
    return done.returncode, json.loads(lines[0])


def test_flights_from_the_file_through_silos_in_one_process_are_equal() -> None:
    code, report = run_flights("--source", "csv", "--local", "--rows", "3000")
    assert report["equal"] and report["missing"] == report["duplicated"] == 0
    assert report["published"] == report["delivered"] > 8000
    assert code == 0


def test_flights_from_the_file_through_three_processes_are_equal() -> None:
    code, report = run_flights("--source", "csv", "--rows", "5000")
    assert (code, report["equal"], report["missing"], report["duplicated"]) == (0, True, 0, 0)


def test_flights_are_equal_though_a_silo_is_killed_on_the_way() -> None:
    options = ("--source", "csv", "--silos", "4", "--kill", "--rows", "40000")
    code, report = run_flights(*options)
    assert report["differences"] == []
    assert (code, report["missing"], report["duplicated"]) == (0, 0, 0)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_flights_from_spark_are_equal() -> None:
    code, report = run_flights("--rows", "3000", timeout_s=220)
    assert (code, report["equal"], report["missing"], report["duplicated"]) == (0, True, 0, 0)
