"""`python -m benchmarks calls|streams|activation [--rounds N] [--json] [--against xoscar,redis]`.

Each subject of each round runs in a fresh process; rounds are interleaved; ratios are computed
inside a round. Prints medians with [min..max].
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SUITES = {
    "calls": {
        "ours": ["ours.calls", "ours.remote", "ours.between_silos"],
        "limit": ["limit.calls", "limit.remote"],
        "xoscar": ["xoscar_peer.calls", "xoscar_peer.remote"],
    },
    "streams": {
        "ours": ["ours_streams.streams"],
        "limit": ["limit_streams.streams"],
        "redis": ["redis_peer.streams"],
    },
    "activation": {"ours": ["ours.activation"], "xoscar": ["xoscar_peer.activation"]},
}
PEERS = {"xoscar": ["xoscar", "psutil"], "redis": ["redis"]}  # and the packages that they need
SERVERS = {"redis": "redis-server"}
BETWEEN_SILOS = "silo_"  # these figures are compared with the others' two processes
Round = dict[str, dict[str, float]]


def main() -> None:
    """Run a suite, or (in a child) one subject of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("suite", nargs="?", choices=sorted(SUITES), default="calls")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, or 'none'")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--produce", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run(importlib.import_module("benchmarks.limit").serve())
    elif arguments.produce:
        module, address = arguments.produce
        run(importlib.import_module(f"benchmarks.{module}").producer(address))
    elif arguments.subject:
        print(json.dumps(run_subject(arguments.subject)))
    else:
        report(arguments.suite, arguments.rounds, peers(arguments.against), arguments.json)


def run(coro: Any) -> Any:
    """Run on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coro)


def peers(against: str) -> list[str]:
    """The wanted peers that are installed; says on standard error what is not."""
    found = []
    for name in [] if against == "none" else against.split(","):
        if name not in PEERS:
            raise SystemExit(f"--against {name}: not one of {', '.join(PEERS)}, none")
        lacking = [package for package in PEERS[name] if not importlib.util.find_spec(package)]
        if name in SERVERS and shutil.which(SERVERS[name]) is None:
            lacking.append(SERVERS[name])
        if lacking:
            print(f"{name}: not measured, no {', '.join(lacking)} here", file=sys.stderr)
        else:
            found.append(name)
    return found


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


def measure(suite: str, rounds: int, against: list[str]) -> list[Round]:
    """All rounds: figures by subject."""
    subjects = {
        name: parts for name, parts in SUITES[suite].items() if name not in PEERS or name in against
    }
    found: list[Round] = []
    for _ in range(rounds):
        one: Round = {name: {} for name in subjects}
        for name, parts in subjects.items():
            for part in parts:
                one[name] |= in_child(part)
        found.append(one)
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(rounds: list[Round]) -> dict[str, Any]:
    """Figures by subject, and ours relative to each other subject inside the same round."""
    figures = {
        subject: {key: spread([one[subject][key] for one in rounds]) for key in found}
        for subject, found in rounds[0].items()
    }
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for other, theirs in rounds[0].items():
        pairs = [(key, key.removeprefix(BETWEEN_SILOS)) for key in rounds[0]["ours"]]
        ratios[other] = {
            key: spread([one["ours"][key] / one[other][same] for one in rounds])
            for key, same in pairs
            if other != "ours" and same in theirs
        }
    del ratios["ours"]
    return {"rounds": len(rounds), "figures": figures, "ours_relative_to": ratios}


def report(suite: str, rounds: int, against: list[str], as_json: bool) -> None:
    """Measure and print."""
    summary = summarise(measure(suite, rounds, against))
    if as_json:
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
