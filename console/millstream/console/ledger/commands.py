"""`millstream ledger`: shows ledgers, verifies directories, and repairs.

This module owns the arguments and the line of an error; the modules beside it do the work. The
content of a name or an error cannot control the terminal.
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
    """Add commands and options of `millstream ledger`."""
    actions = command.add_subparsers(dest="action", required=True)
    ls = add_command(actions, "ls", "list topics and ledgers, one per line")
    show = add_command(actions, "show", "show one topic or ledger")
    read = add_command(actions, "read", "print messages of a topic, or entries of a ledger")
    verify = add_command(actions, "verify", "verify all data in a bookie's directory")
    recover = add_command(actions, "recover", "close open ledgers, or give up lost entries")
    bookies = add_command(actions, "bookies", "list bookies, one per line, or drain one")
    for action in (ls, show, read, bookies):
        add_source(action)
    for action in (show, read):
        action.add_argument(
            "name", metavar="TOPIC|LEDGER", help="topic name or ledger number, as `ls` prints it"
        )
    read.add_argument(
        "--from", dest="first", type=whole, metavar="N", help="number of the first message or entry"
    )
    read.add_argument(
        "--count", type=positive, default=COUNT, help=f"messages or entries to print ({COUNT})"
    )
    for action in (read, recover):
        action.add_argument(
            "--directory",
            action="append",
            default=[],
            help="directory of a bookie that has moved; may be repeated",
        )
    verify.add_argument("directory", nargs="+", help="directory of a bookie that no process uses")
    add_recover(recover)
    drain = bookies.add_mutually_exclusive_group()
    drain.add_argument("--drain", metavar="UUID", help="start draining this bookie")
    drain.add_argument("--keep", metavar="UUID", help="cancel the draining of this bookie")


def add_source(action: argparse.ArgumentParser, is_required: bool = True) -> None:
    """Add the options that name the rows."""
    action.add_argument(
        "--store",
        required=is_required,
        metavar="sqlite:DIRECTORY",
        help="state store with the rows of ledgers, as the silos use it",
    )
    action.add_argument(
        "--cluster", metavar="NAME", help="name of the cluster, if the store has several"
    )


def add_recover(recover: argparse.ArgumentParser) -> None:
    """Add the options of `millstream ledger recover`."""
    add_source(recover, is_required=False)
    add_gateway(recover, has_cluster=False)
    recover.add_argument(
        "--provider",
        default="default",
        type=part_name,
        help="name of the stream provider (default)",
    )
    recover.add_argument("ledger", type=positive, nargs="+", help="number of the ledger")
    recover.add_argument(
        "--accept-loss",
        action="store_true",
        help="list entries that no bookie has any more; with --yes, give them up",
    )
    recover.add_argument(
        "--yes", action="store_true", help="with --accept-loss: give the entries up"
    )
    recover.add_argument(
        "--gone",
        action="append",
        default=[],
        metavar="UUID",
        help="bookie that will not return, though not known to be lost; may be repeated",
    )
    recover.add_argument(
        "--wait", type=seconds, default=5.0, metavar="S", help="seconds to look for bookies (5)"
    )


def add_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    """Add a command; every command can print JSON."""
    made = actions.add_parser(name, help=text)
    made.add_argument("--json", action="store_true", help="print only one JSON value")
    made.set_defaults(run=run_ledger)
    return made


def run_ledger(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from .actions import ACTIONS  # loads the ledger provider only for these commands

    try:
        return asyncio.run(ACTIONS[arguments.action](arguments))
    except (MillstreamError, LookupError, OSError, ValueError) as error:
        text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
        name = f"millstream ledger {arguments.action}"
        print(f"{name}: {plain(f'{type(error).__name__}: {text}')}", file=sys.stderr)
        return 1
