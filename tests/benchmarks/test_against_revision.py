"""`--against REV`: the runs of each tree, and the rows that are marked as worse. No test measures
time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.revision import (
    ROOT,
    WORKLOADS,
    best,
    checked_out,
    environment,
    is_revision,
    is_worse,
)

from benchmarks import __main__ as command

FIGURES = {"seq_us": 2.0, "b1_events_s": 100.0, "silo_100B_p50_us": 50.0}
needs_git = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="this folder is not a Git clone"
)


def measured(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, float], theirs: dict[str, float]
) -> list[tuple[str, bool]]:
    """Replace the child processes; return the subjects that ran, and whether they ran in this
    tree."""
    ran: list[tuple[str, bool]] = []

    def in_child(subject: str, tree: Path = ROOT, size: float = 1.0) -> dict[str, float]:
        ran.append((subject, tree == ROOT))
        return ours if tree == ROOT else theirs

    monkeypatch.setattr(command, "in_child", in_child)
    return ran


@needs_git
def test_rounds_are_interleaved_and_worse_rows_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = FIGURES | {"seq_us": 2.2, "b1_events_s": 94.0, "silo_100B_p50_us": 52.0}
    ran = measured(monkeypatch, slower, FIGURES)
    command.report(command.parts_of("activation", False), 2, ["HEAD"], as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert [is_ours for _, is_ours in ran] == [True, False, False, True]
    assert summary["worse_than"] == {"HEAD": ["seq_us", "b1_events_s"]}
    assert summary["ours_relative_to"]["HEAD"]["seq_us"]["median"] == pytest.approx(1.1)
    assert summary["ours_relative_to"]["HEAD"]["silo_100B_p50_us"]["median"] == pytest.approx(1.04)


@needs_git
def test_a_worse_row_is_marked_in_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, FIGURES | {"seq_us": 9.0}, FIGURES)
    command.report(command.parts_of("activation", False), 1, ["HEAD"], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("WORSE than HEAD")] == ["seq_us"]


@pytest.mark.parametrize(
    ("key", "ratio", "worse"),
    [
        ("seq_us", 1.04, False),
        ("seq_us", 1.06, True),
        ("seq_us", 0.5, False),
        ("bytes_per_grain", 1.06, True),
        ("activations_s", 0.96, False),
        ("activations_s", 0.94, True),
        ("activations_s", 2.0, False),
    ],
)
def test_rates_grow_and_times_shrink_when_things_get_better(
    key: str, ratio: float, worse: bool
) -> None:
    assert is_worse(key, {"best": ratio}) is worse


def test_noise_of_some_rounds_makes_no_row_worse() -> None:
    noisy, still = [2.0, 9.0, 2.1, 8.0, 7.0], [2.0, 2.1, 2.0, 2.2, 2.1]
    assert best("seq_us", noisy) == best("seq_us", still) == 2.0
    assert best("activations_s", [90.0, 50.0, 80.0]) == 90.0


@needs_git
@pytest.mark.spare
def test_a_revision_runs_its_code_on_our_workloads_and_leaves_nothing() -> None:
    assert is_revision("HEAD") and not is_revision("no-such-revision")
    with checked_out("HEAD") as tree:
        for name in WORKLOADS:
            assert (tree / "benchmarks" / name).read_text() == (
                ROOT / "benchmarks" / name
            ).read_text()
        code = "import millstream.runtime as it; print(it.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(tree),
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(done.stdout.strip()).is_relative_to(tree)
    assert not tree.exists()
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert str(tree) not in listed.stdout


def test_what_is_neither_peer_nor_revision_is_refused() -> None:
    listed = ", ".join([*command.PEERS, "none", "nor a revision of git"])
    with pytest.raises(SystemExit, match=f"--against orleans: not one of {listed}"):
        command.others("orleans", command.SUITES["calls"])


def test_to_what_a_peer_does_not_have_there_is_no_ratio() -> None:
    rounds = [{"ours": {"silo_us": 2.0, "all_us": 4.0}, "files": {"silo_us": 0.0, "all_us": 2.0}}]
    summary = command.summarise(rounds)
    assert {key: one["median"] for key, one in summary["ours_relative_to"]["files"].items()} == {
        "all_us": 2.0
    }
    assert summary["figures"]["files"]["silo_us"]["median"] == 0.0
