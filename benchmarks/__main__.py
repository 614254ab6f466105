"""Runs benchmarks, and compares them with a limit, with peers and with other revisions.

- `python -m benchmarks SUITE [--rounds N] [--json] [--against REV,PEER]`. SUITE is calls, streams
  (also with `--runs NAME,...`), activation, placement, timers, reminders, observers, filters,
  results, postgres, buffer, path, flights, detection, handover, priority_path, ledger or priority
  (these two also with `--full`).
- `python -m benchmarks slow_consumer [--size S]`
- `python -m benchmarks bounds [WORD ...] [--size S] [--json]`
- `python -m benchmarks ledger --chaos [--records N] [--json]`
- `python -m benchmarks ledger --topics N`
- `python -m benchmarks detection --overload SECONDS [--json]`

Each subject of each round runs in a new process. Rounds are interleaved, and ratios are computed
inside a round. The program prints medians with [min..max]. A revision of git as a subject runs this
tree's workloads on that revision's code. Rows that became worse by more than 5 % are marked, by the
ratio of the best rounds of both sides (`best`). On a busy machine, take eleven rounds or more.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import feed, ledger_topics, overload
from benchmarks.bounds import table as bounds
from benchmarks.bounds.programs import frozen_client
from benchmarks.chaos import run as chaos
from benchmarks.nats_wire import nats_lacks
from benchmarks.revision import (
    ROOT,
    best,
    checked_out,
    environment,
    has_program,
    is_revision,
    is_worse,
)
from benchmarks.servers import redis_lacks

SUITES: dict[str, dict[str, list[str]]] = {
    "calls": {
        "ours": ["ours.calls", "ours.remote", "ours.between_silos", "metrics.ours"],
        "limit": ["limit.calls", "limit.remote"],
        "xoscar": ["xoscar_peer.calls", "xoscar_peer.remote"],
    },
    "streams": {
        "ours": ["ours_streams.streams", "ours_streams.wide"],
        "limit": ["limit_streams.streams", "limit_streams.wide"],
        "redis": ["redis_peer.streams", "redis_peer.wide"],
        "redis_streams": ["redis_streams.wide"],
    },
    "timers": {
        "ours": ["timers.ours"],
        "tasks": ["timers.tasks"],
    },
    "filters": {"ours": ["filters.ours"]},
    "results": {"ours": ["results.ours"]},
    "observers": {
        "ours": ["observers.ours"],
        "limit": ["observers.limit"],
    },
    "reminders": {"ours": ["reminders.memory"], "sqlite": ["reminders.sqlite"]},
    "postgres": {"ours": ["postgres.ours"], "sqlite": ["postgres.sqlite"]},
    "buffer": {
        "ours": ["buffer.ours"],
        "limit": ["buffer.deques"],
        "asyncio": ["buffer.queues"],
    },
    "placement": {"ours": ["placement.ours"]},
    "activation": {"ours": ["ours.activation"], "xoscar": ["xoscar_peer.activation"]},
    "path": {"ours": ["path.figures"]},  # frames and modules: counted, not timed
    "flights": {"ours": ["flights.csv"]},
    "detection": {"ours": ["detection.stopped", "detection.isolated"]},
    "handover": {"ours": ["handover.brief_handlers", "handover.long_handlers"]},
    "ledger": {
        "ours": [
            *("ledger.embedded", "ledger_replicated.replicated", "ledger_recovery.recovery"),
            "ours_streams.durable",
        ],
        "limit": ["ledger.disk"],
        "sqlite": ["ledger.rows"],
        "redis": ["redis_peer.durable"],
        "nats": ["nats_peer.appends", "nats_peer.replicated", "nats_peer.durable"],
    },
    "priority": {
        "ours": [
            *("priority.memory.queues", "priority.stores.memory", "priority.stores.embedded"),
            *("priority.stores.redis", "priority.published.calls", "priority.published.handles"),
            *("priority.published.http", "priority.memory.side_by_side"),
        ],
        "limit": ["priority.memory.heaps"],
        "zset": ["priority.peers.zset"],
        "arq": ["priority.peers.arq"],
        "saq": ["priority.peers.saq"],
    },
    "priority_path": {"ours": ["priority.path.figures"]},
    "spark": {
        "ours": ["spark.writing.ours", "spark.reading.ours", "spark.reading.index"],
        "foreach": ["spark.writing.foreach"],
        "files": ["spark.writing.files", "spark.reading.files"],
    },
    "slow_consumer": {"ours": ["slow_consumer.beside", "slow_consumer.once"]},
}
FULL = {
    "ledger": {"ours": ["ledger_recovery.full"]},
    "priority": {"ours": ["priority.memory.full"], "limit": ["priority.memory.full_heap"]},
}  # long parts, with --full only
SIZED = (
    "bounds.",
    "priority.",
    "slow_consumer.",
    "spark.",
)  # subjects that take a share of their full load
LONG = ("priority", "reminders", "slow_consumer", "spark")  # suites for which one round is enough
PEERS = {
    "xoscar": ["xoscar", "psutil"],
    "redis": ["redis"],
    "redis_streams": ["redis"],
    "asyncio": [],
    "tasks": [],
    "sqlite": [],
    "nats": ["msgpack"],
    "zset": ["redis"],
    "arq": ["arq", "redis"],
    "saq": ["saq", "redis"],
    "foreach": ["pyspark"],
    "files": ["pyspark"],
}  # and the packages that they need
SERVERS: dict[str, Callable[[], str]] = {
    "nats": nats_lacks,
    **dict.fromkeys(("redis", "redis_streams", "zset", "arq", "saq"), redis_lacks),
}
"""Functions that return the reason why a peer's server cannot run; "" if it can run."""
BETWEEN_SILOS = "silo_"  # these figures are compared with two processes of others
Round = dict[str, dict[str, float]]
Parts = Mapping[str, list[str]]


def main() -> None:
    """Run a suite, or (in a child) one subject of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    suites = [*sorted(SUITES), "bounds"]
    parser.add_argument("suite", nargs="?", choices=suites, default="calls")
    parser.add_argument("words", nargs="*", help="bounds: only programs whose names contain a word")
    parser.add_argument("--size", type=float, default=1.0, help="share of the full load (1)")
    parser.add_argument(
        "--rounds", type=int, help="rounds of each subject; default: 5, or 1 for long suites"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="also run the long parts")
    parser.add_argument(
        "--chaos",
        action="store_true",
        help="ledger: append records while silo processes are killed",
    )
    parser.add_argument(
        "--topics", type=int, help="ledger: open N topics, and send a first message to each"
    )
    parser.add_argument(
        "--overload", type=float, metavar="SECONDS", help="detection: count evictions on busy cores"
    )
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="with --chaos: the fewest records to append"
    )
    parser.add_argument(
        "--against",
        default=",".join(PEERS),
        help="peers, revisions of git, or 'none', separated by commas",
    )
    parser.add_argument("--runs", metavar="NAME,...", help="streams: only these runs")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--produce", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--freeze", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run(importlib.import_module("benchmarks.limit").serve())
    elif arguments.produce:
        module, address = arguments.produce
        run(importlib.import_module(f"benchmarks.{module}").producer(address))
    elif arguments.freeze:
        gateway, calls, answer_bytes = arguments.freeze
        run(frozen_client(gateway, int(calls), int(answer_bytes)))
    elif arguments.subject:
        print(json.dumps(run_subject(arguments.subject, arguments.size)))
    elif arguments.chaos:
        if arguments.suite != "ledger":
            raise SystemExit(f"--chaos is of the suite ledger, not of {arguments.suite}")
        raise SystemExit(run(chaos.report(arguments.records, arguments.json)))
    elif arguments.topics is not None:
        if arguments.suite != "ledger" or arguments.topics < 1:
            raise SystemExit("--topics is of the suite ledger, and a number of 1 at least")
        raise SystemExit(run(ledger_topics.report(arguments.topics)))
    elif arguments.overload is not None:
        if arguments.suite != "detection":
            raise SystemExit(f"--overload is of the suite detection, not of {arguments.suite}")
        raise SystemExit(run(overload.report(arguments.overload, arguments.json)))
    elif arguments.suite == "bounds":
        bounds.report(arguments.size, arguments.words, arguments.json)
    else:
        choose(arguments.runs, arguments.suite)
        rounds = arguments.rounds or (1 if arguments.suite in LONG else 5)
        parts = parts_of(arguments.suite, arguments.full)
        against = others(arguments.against, parts)
        report(parts, rounds, against, arguments.json, arguments.size)


def run(coro: Any) -> Any:
    """Run on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coro)


def choose(names: str | None, suite: str) -> None:
    """Select the runs of streams for child processes."""
    if names is None:
        return
    known = [run.name for run in (*feed.RUNS, *feed.WIDE_RUNS) if run.name == run.first]
    known = [name for name in known if not name.startswith("warm")]
    if suite != "streams" or not set(names.split(",")) <= set(known):
        raise SystemExit(f"--runs is of the suite streams, and of {', '.join(known)}")
    os.environ[feed.CHOSEN] = names


def others(against: str, parts: Parts) -> list[str]:
    """Return the requested revisions, and the installed peers of the suite.

    Prints the missing peers on standard error.
    """
    found = []
    for name in [] if against == "none" else against.split(","):
        if name in PEERS:
            found += [name] if name in parts and is_installed(name) else []
        elif is_revision(name):
            found.append(name)
        else:
            known = ", ".join(PEERS)
            raise SystemExit(f"--against {name}: not one of {known}, none, nor a revision of git")
    return found


def is_installed(peer: str) -> bool:
    lacking = [package for package in PEERS[peer] if not importlib.util.find_spec(package)]
    text = f"no {', '.join(lacking)} here" if lacking else ""
    if not text and peer in SERVERS:
        text = SERVERS[peer]()
    if text:
        print(f"{peer}: not measured, {text}", file=sys.stderr)
    return not text


def run_subject(name: str, size: float) -> dict[str, float]:
    """Run `module.function` in this process; subjects of `SIZED` take a size."""
    module, _, function = name.rpartition(".")
    with tempfile.TemporaryDirectory() as work:
        found = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        sized = name.startswith(SIZED)
        figures: dict[str, float] = run(found(Path(work), size) if sized else found(Path(work)))
        return figures


def in_child(subject: str, tree: Path = ROOT, size: float = 1.0) -> dict[str, float]:
    """Run one subject in a new process, with the code of a tree."""
    command = [sys.executable, "-m", "benchmarks", "--subject", subject]
    command += ["--size", str(size)] if subject.startswith(SIZED) else []
    done = subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{subject} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def parts_of(suite: str, is_full: bool) -> Parts:
    """Return the parts of each subject of a suite."""
    more = FULL.get(suite, {}) if is_full else {}
    return {name: [*parts, *more.get(name, ())] for name, parts in SUITES[suite].items()}


def measure(parts: Parts, rounds: int, against: list[str], size: float = 1.0) -> list[Round]:
    """Return the figures of all rounds, by subject. Every other round runs in reverse order."""
    wanted = ["ours", *(name for name in ("limit", *against) if name in parts)]
    with ExitStack() as stack:
        trees = {name: ROOT for name in wanted}
        for name in against:
            if name not in PEERS:
                trees[name] = stack.enter_context(checked_out(name))
        return [
            _round(parts, dict(list(trees.items())[:: -1 if number % 2 else 1]), size)
            for number in range(rounds)
        ]


def _round(parts: Parts, trees: Mapping[str, Path], size: float) -> Round:
    """Run each subject once. Parts that are compared run one after the other, because the speed of
    a machine changes within a minute."""
    one: Round = {name: {} for name in sorted(trees, key=lambda name: name != "ours")}
    of_subject = {name: parts.get(name, parts["ours"]) for name in trees}
    for place in range(max(map(len, of_subject.values()))):
        for name, tree in trees.items():
            part = next(iter(of_subject[name][place:]), None)
            if part is not None and has_program(tree, part):
                one[name] |= in_child(part, tree, size)
    return one


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(rounds: list[Round]) -> dict[str, Any]:
    """Return figures, ratios and worse rows.

    A ratio compares our figure with that of another subject in the same round. Worse rows are those
    that are worse than in a revision.
    """
    figures = {
        subject: {key: spread([one[subject][key] for one in rounds]) for key in found}
        for subject, found in rounds[0].items()
    }
    ratios = {other: _ratios(rounds, other) for other in rounds[0] if other != "ours"}
    worse = {
        other: [key for key, ratio in found.items() if is_worse(key, ratio)]
        for other, found in ratios.items()
        if other not in PEERS and other != "limit"
    }
    return {
        "rounds": len(rounds),
        "figures": figures,
        "ours_relative_to": ratios,
        "worse_than": worse,
    }


def _ratios(rounds: list[Round], other: str) -> dict[str, dict[str, float]]:
    """Return ratios; a figure of 0 has none, because a peer may not have it."""
    theirs = rounds[0][other]
    pairs = {
        key: key if key in theirs else key.removeprefix(BETWEEN_SILOS) for key in rounds[0]["ours"]
    }
    return {
        key: _ratio(key, [one["ours"][key] for one in rounds], [one[other][same] for one in rounds])
        for key, same in pairs.items()
        if same in theirs and all(one[other][same] for one in rounds)
    }


def _ratio(key: str, ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Return the ratio of rounds, and of the best rounds of both sides."""
    found = spread([one / other for one, other in zip(ours, theirs, strict=True)])
    return {**found, "best": best(key, ours) / best(key, theirs)}


def report(parts: Parts, rounds: int, against: list[str], as_json: bool, size: float = 1.0) -> None:
    """Measure and print."""
    summary = summarise(measure(parts, rounds, against, size))
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
                line += f"  | of {other}: {text(ratios[key])} best {ratios[key]['best']:,.3g}"
        for other, keys in summary["worse_than"].items():
            if key in keys:
                line += f"  WORSE than {other}"
        print(line)


def text(found: dict[str, float]) -> str:
    """Return `median [min..max]`."""
    return f"{found['median']:,.4g} [{found['min']:,.4g}..{found['max']:,.4g}]"


if __name__ == "__main__":
    main()
