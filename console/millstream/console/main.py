"""The `millstream` command: parses arguments and hands them to what does the work.

Exit codes: 0 done, 1 failed or figures differ, 2 wrong arguments, 3 evicted, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.runtime.run import RUN_OPTIONS, run_program

from .arguments import positive
from .dead_letters import add_dead_letters
from .index.commands import add_index
from .ledger.commands import add_ledger
from .pausing import add_queues, add_streams
from .pq.commands import add_pq
from .staged import add_staged
from .why import add_why

__all__ = ["main"]

INTERRUPTED = 130
COPIES = 3  # of what is in ledgers with a bookie for each silo


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="millstream", description="Virtual actors with persistent streams."
    )
    top.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and end")
    commands = top.add_subparsers(dest="command", required=True)
    add_run(commands.add_parser("run", help="run one silo"))
    demo = commands.add_parser("demo", help="run a demonstration")
    demos = demo.add_subparsers(dest="demo", required=True)
    add_flights(demos.add_parser("flights", help="a year of flights through a cluster"))
    letters = commands.add_parser("dead-letters", help="events that were given up")
    add_dead_letters(letters)
    add_queues(commands.add_parser("queues", help="pause queues, and see for whom they are kept"))
    add_streams(commands.add_parser("streams", help="pause streams, and let them go on"))
    add_ledger(commands.add_parser("ledger", help="look into ledgers, and mend them"))
    add_pq(commands.add_parser("pq", help="priority queues: look, work with messages, serve HTTP"))
    add_index(commands.add_parser("index", help="the index of priority queues: ask it, check it"))
    add_staged(commands.add_parser("staged", help="batches that Spark and other writers stage"))
    add_why(commands.add_parser("why", help="what holds a stream up"))
    return top


class ShowVersion(argparse.Action):
    """Reads the package's metadata only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from millstream.runtime import __version__

        print(f"millstream {__version__}")
        parser.exit()


def add_run(run: argparse.ArgumentParser) -> None:
    """Arguments of `millstream run`."""
    run.add_argument("target", help="package.module:function that returns a Silo")
    for option in RUN_OPTIONS:
        text, flag = f"{option.help} ({option.variable})", f"--{option.flag}"
        if option.is_switch:
            run.add_argument(flag, action="store_const", const="yes", help=f"{text[:-1]}=yes)")
        else:
            run.add_argument(flag, metavar=option.flag.upper(), help=text)
    run.set_defaults(run=run_silo)


def run_silo(arguments: argparse.Namespace) -> int:
    """Run one silo."""
    return run_program(
        arguments.target, {option.flag: getattr(arguments, option.flag) for option in RUN_OPTIONS}
    )


def add_flights(flights: argparse.ArgumentParser) -> None:
    """Options of `millstream demo flights`."""
    flights.add_argument(
        "--source",
        choices=("spark", "csv"),
        default="spark",
        help="who reads the file: Spark (default), or this process, without a JVM",
    )
    flights.add_argument("--local", action="store_true", help="silos in this process")
    flights.add_argument("--rows", type=positive, help="read only the first ROWS flights")
    flights.add_argument("--silos", type=positive, default=3, help="how many silos (3)")
    flights.add_argument(
        "--kill",
        action="store_true",
        help="a silo is killed with SIGKILL at 30 %%, with the queues that it reads",
    )
    flights.add_argument(
        "--durable", action="store_true", help="a bookie for each silo: three copies of each event"
    )
    flights.add_argument(
        "--chaos",
        action="store_true",
        help="one silo after the other is killed with SIGKILL and started again",
    )
    flights.add_argument(
        "--kill-spark",
        choices=("worker", "driver"),
        default="",
        help="a Python worker of Spark, or driver and JVM, are killed with SIGKILL, twice",
    )
    flights.add_argument(
        "--spark-master",
        metavar="URL",
        help="who runs Spark's tasks, such as spark://127.0.0.1:7077 (this process)",
    )
    flights.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    flights.add_argument("--json", action="store_true", help="print one JSON object and no more")
    flights.add_argument("--work", type=Path, help="empty directory for databases and logs")
    flights.set_defaults(run=run_flights)


def wrong_flights(arguments: argparse.Namespace) -> str:
    """Which options do not go together; empty if all do."""
    if arguments.kill and arguments.chaos:
        return "--chaos kills more than --kill: give one of them"
    if arguments.kill_spark and arguments.source != "spark":
        return "--kill-spark needs --source spark"
    if arguments.spark_master and (arguments.source != "spark" or arguments.kill_spark):
        return "--spark-master needs --source spark, without --kill-spark"
    if arguments.durable and (arguments.local or arguments.silos < COPIES):
        return f"--durable needs silo processes and --silos {COPIES} or more"
    for option in ("kill", "chaos"):
        if getattr(arguments, option) and (arguments.local or arguments.silos < 2):
            return f"--{option} needs silo processes and --silos 2 or more"
    return ""


def run_flights(arguments: argparse.Namespace) -> int:
    """Run the flights job."""
    from examples.flights.job import JobOptions, run_job
    from examples.flights.killing import CHAOS, ONE
    from examples.flights.publish_spark import LOCAL

    if wrong := wrong_flights(arguments):
        print(f"millstream: {wrong}", file=sys.stderr)
        return 2
    return run_job(
        JobOptions(
            source=arguments.source,
            is_local=arguments.local,
            rows_max=arguments.rows,
            silos=arguments.silos,
            is_durable=arguments.durable,
            killing=CHAOS if arguments.chaos else ONE if arguments.kill else None,
            spark_victim=arguments.kill_spark,
            spark_master=arguments.spark_master or LOCAL,
            keeps=arguments.keep,
            is_json=arguments.json,
            work=arguments.work,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
