"""The arguments, exit codes and error lines of `millstream index`; `questions` does the work."""

from __future__ import annotations

import argparse
import sys

from millstream.console.dead_letters import plain
from millstream.console.pq.commands import add_cluster, add_wanted
from millstream.runtime import MillstreamError

__all__ = ["add_index"]

PLACE = "sqlite:path or postgresql://user@host/database"
QUESTIONS = {
    "depth": "the number of messages in each state",
    "message": "the latest change of each uncollected message with an id",
    "history": "every stored change of the messages with an id",
    "times": "the time that messages spent in each state",
    "errors": "attempts that ended without the work being done",
}
OF_MESSAGE = ("message", "history")


def add_index(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream index`."""
    actions = command.add_subparsers(dest="action", required=True)
    query = actions.add_parser("query", help="query an index")
    query.add_argument("index", help=PLACE)
    text = "; ".join(f"{name}: {what}" for name, what in QUESTIONS.items())
    query.add_argument("question", choices=[*QUESTIONS], help=text)
    query.add_argument("queue", nargs="?", help="only this queue")
    query.add_argument("id", nargs="?", help="only messages with this id")
    add_wanted(query)
    verify = actions.add_parser(
        "verify", help="find missing changes, and differences from the queues"
    )
    verify.add_argument("index", help=PLACE)
    verify.add_argument(
        "--queues", action="store_true", help="compare with the queues of a cluster"
    )
    add_cluster(verify)
    for made in (query, verify):
        made.add_argument("--json", action="store_true", help="print only one JSON value")
        made.set_defaults(run=run_index)


def run_index(arguments: argparse.Namespace) -> int:
    """Run the command. Exit codes: 0; 1: failed, or the index is incomplete; 2: wrong arguments."""
    from .questions import ask, verify

    try:
        if arguments.action == "verify":
            return verify(arguments)
        if arguments.question in OF_MESSAGE and not arguments.id:
            return fail(arguments, f"{arguments.question} needs QUEUE and ID", 2)
        if arguments.wanted and arguments.question != "depth":
            return fail(arguments, "--wanted is an option of depth only", 2)
        return ask(arguments)
    except (MillstreamError, OSError, ValueError) as error:
        return fail(arguments, f"{type(error).__name__}: {error}", 1)


def fail(arguments: argparse.Namespace, text: str, code: int) -> int:
    """Print the fault; returns the code."""
    print(f"millstream index {arguments.action}: {plain(text)}", file=sys.stderr)
    return code
