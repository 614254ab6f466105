"""The main job, run as a user runs it: `python -m examples.flights`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.flights import job
from examples.flights.__main__ import main
from examples.flights.check import Figures, count_here

pytestmark = pytest.mark.real

COMMAND = (sys.executable, "-m", "examples.flights")
FIGURES = ("airports", "planes", "published", "worst_airports", "worst_planes")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_flights(*options: str, timeout_s: float = 110) -> dict[str, Any]:
    """Run the demo with `--json`, check that it succeeds, and return its report."""
    done = subprocess.run(
        [*COMMAND, "--json", *options],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
    )
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, f"stdout: {done.stdout}\nstderr: {done.stderr[-2000:]}"
    report: dict[str, Any] = json.loads(lines[0])
    assert report["differences"] == [], done.stderr[-2000:]
    assert (report["missing"], report["duplicated"], report["equal"]) == (0, 0, True)
    assert report["published"] == report["delivered"]
    assert done.returncode == 0
    return report


def test_flights_from_the_file_through_silos_in_one_process_are_equal() -> None:
    report = run_flights("--source", "csv", "--local", "--rows", "3000")
    assert report["published"] == 8949
    assert (report["airports"], report["planes"]) == (92, 1435)


def test_flights_from_the_file_through_three_processes_are_equal() -> None:
    run_flights("--source", "csv", "--rows", "3000")


@pytest.mark.slow
@pytest.mark.rotates
def test_flights_are_equal_though_a_silo_is_killed_on_the_way() -> None:
    run_flights("--source", "csv", "--silos", "4", "--kill", "--rows", "6000")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--durable", "--silos=3"])
def test_flights_are_equal_though_one_silo_after_the_other_is_killed_and_comes_back(
    mode: str,
) -> None:
    report = run_flights("--source", "csv", "--chaos", mode, "--rows", "6000")
    assert report["kills"] == 6
    assert 0 < report["still_max_s"] < 30 and 1 < report["back_max_s"] < 30


@pytest.mark.parametrize(("figure", "missing"), [("arr_delay", 0), ("arrivals", 1)])
def test_the_demo_fails_when_one_figure_differs_by_one(
    figure: str,
    missing: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def count_wrongly(rows_max: int | None) -> Figures:
        figures = count_here(rows_max)
        tally = figures.airports["IAH"]
        setattr(tally, figure, getattr(tally, figure) + 1)
        return figures

    monkeypatch.setattr(job, "count_here", count_wrongly)
    monkeypatch.setattr(job, "STUCK_S_MAX", 1.0)
    code = main(["--source", "csv", "--local", "--rows", "60", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 1 and not report["equal"]
    assert (report["missing"], report["duplicated"]) == (missing, 0)
    assert any(text.startswith("airport IAH: expected") for text in report["differences"])


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_flights_from_spark_are_equal_and_as_those_from_the_file() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    from_spark = run_flights("--source", "spark", "--rows", "3000", timeout_s=220)
    from_file = run_flights("--source", "csv", "--local", "--rows", "3000")
    assert [from_spark[name] for name in FIGURES] == [from_file[name] for name in FIGURES]


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def hear_interrupts() -> None:
    """Restore Ctrl-C: a shell turns it off for background jobs and their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_when_the_demo_is_ended(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [*COMMAND, "--source", "csv", "--work", str(tmp_path / "work")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(), preexec_fn=hear_interrupts
    ) as demo:
        assert demo.stdout is not None
        assert "processes of their own" in demo.stdout.readline()
        children = children_of(demo.pid)
        assert len(children) == 3
        demo.send_signal(number)
        assert demo.wait(timeout=60) == code
    for child in children:
        subprocess.run(["tail", f"--pid={child}", "-f", "/dev/null"], timeout=30, check=True)
