"""The rows: a figure, its bound, and whether the running code keeps it.

This module owns `ROWS`, `measure` and `report`; `stops`, `memory` and `queues` measure. Each
program runs in a new process. A row is printed whether or not it is within its bound, and no row is
repeated until it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import NamedTuple

__all__ = ["PROGRAMS", "ROWS", "Figure", "Row", "measure", "report"]

MB = 1_000_000


class Row(NamedTuple):
    """One figure and its upper bound."""

    key: str
    unit: str
    bound: float
    what: str


PROGRAMS = {
    "stops.plain": ("plain_stop_ms",),
    "stops.read_only": ("read_only_stop_ms",),
    "stops.reentrant": ("reentrant_stop_ms",),
    "stops.one_way_local": ("one_way_stop_ms", "one_way_lost"),
    "stops.one_way_remote": ("one_way_remote_stop_ms", "one_way_remote_bytes"),
    "stops.interleaving": ("interleaving_us",),
    "stops.idle_collection": ("idle_collection_stop_ms",),
    "stops.recovery": ("recovery_stop_ms",),
    "stops.runner_tasks": ("runner_tasks_left",),
    "stops.unknown_type": ("unknown_type_stop_ms",),
    "stops.deadline_sweep": ("deadline_sweep_percent",),
    "stops.wide_stream": ("wide_stream_stop_ms",),
    "stops.options_per_header": ("options_per_header_us",),
    "memory.never_reads": ("never_reads_bytes",),
    "memory.frozen_peer": ("frozen_peer_bytes", "frozen_peer_cancelled_bytes"),
    "memory.never_greets": ("never_greets_bytes",),
    "memory.partial_frames": ("partial_frames_bytes",),
    "memory.handled_events": ("handled_events_bytes",),
    "memory.error_text": ("error_text_bytes",),
    "queues.idle": ("queues_idle_percent",),
    "queues.idle_bytes": ("queues_idle_bytes",),
    "queues.active": ("queues_active_lost_percent",),
    "queues.idle_streams": ("streams_idle_bytes",),
}
"""Programs (`module.function` of this package) and the figures that each returns."""

ROWS = {
    row.key: row
    for row in (
        Row("plain_stop_ms", "ms", 10, "60,000 calls: longest stop of the loop"),
        Row("read_only_stop_ms", "ms", 10, "60,000 @read_only calls: longest stop"),
        Row("reentrant_stop_ms", "ms", 10, "60,000 reentrant calls: longest stop"),
        Row("one_way_stop_ms", "ms", 10, "30,000 local one-way calls: longest stop"),
        Row("one_way_lost", "calls", 0, "30,000 local one-way calls: how many never ran"),
        Row("one_way_remote_stop_ms", "ms", 10, "20,000 one-way calls of 10 KB: longest stop"),
        Row("one_way_remote_bytes", "B", 16 * MB, "the same: most that waits in the caller"),
        Row("interleaving_us", "us", 12, "@always_interleave call with 5,000 waiting"),
        Row("idle_collection_stop_ms", "ms", 20, "50,000 idle activations end: longest stop"),
        Row("recovery_stop_ms", "ms", 20, "a silo joins one with 50,000 grains: longest stop"),
        Row("runner_tasks_left", "tasks", 256, "tasks left 2 s after a burst of 5,000 calls"),
        Row("unknown_type_stop_ms", "ms", 20, "a frame of 200,000 calls to no type: longest stop"),
        Row("wide_stream_stop_ms", "ms", 20, "3 events to 10,000 subscriptions of one stream"),
        Row("deadline_sweep_percent", "%", 2, "CPU while 90,000 calls wait, of one core"),
        Row("options_per_header_us", "us", 20, "with_options with a header not seen before"),
        Row("never_reads_bytes", "B", 100 * MB, "a client asks for 400 MB and reads nothing"),
        Row("frozen_peer_bytes", "B", 48 * MB, "1,000 calls of one 100 KB object, peer frozen"),
        Row("frozen_peer_cancelled_bytes", "B", 8 * MB, "the same, after cancelling them"),
        Row("never_greets_bytes", "B", 16 * MB, "16 connections send 800 MB and no greeting"),
        Row("partial_frames_bytes", "B", 176 * MB, "64 clients send 3.2 GB of frames in part"),
        Row("handled_events_bytes", "B", 50 * MB, "memory queue after 900 handled events of 1 MB"),
        Row("error_text_bytes", "B", 100_000, "what arrives of an error's message of 5 MB"),
        Row("queues_idle_percent", "%", 2, "CPU of 1,000 queues without events, of one core"),
        Row("queues_idle_bytes", "B", 20_000, "what each of 1,000 queues without events holds"),
        Row("streams_idle_bytes", "B", 4_500, "a stream and its grain after an event of 10 KB"),
        Row("queues_active_lost_percent", "%", 10, "events/s of 100 queues, 900 idle beside them"),
    )
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured row. `is_ok`: within its bound. `figure` is None if its program failed."""

    key: str
    figure: float | None
    unit: str
    bound: float
    is_ok: bool
    what: str


def measure(size: float, wanted: list[str]) -> list[Figure]:
    """Run the programs (all, or those whose name contains a wanted word) at a size."""
    found: list[Figure] = []
    for program, keys in PROGRAMS.items():
        if wanted and not any(word in program for word in wanted):
            continue
        figures = _in_child(program, size)
        found += [_judge(ROWS[key], figures.get(key)) for key in keys]
    return found


def _judge(row: Row, figure: float | None) -> Figure:
    is_ok = figure is not None and figure <= row.bound
    return Figure(row.key, figure, row.unit, row.bound, is_ok, row.what)


def _in_child(program: str, size: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "--subject", f"bounds.{program}"]
    done = subprocess.run(
        [*command, "--size", str(size)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{program} failed:\n{done.stderr}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def report(size: float, wanted: list[str], as_json: bool) -> None:
    """Measure and print."""
    found = measure(size, wanted)
    if as_json:
        print(json.dumps({"size": size, "rows": [asdict(figure) for figure in found]}))
        return
    for one in found:
        verdict = "ok" if one.is_ok else "OVER"
        figure = "failed" if one.figure is None else f"{one.figure:,.1f}"
        print(
            f"{one.key:<28} {figure:>14} {one.unit:<6}"
            f" bound {one.bound:>13,.0f}  {verdict:<5} {one.what}"
        )
