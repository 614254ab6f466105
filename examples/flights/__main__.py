"""`python -m examples.flights`: a year of flights in a cluster, with every figure compared.

Exit codes: 0 done, 1 failed or figures differ, 2 wrong arguments, 129 SIGHUP, 130 Ctrl-C, 143
SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .job import JobOptions, run_job
from .killing import CHAOS, ONE
from .publish_spark import LOCAL

__all__ = ["main"]

INTERRUPTED = 130
COPIES = 3  # replicas of each event in ledgers with a bookie for each silo
PROGRAM = "python -m examples.flights"


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    flights = argparse.ArgumentParser(prog=PROGRAM, description="A year of flights in a cluster.")
    flights.add_argument(
        "--source",
        choices=("spark", "csv"),
        default="spark",
        help="the reader of the file: Spark (default), or this process, without a JVM",
    )
    flights.add_argument("--local", action="store_true", help="run the silos in this process")
    flights.add_argument("--rows", type=positive, help="read only the first ROWS flights")
    flights.add_argument("--silos", type=positive, default=3, help="the number of silos (3)")
    flights.add_argument(
        "--kill",
        action="store_true",
        help="at 30 %% of the events, kill a silo and the queues that it reads with SIGKILL",
    )
    flights.add_argument(
        "--durable",
        action="store_true",
        help="run a bookie in each silo: three replicas of each event",
    )
    flights.add_argument(
        "--chaos",
        action="store_true",
        help="kill one silo after the other with SIGKILL, and start it again",
    )
    flights.add_argument(
        "--kill-spark",
        choices=("worker", "driver"),
        default="",
        help="kill a Python worker of Spark, or driver and JVM, with SIGKILL, twice",
    )
    flights.add_argument(
        "--spark-master",
        metavar="URL",
        help="the Spark master, such as spark://127.0.0.1:7077 (default: this process)",
    )
    flights.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    flights.add_argument("--json", action="store_true", help="print only one JSON object")
    flights.add_argument("--work", type=Path, help="an empty directory for databases and logs")
    return flights


def positive(given: str) -> int:
    """Parse a whole number above 0."""
    value = int(given)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be above 0")
    return value


def wrong_options(arguments: argparse.Namespace) -> str:
    """Return an error about options that exclude each other; empty if there is none."""
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


def options_of(arguments: argparse.Namespace) -> JobOptions:
    """Return the options of the job."""
    return JobOptions(
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    arguments = parser().parse_args(argv)
    if wrong := wrong_options(arguments):
        print(f"{PROGRAM}: {wrong}", file=sys.stderr)
        return 2
    try:
        return run_job(options_of(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
