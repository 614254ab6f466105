"""`python -m benchmarks calls|activation [--rounds N] [--json] [--against xoscar]`.

Each subject of each round runs in a fresh process; rounds are interleaved; ratios are computed
inside a round. Prints medians with [min..max].
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SUITES = {"calls": ("calls", "remote"), "activation": ("activation",)}
Round = dict[str, dict[str, float]]


def main() -> None:
    """Run a suite, or (in a child) one subject of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("suite", nargs="?", choices=sorted(SUITES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", default="xoscar", help="peers, or 'none'")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run(importlib.import_module("benchmarks.limit").serve())
    elif arguments.subject:
        print(json.dumps(run_subject(arguments.subject)))
    else:
        report(arguments)


def run(coro: Any) -> Any:
    """Run on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coro)


def run_subject(name: str) -> dict[str, float]:
    """`module.function`, in this process."""
    module, _, function = name.partition(".")
    with tempfile.TemporaryDirectory() as work:
        found = importlib.import_module(f"benchmarks.{module}")
        figures: dict[str, float] = run(getattr(found, function)(Path(work)))
        return figures


def in_child(subject: str) -> dict[str, float]:
    """One subject in a fresh process."""
    command = [sys.executable, "-m", "benchmarks", "--subject", subject]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{subject} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure(suite: str, rounds: int, peers: list[str]) -> list[Round]:
    """All rounds: figures by subject."""
    subjects = ["ours", "limit", *peers]
    found: list[Round] = []
    for _ in range(rounds):
        one: Round = {}
        for subject in subjects:
            one[subject] = {}
            for function in SUITES[suite]:
                one[subject] |= in_child(f"{subject}.{function}")
        found.append(one)
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(rounds: list[Round]) -> dict[str, Any]:
    """Figures by subject, and ours relative to each other subject inside the same round."""
    subjects = list(rounds[0])
    figures = {
        subject: {key: spread([one[subject][key] for one in rounds]) for key in rounds[0][subject]}
        for subject in subjects
    }
    ratios = {
        other: {
            key: spread([one["ours"][key] / one[other][key] for one in rounds])
            for key in rounds[0]["ours"]
            if key in rounds[0][other]
        }
        for other in subjects[1:]
    }
    return {"rounds": len(rounds), "figures": figures, "ours_relative_to": ratios}


def report(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    peers = []
    if arguments.against != "none" and importlib.util.find_spec("xoscar") is not None:
        peers = ["xoscar_peer"]
    summary = summarise(measure(arguments.suite or "calls", arguments.rounds, peers))
    if arguments.json:
        print(json.dumps(summary))
        return
    for key in summary["figures"]["ours"]:
        line = f"{key:<22}"
        for subject, figures in summary["figures"].items():
            if key in figures:
                line += f"  {subject} {text(figures[key])}"
        for other, ratios in summary["ours_relative_to"].items():
            if key in ratios:
                line += f"  | of {other}: {text(ratios[key])}"
        print(line)


def text(found: dict[str, float]) -> str:
    """`median [min..max]`."""
    return f"{found['median']:,.4g} [{found['min']:,.4g}..{found['max']:,.4g}]"


main()
