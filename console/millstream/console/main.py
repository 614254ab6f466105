"""The `millstream` command: parses arguments and calls the function of the command.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 evicted, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from millstream.runtime.run import RUN_OPTIONS, run_program

from .certs.commands import add_certs
from .dead_letters import add_dead_letters
from .index.commands import add_index
from .ledger.commands import add_ledger
from .pauses import add_queues, add_streams
from .pq.commands import add_pq
from .staged import add_staged
from .store import add_store
from .why import add_why

__all__ = ["main"]

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and their options."""
    top = argparse.ArgumentParser(
        prog="millstream", description="Virtual actors with persistent streams."
    )
    top.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True)
    add_run(commands.add_parser("run", help="run one silo"))
    letters = commands.add_parser(
        "dead-letters", help="list, redrive and delete events that were given up"
    )
    add_dead_letters(letters)
    add_queues(
        commands.add_parser(
            "queues", help="pause queues, and manage the readers for which they keep events"
        )
    )
    add_streams(commands.add_parser("streams", help="pause and resume streams"))
    add_ledger(commands.add_parser("ledger", help="inspect and repair ledgers"))
    add_pq(
        commands.add_parser("pq", help="inspect priority queues, work with messages, serve HTTP")
    )
    add_index(commands.add_parser("index", help="query and verify the index of priority queues"))
    add_staged(
        commands.add_parser("staged", help="manage batches that Spark and other writers stage")
    )
    add_certs(commands.add_parser("certs", help="make and show certificates for TLS"))
    add_store(
        commands.add_parser("store", help="show and migrate the schema of a PostgreSQL database")
    )
    add_why(commands.add_parser("why", help="explain why a stream makes no progress"))
    return top


class ShowVersion(argparse.Action):
    """Prints the version; reads the package's metadata only when it is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from millstream.runtime import __version__

        print(f"millstream {__version__}")
        parser.exit()


def add_run(run: argparse.ArgumentParser) -> None:
    """Add the arguments of `millstream run`."""
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
        arguments.target,
        {option.flag: getattr(arguments, option.flag.replace("-", "_")) for option in RUN_OPTIONS},
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
