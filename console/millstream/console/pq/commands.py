"""`millstream pq`: looks into priority queues of a running cluster, and works with their messages.

Owns: the arguments, and what went wrong in a line. Not: the work, and serving the HTTP API
(`actions`). Invariant: what a message or an error holds cannot steer the terminal, but where its
bytes were asked for.
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
    """Commands and options of `millstream pq`."""
    actions = command.add_subparsers(dest="action", required=True)
    add_queues(actions)
    add_messages(actions)
    add_work(actions)
    add_serve(actions)


def add_queues(actions: Actions) -> None:
    ls = add_command(actions, "ls", "names of queues, a line each")
    ls.add_argument("--prefix", default="", help="those that begin so")
    ls.add_argument("--limit", type=positive, default=LINES, help=f"lines at most ({LINES})")
    of_queue(actions, "show", "settings and depth of a queue")
    depth = of_queue(actions, "depth", "how many messages are in each state")
    add_wanted(depth)
    depth.add_argument("--value", help="those of this exclusivity value")
    depth.add_argument("--values", action="store_true", help="of each exclusivity value")
    for name, text in (("create", "create a queue"), ("configure", "change its settings")):
        made = of_queue(actions, name, text)
        made.add_argument("--exclusive", metavar="KEY", help="set exclusivity_key=KEY")
        made.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="such as lease_ms=5000"
        )
    made.add_argument("--version", type=int, help="refuse it unless the settings are of this one")
    delete = of_queue(actions, "delete", "delete a queue with all of its messages")
    delete.add_argument("--yes", action="store_true", help="do it")
    clock = of_queue(actions, "clock", "show the time of a queue beside the clock of its machine")
    clock.add_argument("--reset", action="store_true", help="set it to the clock of its machine")


def add_messages(actions: Actions) -> None:
    enqueue = of_queue(actions, "enqueue", "take a message in")
    enqueue.add_argument("payload", help="a text; @FILE: what is in it; -: standard input")
    enqueue.add_argument("--id", help="the same body under the same id is taken once")
    enqueue.add_argument("--priority", help="a number, lower is more urgent; or a class: HIGH")
    add_pairs(enqueue, "--metadata", "a pair of its metadata; may be repeated")
    enqueue.add_argument(
        "--invisible", type=seconds, metavar="S", help="not before so many seconds"
    )
    enqueue.add_argument(
        "--lease", type=some_seconds, metavar="S", help="how long a lease of it lasts"
    )
    enqueue.add_argument("--attempts", type=positive, help="how often it may be leased")
    get = of_message(actions, "get", "one message wholly")
    get.add_argument("--payload", action="store_true", help="write its payload, and no more")
    for name, text in (("peek", "what a dequeue would lease"), ("list", "messages in order")):
        many = of_queue(actions, name, text)
        many.add_argument("--count", type=positive, default=20, help="how many (20)")
        add_wanted(many)
    many.add_argument("--after", type=whole, default=0, metavar="N", help="behind this sequence")
    many.add_argument("--state", choices=STATES, help="those in this state")
    cancel = of_message(actions, "cancel", "it is not needed, in whatever state it is")
    cancel.add_argument("--reason", default="")
    of_message(actions, "prioritise", "give it another priority").add_argument("priority", type=int)
    requeue = of_message(actions, "requeue", "an errored or canceled one, as a new message")
    requeue.add_argument(
        "--new-id", help="of the new one; default: made of the old, the same each time"
    )


def add_work(actions: Actions) -> None:
    dequeue = of_queue(actions, "dequeue", "lease the most urgent messages")
    dequeue.add_argument("--worker", default="pq", help="who works, for people who look (pq)")
    dequeue.add_argument("--count", type=positive, default=1, help="at most so many (1)")
    dequeue.add_argument("--wait", type=seconds, default=0.0, metavar="S", help="for a first one")
    dequeue.add_argument("--lease", type=some_seconds, metavar="S", help="how long the leases last")
    add_wanted(dequeue)
    of_lease(actions, "complete", "the work is done")
    fail = of_lease(actions, "fail", "it cannot be done: the message is errored")
    release = of_lease(actions, "release", "give the message back")
    release.add_argument("--delay", type=seconds, default=0.0, metavar="S", help="not at once")
    release.add_argument("--refund", action="store_true", help="the attempt was none")
    for one in (fail, release):
        one.add_argument("--reason", default="", help="why, for people who look")
    extend = of_lease(actions, "extend", "the lease holds for longer")
    extend.add_argument(
        "--lease", type=some_seconds, metavar="S", help="from now; default: as before"
    )


def add_serve(actions: Actions) -> None:
    serve = actions.add_parser("serve", help="the HTTP API, until Ctrl-C")
    add_cluster(serve)
    serve.add_argument("--host", default="127.0.0.1", help="where it listens (127.0.0.1)")
    serve.add_argument("--port", type=port, default=PORT, help=f"0 takes a free one ({PORT})")
    serve.add_argument(
        "--token-file", type=Path, metavar="FILE", help="has the token (MILLSTREAM_PQ_TOKEN)"
    )
    serve.add_argument("--insecure", action="store_true", help="listen elsewhere than on loopback")
    serve.set_defaults(run=run_pq, json=False)


# -- what commands share


def add_command(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    """A command; every one can print JSON."""
    made = actions.add_parser(name, help=text)
    add_cluster(made)
    made.add_argument("--json", action="store_true", help="print one JSON value and no more")
    made.set_defaults(run=run_pq)
    return made


def of_queue(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = add_command(actions, name, text)
    made.add_argument("queue", help="its name")
    return made


def of_message(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = of_queue(actions, name, text)
    made.add_argument("id", help="of the message")
    return made


def of_lease(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    made = of_message(actions, name, text)
    made.add_argument("token", help="of the lease, as `dequeue` prints it: 17.2")
    return made


def add_cluster(made: argparse.ArgumentParser) -> None:
    add_gateway(made)
    made.add_argument(
        "--part",
        default="priority",
        type=part_name,
        help="of the silos, with the queues (priority)",
    )


def add_wanted(made: argparse.ArgumentParser) -> None:
    add_pairs(made, "--wanted", "only messages with this pair; may be repeated")


def add_pairs(made: argparse.ArgumentParser, name: str, text: str) -> None:
    made.add_argument(name, action="append", default=[], type=pair, metavar="KEY=VALUE", help=text)


def pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, is_pair, value = text.partition("=")
    if not is_pair or not key:
        raise argparse.ArgumentTypeError(f"{show_value(text)} is no pair: write key=value")
    return key, value


# -- running one


def run_pq(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    from .actions import act  # what queues need is loaded for them alone

    if arguments.action == "delete" and not arguments.yes:
        return fail(arguments, "this deletes all of its messages: say --yes", 2)
    try:
        return asyncio.run(act(arguments))
    except (MillstreamError, LookupError, OSError, ValueError) as error:
        return fail(arguments, f"{type(error).__name__}: {error}", 1)


def fail(arguments: argparse.Namespace, text: str, code: int) -> int:
    """Say what is wrong."""
    print(f"millstream pq {arguments.action}: {plain(text)}", file=sys.stderr)
    return code
