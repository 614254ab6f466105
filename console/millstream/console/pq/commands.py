"""`millstream pq`: inspects priority queues of a running cluster, and works with their messages.

This module owns the arguments and the line of an error. `actions` does the work and serves the HTTP
API. The content of a message or an error cannot control the terminal, except where its bytes are
requested.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TypeAlias

from millstream.console.arguments import (
    part_name,
    port,
    positive,
    seconds,
    some_seconds,
    whole,
)
from millstream.console.dead_letters import plain
from millstream.console.gateway import add_gateway
from millstream.runtime import MillstreamError
from millstream.runtime.extending import show_value

__all__ = ["add_pq"]

Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
LINES = 100
STATES = ("invisible", "pending", "running", "completed", "canceled", "errored")
PORT = 7780


def add_pq(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream pq`."""
    actions = command.add_subparsers(dest="action", required=True)
    add_queues(actions)
    add_messages(actions)
    add_work(actions)
    add_serve(actions)


def add_queues(actions: Actions) -> None:
    ls = add_command(actions, "ls", "list names of queues, one per line")
    ls.add_argument("--prefix", default="", help="only names that begin with this text")
    ls.add_argument(
        "--limit", type=positive, default=LINES, help=f"maximum number of names ({LINES})"
    )
    of_queue(actions, "show", "show settings and depth of a queue")
    depth = of_queue(actions, "depth", "count the messages in each state")
    add_wanted(depth)
    depth.add_argument("--value", help="only messages with this exclusivity value")
    depth.add_argument("--values", action="store_true", help="count for each exclusivity value")
    for name, text in (("create", "create a queue"), ("configure", "change settings of a queue")):
        made = of_queue(actions, name, text)
        made.add_argument("--exclusive", metavar="KEY", help="set exclusivity_key=KEY")
        made.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting, such as lease_ms=5000; may be repeated",
        )
    made.add_argument("--version", type=int, help="fail if the settings have another version")
    delete = of_queue(actions, "delete", "delete a queue with all of its messages")
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")
    clock = of_queue(actions, "clock", "show the time of each shard beside its machine's clock")
    clock.add_argument(
        "--reset", action="store_true", help="set the queue's time to the clock of its machine"
    )


def add_messages(actions: Actions) -> None:
    enqueue = of_queue(actions, "enqueue", "enqueue a message")
    enqueue.add_argument(
        "payload", help="a text, @FILE for the content of a file, or - for standard input"
    )
    enqueue.add_argument(
        "--id", help="id of the message; a repeat with the same content adds no second message"
    )
    enqueue.add_argument(
        "--priority", help="a number (lower is more urgent), or a class such as HIGH"
    )
    add_pairs(enqueue, "--metadata", "a metadata pair; may be repeated")
    enqueue.add_argument(
        "--invisible", type=seconds, metavar="S", help="seconds until the message can be leased"
    )
    enqueue.add_argument(
        "--lease",
        type=some_seconds,
        metavar="S",
        help="duration of a lease of the message, in seconds",
    )
    enqueue.add_argument("--attempts", type=positive, help="how often the message may be leased")
    get = of_message(actions, "get", "show one message")
    get.add_argument("--payload", action="store_true", help="write only the payload")
    for name, text in (
        ("peek", "show the messages that the next dequeues would lease"),
        ("list", "list messages in the order in which they were enqueued"),
    ):
        many = of_queue(actions, name, text)
        many.add_argument(
            "--count", type=positive, default=20, help="maximum number of messages (20)"
        )
        add_wanted(many)
    many.add_argument(
        "--after", type=whole, default=0, metavar="N", help="only messages after this sequence"
    )
    many.add_argument("--state", choices=STATES, help="only messages in this state")
    cancel = of_message(actions, "cancel", "cancel a message in any unfinished state")
    cancel.add_argument(
        "--reason", default="", help="the reason; `get` shows it if the message was leased"
    )
    of_message(actions, "prioritise", "change the priority of a message").add_argument(
        "priority", type=int
    )
    requeue = of_message(actions, "requeue", "enqueue a copy of an errored or canceled message")
    requeue.add_argument(
        "--new-id",
        help="id of the copy; default: derived from the message, so a repeat adds no second copy",
    )


def add_work(actions: Actions) -> None:
    dequeue = of_queue(actions, "dequeue", "lease the most urgent messages")
    dequeue.add_argument("--worker", default="pq", help="name of the worker, for operators (pq)")
    dequeue.add_argument("--count", type=positive, default=1, help="maximum number of leases (1)")
    dequeue.add_argument(
        "--wait", type=seconds, default=0.0, metavar="S", help="seconds to wait for a first message"
    )
    dequeue.add_argument(
        "--lease", type=some_seconds, metavar="S", help="duration of the leases, in seconds"
    )
    add_wanted(dequeue)
    of_lease(actions, "complete", "complete a message: the work is done")
    fail = of_lease(actions, "fail", "make a message errored: the work cannot be done")
    release = of_lease(actions, "release", "return a message to the queue")
    release.add_argument(
        "--delay",
        type=seconds,
        default=0.0,
        metavar="S",
        help="seconds until the message can be leased again",
    )
    release.add_argument("--refund", action="store_true", help="do not count the attempt")
    for one in (fail, release):
        one.add_argument("--reason", default="", help="the reason, for operators")
    extend = of_lease(actions, "extend", "extend a lease")
    extend.add_argument(
        "--lease",
        type=some_seconds,
        metavar="S",
        help="seconds from now; default: the setting of the message or the queue",
    )


def add_serve(actions: Actions) -> None:
    serve = actions.add_parser("serve", help="serve the HTTP API until Ctrl-C")
    add_cluster(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    serve.add_argument(
        "--port", type=port, default=PORT, help=f"port to listen on; 0 chooses a free one ({PORT})"
    )
    serve.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token; default: the variable MILLSTREAM_PQ_TOKEN",
    )
    serve.add_argument(
        "--insecure",
        action="store_true",
        help="allow addresses other than loopback; nothing is encrypted",
    )
    serve.set_defaults(run=run_pq, json=False)


# -- shared by commands


def add_command(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    """Add a command; every command can print JSON."""
    made = actions.add_parser(name, help=text)
    add_cluster(made)
    made.add_argument("--json", action="store_true", help="print one line with one JSON value")
    made.set_defaults(run=run_pq)
    return made


def of_queue(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = add_command(actions, name, text)
    made.add_argument("queue", help="name of the queue")
    return made


def of_message(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = of_queue(actions, name, text)
    made.add_argument("id", help="id of the message")
    return made


def of_lease(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = of_message(actions, name, text)
    made.add_argument("token", help="token of the lease, such as 17.2; `dequeue` prints it")
    return made


def add_cluster(made: argparse.ArgumentParser) -> None:
    add_gateway(made)
    made.add_argument(
        "--part",
        default="priority",
        type=part_name,
        help="name of the silos' part that has the queues (priority)",
    )


def add_wanted(made: argparse.ArgumentParser) -> None:
    add_pairs(made, "--wanted", "only messages with this pair; may be repeated")


def add_pairs(made: argparse.ArgumentParser, name: str, text: str) -> None:
    made.add_argument(name, action="append", default=[], type=pair, metavar="KEY=VALUE", help=text)


def pair(text: str) -> tuple[str, str]:
    """Parse `key=value`."""
    key, is_pair, value = text.partition("=")
    if not is_pair or not key:
        raise argparse.ArgumentTypeError(f"{show_value(text)} is not a pair: write key=value")
    return key, value


# -- running a command


def run_pq(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from .actions import act  # loads the queues only for these commands

    if arguments.action == "delete" and not arguments.yes:
        return fail(
            arguments, "this deletes the queue and all of its messages: add --yes to confirm", 2
        )
    try:
        return asyncio.run(act(arguments))
    except (MillstreamError, LookupError, OSError, ValueError) as error:
        return fail(arguments, f"{type(error).__name__}: {error}", 1)


def fail(arguments: argparse.Namespace, text: str, code: int) -> int:
    """Print the fault; returns the code."""
    print(f"millstream pq {arguments.action}: {plain(text)}", file=sys.stderr)
    return code
