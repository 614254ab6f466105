"""Simulations of whole clusters: some seeds for each suite, other seeds for each commit."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.imports import FOLDERS, ROOT
from tests.rotation import seed_of_commit
from tests.sim.__main__ import main
from tests.sim.suites import runner
from tests.sim.suites.runner import SUITES, SeedOutcome, run_seed

from millstream.runtime import Env

SEEDS = 8
START = int(os.environ.get("MILLSTREAM_SIM_START", 0)) or seed_of_commit()
# `make test-fast` runs the first seed, too, with two suites, which depend on the commit
LAST = START + SEEDS - 1
SEED_RANGE = [
    pytest.param(seed, marks=pytest.mark.slow if seed > START else ())
    for seed in range(START, LAST)
]
SHIFT = START % 3
SUITE_NAMES = [*list(SUITES)[SHIFT:], *list(SUITES)[:SHIFT]]


@pytest.mark.one_in(9)
@pytest.mark.every_commit
@pytest.mark.parametrize("seed", SEED_RANGE)
@pytest.mark.parametrize("suite", SUITE_NAMES)
def test_a_cluster_keeps_its_promises_under_trouble(suite: str, seed: int) -> None:
    outcome = run_seed(suite, seed)
    assert not outcome.failure, f"start seed {START}\n{outcome.failure}"


def copy_of_tree(to: Path) -> str:
    """Copy the source folders and the suites to another place; return the value for PYTHONPATH."""
    for folder in (*FOLDERS, "tests/sim/suites"):
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return os.pathsep.join([*(str(to / folder) for folder in FOLDERS), str(to)])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    return copy_of_tree(tmp_path_factory.mktemp("tree") / "at-a-place" / ("far" * 30))


@pytest.mark.slow
@pytest.mark.rotates
@pytest.mark.parametrize("seed", [LAST])
@pytest.mark.parametrize("suite", SUITE_NAMES)
def test_a_seed_gives_the_same_run_wherever_the_tree_lies_and_whatever_the_hash_seed(
    suite: str, seed: int, tree: str
) -> None:
    """Compare a run in this process with a run in a new process on a copy of the tree."""
    outcome = run_seed(suite, seed)
    assert not outcome.failure, f"start seed {START}\n{outcome.failure}"
    program = (
        "import sys; from tests.sim.suites.runner import run_seed; "
        "print(run_seed(sys.argv[1], int(sys.argv[2])).trace_hash)"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-P", "-c", program, suite, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(other_hash_seed()), "PYTHONPATH": tree},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == outcome.trace_hash, f"seed {seed}"


def other_hash_seed() -> int:
    """Return a hash seed that differs from the one of this process."""
    return 2 if os.environ.get("PYTHONHASHSEED") == "1" else 1


def test_the_command_runs_one_seed_and_tells_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--suite", "calls", "--seed", "9", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["suite"] == "calls"
    assert report["count"] == 1 and report["failed"] == []
    assert report["figures"]["answered"] > 100 and "crashes" in report["figures"]


def seeds_with_failures(suite: str, seed: int) -> SeedOutcome:
    """Let each second seed fail."""
    return SeedOutcome(suite, seed, 1.0, "", {}, "" if seed % 2 else f"report of {seed}")


def test_a_long_run_says_how_far_it_is_and_shows_the_first_failures_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(1000, 25)  # seconds at each reading
    monkeypatch.setattr(Env, "wall_s", lambda self: float(next(clock)))
    monkeypatch.setattr(runner, "run_seed", seeds_with_failures)
    assert main(["--suite", "calls", "--seeds", "11"]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("calls: 11 seeds (1 to 11)")
    assert "FAILED: 2, 4, 6, 8, 10" in told.out
    assert told.err.split("\n") == [
        *("", "report of 2", "calls: 3 of 11 seeds in 75 s, 1 failed"),
        *("", "report of 4", "", "report of 6", "calls: 6 of 11 seeds in 150 s, 3 failed"),
        *("calls: 9 of 11 seeds in 225 s, 4 failed", ""),
    ]


@pytest.mark.spare
def test_a_broken_promise_fails_the_run_and_prints_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from millstream.runtime.cluster.directory.partition import Partition

    # A faulty directory: each silo registers an activation of its own.
    monkeypatch.setattr(Partition, "register", lambda self, kind, key, entry, is_dead: entry)
    assert main(["--suite", "calls", "--seed", "9"]) == 1
    told = capsys.readouterr()
    assert "FAILED: 9" in told.out
    assert "replay: python -m tests.sim --suite calls --seed 9" in told.err
    assert "activated in" in told.err
