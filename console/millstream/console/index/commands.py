"""The arguments of `millstream index`, and what went wrong in a line.

Owns: arguments, exit codes. Not: asking (`questions`).
"""

from __future__ import annotations

import argparse
import sys

from millstream.console.dead_letters import plain
from millstream.console.pq.commands import add_cluster, add_wanted
from millstream.runtime import MillstreamError

__all__ = ["add_index"]

PLACE = "sqlite:path or postgresql://user@host/database"
QUESTIONS = {
    "depth": "how many messages are in each state",
    "message": "the latest change of each message of an id that is not collected",
    "history": "every change that is kept of the messages of an id",
    "times": "how long messages were in each state",
    "errors": "attempts that were used up without the work being done",
}
OF_MESSAGE = ("message", "history")


def add_index(command: argparse.ArgumentParser) -> None:
    """Commands and options of `millstream index`."""
    actions = command.add_subparsers(dest="action", required=True)
    query = actions.add_parser("query", help="ask an index")
    query.add_argument("index", help=PLACE)
    text = "; ".join(f"{name}: {what}" for name, what in QUESTIONS.items())
    query.add_argument("question", choices=[*QUESTIONS], help=text)
    query.add_argument("queue", nargs="?", help="of this queue alone")
    query.add_argument("id", nargs="?", help="of this message of it alone")
    add_wanted(query)
    verify = actions.add_parser("verify", help="is anything missing, is it as the queues are?")
    verify.add_argument("index", help=PLACE)
    verify.add_argument("--queues", action="store_true", help="compare with a cluster's queues")
    add_cluster(verify)
    for made in (query, verify):
        made.add_argument("--json", action="store_true", help="print one JSON value and no more")
        made.set_defaults(run=run_index)


def run_index(arguments: argparse.Namespace) -> int:
    """Do it; the exit code: 0; 1: it failed, or the index is not whole; 2: wrong arguments."""
    from .questions import ask, verify

    try:
        if arguments.action == "verify":
            return verify(arguments)
        if arguments.question in OF_MESSAGE and not arguments.id:
            return fail(arguments, f"{arguments.question} is of one message: QUEUE ID", 2)
        if arguments.wanted and arguments.question != "depth":
            return fail(arguments, "--wanted is for depth", 2)
        return ask(arguments)
    except (MillstreamError, OSError, ValueError) as error:
        return fail(arguments, f"{type(error).__name__}: {error}", 1)


def fail(arguments: argparse.Namespace, text: str, code: int) -> int:
    """Say what is wrong."""
    print(f"millstream index {arguments.action}: {plain(text)}", file=sys.stderr)
    return code
