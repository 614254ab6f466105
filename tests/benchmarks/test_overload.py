"""The counts of `--overload` agree with the table and the logs of the silos."""

from __future__ import annotations

from pathlib import Path

from benchmarks.overload import Observed

LOG = """
INFO millstream.probe b:1@1: probe: silent: no answer within 1.25 s
INFO millstream.probe b:1@1: probe: unknown: no answer within 1.25 s
INFO millstream.probe b:1@1: probe: silent: no answer within 1.25 s
WARNING millstream.loop a:1@1: the event loop runs again after 1.4 s
WARNING millstream.loop a:1@1: the event loop runs again after 2.5 s
"""


def test_figures_are_those_of_all_logs_and_calls(tmp_path: Path) -> None:
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    logs[0].write_text(LOG)
    logs[1].write_text("INFO millstream.probe a:1@1: probe: silent: refused\n")
    observed = Observed(
        evicted={"b:1@1"},
        votes={("b:1@1", "a:1@1", 1.0), ("b:1@1", "a:1@1", 2.0)},
        took_ms=[float(number) for number in range(100, 0, -1)],
        failed=3,
    )
    assert observed.figures(logs) == {
        "evicted": 1,
        "votes": 2,
        "probes_silent": 3,
        "probes_unknown": 1,
        "lag_max_s": 2.5,
        "calls": 100,
        "failed": 3,
        "p50_ms": 50.5,
        "p99_ms": 100.0,
        "max_ms": 100.0,
    }


def test_a_cluster_that_was_never_called_has_figures(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text("")
    assert set(Observed().figures([tmp_path / "0.log"]).values()) == {0}
