"""The benchmarks run from the command line and print the figures of the performance page.

The tests do not judge the figures.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.rotates,
    pytest.mark.timeout(240),
]

PENDING = ("1k", "100k", "1M")
ROOT = Path(__file__).parents[2]


def measured(suite: str, timeout_s: float = 220.0, size: float = 1.0) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", suite, "--rounds", "1", "--against", "none"]
    command += ["--size", str(size)]
    done = subprocess.run(
        [*command, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.parametrize(
    ("suite", "keys"),
    [
        ("calls", {"seq_us", "dict_echo_us", "100B_c64_cpu_us", "silo_100B_p50_us"}),
        (
            "streams",
            {"b100_events_s", "b100_cpu_us", "b1_events_s", "paced_p50_us", "paced5k_p50_us"},
        ),
    ],
)
def test_a_suite_measures_ours_beside_the_limit(suite: str, keys: set[str]) -> None:
    is_beside_the_limit(measured(suite), keys)


@pytest.mark.timeout(400)
def test_ledgers_are_measured_alone_replicated_and_after_crashes() -> None:
    summary = measured("ledger", 380.0)
    is_beside_the_limit(summary, {"append_records_per_s", "p50_us", "p99_us"})
    figures = {key: found["median"] for key, found in summary["figures"]["ours"].items()}
    assert all(figure > 0 for figure in figures.values())
    for name in ("replicated", "one_late", "one_late_all", "tail", "tail_idle", "durable_paced"):
        assert figures[f"{name}_p50_us"] <= figures[f"{name}_p99_us"]
    # an ack quorum of 3 of 3 waits for the late bookie
    assert figures["one_late_all_p50_us"] >= 50_000
    rates = {"replicated_records_per_s", "catch_up_records_per_s", "durable100_events_s"}
    times = {"takeover_4MB_ms", "recover_1MB_ms", "recover_100MB_ms", "open_100MB_ms"}
    assert rates | times <= set(figures)


def test_priority_queues_are_measured_in_memory_stored_and_under_load() -> None:
    summary = measured("priority", size=0.01)
    is_beside_the_limit(summary, {"1k_dequeue_us", "1M_dequeue_us", "1M_dequeue_p99_us"})
    figures = summary["figures"]["ours"]
    laps = {f"{at}_{what}_p99_us" for at in PENDING for what in ("enqueue", "complete")}
    assert laps | {f"{at}_rss_mb" for at in PENDING} <= set(figures)
    stores = {"memory", "embedded"} | ({"redis"} if shutil.which("redis-server") else set())
    for name in stores:
        rows = [f"{at}_{what}" for at in PENDING for what in ("enqueue", "dequeue", "complete")]
        rows += ["filtered_dequeue", "exclusive_held_polls", "empty_polls64"]
        assert {f"{name}_{row}_s" for row in rows} <= set(figures)
        for row in (*rows, "exclusive_held_dequeue"):
            p50, p99 = (figures[f"{name}_{row}_p{share}_us"]["median"] for share in (50, 99))
            assert 0 < p50 <= p99
    for row in ("published_polls", "published_enqueues", "published_burst", "handle_polls"):
        assert 0 < figures[f"{row}_p50_us"]["median"] <= figures[f"{row}_p99_us"]["median"]
    by_shape, by_looking = (figures[f"filtered_by_{by}_us"] for by in ("shape", "looking"))
    assert by_shape["median"] < by_looking["median"]


def is_beside_the_limit(summary: dict[str, Any], keys: set[str]) -> None:
    """Check that both sides have the figures, and that each ratio fits its figures."""
    assert keys <= set(summary["figures"]["ours"])
    assert keys <= set(summary["ours_relative_to"]["limit"])
    for key in keys:
        ours = summary["figures"]["ours"][key]["median"]
        limit = summary["figures"]["limit"][key.removeprefix("silo_")]["median"]
        assert ours > 0
        assert summary["ours_relative_to"]["limit"][key]["median"] == pytest.approx(ours / limit)


def test_activation_is_measured() -> None:
    figures = measured("activation")["figures"]["ours"]
    assert set(figures) == {"activations_s", "first_calls_s", "bytes_per_grain"}


def test_detection_is_measured() -> None:
    figures = measured("detection")["figures"]["ours"]
    faults = [
        f"{fault}_{speed}" for fault in ("stopped", "isolated") for speed in ("default", "patient")
    ]
    assert set(figures) == {f"{fault}_{what}_s" for fault in faults for what in ("p50", "max")}
    for fault in faults:
        assert 0 < figures[f"{fault}_p50_s"]["median"] <= figures[f"{fault}_max_s"]["median"]
    assert figures["stopped_default_max_s"]["median"] < figures["stopped_patient_p50_s"]["median"]


def test_hand_overs_are_measured() -> None:
    figures = measured("handover")["figures"]["ours"]
    for kind in ("brief", "long"):
        assert figures[f"{kind}_lost"]["median"] == 0
        assert figures[f"{kind}_moves"]["median"] >= 20
        assert figures[f"{kind}_streams_moved"]["median"] > figures[f"{kind}_interrupted"]["median"]
        assert figures[f"{kind}_moved_pause_max_ms"]["median"] > 0


def test_paths_are_counted() -> None:
    figures = measured("path")["figures"]["ours"]
    rows = {"direct", "suspending", "contended", "event", "remote_caller", "remote_callee"}
    rows.add("remote")
    assert set(figures) == {f"{row}_{what}" for row in rows for what in ("frames", "modules")}
    assert figures["direct_modules"]["median"] == 1  # only the stub's module
    sides = figures["remote_caller_frames"]["median"] + figures["remote_callee_frames"]["median"]
    assert figures["remote_frames"]["median"] == pytest.approx(sides)


def test_a_ledger_under_kills_is_counted() -> None:
    command = [sys.executable, "-m", "benchmarks", "ledger", "--chaos", "--records", "2000"]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["lost"], figures["doubled"], figures["reordered"]) == (0, 0, 0)
    assert figures["kills"] >= 3 and figures["records"] >= 2000
    assert done.stderr.count("SIGKILL") == figures["kills"]


def test_an_unknown_peer_is_named() -> None:
    command = [sys.executable, "-m", "benchmarks", "calls", "--against", "orleans"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said, _, known = done.stderr.partition("--against orleans: not one of ")
    peers = known.partition(", nor a revision")[0].split(", ")
    assert not said and {"redis", "redis_streams", "none"} <= set(peers)


def test_overload_is_measured_with_each_set_of_membership_options() -> None:
    command = [sys.executable, "-m", "benchmarks", "detection", "--overload", "5", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert set(figures) == {"default", "patient"}
    for found in figures.values():
        assert found["evicted"] == 0 and found["calls"] > 0
