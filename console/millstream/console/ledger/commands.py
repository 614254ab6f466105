"""`millstream ledger`: what is in ledgers, whether directories are whole, and what can be mended.

Owns: the arguments, and what went wrong in a line. Not: the work (the modules beside it).
Invariant: what a name or an error holds cannot steer the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from millstream.console.arguments import part_name, positive, seconds, whole
from millstream.console.dead_letters import plain
from millstream.console.gateway import add_gateway
from millstream.runtime import MillstreamError

__all__ = ["add_ledger"]

COUNT = 20


def add_ledger(command: argparse.ArgumentParser) -> None:
    """Commands and options of `millstream ledger`."""
    actions = command.add_subparsers(dest="action", required=True)
    ls = add_command(actions, "ls", "topics and ledgers, a line each")
    show = add_command(actions, "show", "one topic or ledger wholly")
    read = add_command(actions, "read", "messages of a topic, or entries of a ledger")
    verify = add_command(actions, "verify", "check all of a bookie's directory")
    recover = add_command(
        actions, "recover", "give ledgers their ends, or give up what is lost of them"
    )
    bookies = add_command(actions, "bookies", "bookies, a line each")
    for action in (ls, show, read, bookies):
        add_source(action)
    for action in (show, read):
        action.add_argument("name", metavar="TOPIC|LEDGER", help="as `ls` prints it")
    read.add_argument("--from", dest="first", type=whole, metavar="N", help="the first one")
    read.add_argument("--count", type=positive, default=COUNT, help=f"how many ({COUNT})")
    for action in (read, recover):
        action.add_argument(
            "--directory", action="append", default=[], help="a bookie's, if it is not where it was"
        )
    verify.add_argument("directory", nargs="+", help="a bookie's directory, which nobody has")
    add_recover(recover)
    drain = bookies.add_mutually_exclusive_group()
    drain.add_argument("--drain", metavar="UUID", help="have this one emptied")
    drain.add_argument("--keep", metavar="UUID", help="take that back")


def add_source(action: argparse.ArgumentParser, is_required: bool = True) -> None:
    """Where the rows are."""
    action.add_argument(
        "--store",
        required=is_required,
        metavar="sqlite:DIRECTORY",
        help="the state store with the rows of ledgers, as a silo is given it",
    )
    action.add_argument("--cluster", metavar="NAME", help="whose, if the store has several")


def add_recover(recover: argparse.ArgumentParser) -> None:
    """Options of `millstream ledger recover`."""
    add_source(recover, is_required=False)
    add_gateway(recover, has_cluster=False)
    recover.add_argument(
        "--provider", default="default", type=part_name, help="the stream provider (default)"
    )
    recover.add_argument("ledger", type=positive, nargs="+", help="its number")
    recover.add_argument(
        "--accept-loss",
        action="store_true",
        help="give up entries that no bookie has any more: say which",
    )
    recover.add_argument("--yes", action="store_true", help="and do it")
    recover.add_argument(
        "--gone",
        action="append",
        default=[],
        metavar="UUID",
        help="a bookie that will never come back, though it is not known to be lost",
    )
    recover.add_argument(
        "--wait", type=seconds, default=5.0, metavar="S", help="how long to look for bookies (5)"
    )


def add_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    """A command; every one can print JSON."""
    made = actions.add_parser(name, help=text)
    made.add_argument("--json", action="store_true", help="print one JSON value and no more")
    made.set_defaults(run=run_ledger)
    return made


def run_ledger(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    from .actions import ACTIONS  # what ledgers need is loaded for them alone

    try:
        return asyncio.run(ACTIONS[arguments.action](arguments))
    except (MillstreamError, LookupError, OSError, ValueError) as error:
        text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
        name = f"millstream ledger {arguments.action}"
        print(f"{name}: {plain(f'{type(error).__name__}: {text}')}", file=sys.stderr)
        return 1
