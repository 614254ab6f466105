"""`millstream dead-letters`: lists, shows, redrives and deletes events that were given up.

This module owns the arguments and the output, and `millstream.streams` owns the letters. The
content of an event or an error cannot control the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from millstream.runtime import MillstreamError
from millstream.streams import DeadLetter, DeadLetters, dead_letters

from .arguments import part_name, positive, utf8
from .gateway import add_gateway, connect_gateway

__all__ = ["add_dead_letters"]

LINES_MAX = 100


def add_dead_letters(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream dead-letters`."""
    actions = command.add_subparsers(dest="action", required=True)
    ls = actions.add_parser("ls", help="list dead letters, one per line")
    show = actions.add_parser("show", help="show one dead letter")
    redrive = actions.add_parser("redrive", help="deliver events to their subscriptions again")
    delete = actions.add_parser("delete", help="delete dead letters")
    for action in (ls, show, redrive, delete):
        add_cluster(action)
    for action in (ls, redrive, delete):
        action.add_argument(
            "--subscription", default="", type=utf8, help="only letters of this subscription"
        )
    ls.add_argument("--after", default="", type=utf8, metavar="ID", help="begin after this letter")
    ls.add_argument(
        "--limit", type=positive, default=LINES_MAX, help=f"the most lines ({LINES_MAX})"
    )
    show.add_argument("id", type=utf8, help="the id that `ls` prints")
    for action in (redrive, delete):
        action.add_argument("id", nargs="*", type=utf8, help="ids that `ls` prints")
        action.add_argument("--all", action="store_true", help="all letters that `ls` lists")
    command.set_defaults(run=run_dead_letters)


def add_cluster(action: argparse.ArgumentParser) -> None:
    """Add the options that name the cluster and the provider."""
    add_gateway(action)
    action.add_argument(
        "--provider", default="default", type=part_name, help="the stream provider (default)"
    )


def run_dead_letters(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    is_many = arguments.action in ("redrive", "delete")
    if is_many and bool(arguments.id) == arguments.all:
        return fail("give the ids of letters, or --all", 2)
    if is_many and arguments.id and arguments.subscription:
        return fail("--subscription is an option of --all, not of ids", 2)
    try:
        return asyncio.run(act(arguments))
    except (MillstreamError, LookupError, ValueError) as error:
        return fail(f"{type(error).__name__}: {error}", 1)


def fail(text: str, code: int) -> int:
    """Print the fault; returns the code."""
    print(f"millstream dead-letters: {plain(text)}", file=sys.stderr)
    return code


async def act(arguments: argparse.Namespace) -> int:
    """Connect, and run the action. Raises errors of the client."""
    async with connect_gateway(arguments) as client:
        letters = dead_letters(client, arguments.provider)
        if arguments.action == "ls":
            return await print_list(letters, arguments)
        if arguments.action == "show":
            print(whole(await letters.get(arguments.id)))
            return 0
        return await do_each(letters, arguments)


async def print_list(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    """Print a line for each letter."""
    after, left = arguments.after, arguments.limit
    while left > 0:
        found = await letters.list(arguments.subscription, after=after, limit=min(left, LINES_MAX))
        if not found:
            return await tell_damaged(letters, arguments)
        for letter in found:
            print(line(letter))
        after, left = found[-1].id, left - len(found)
    print(f"there may be more: --after '{plain(after)}'", file=sys.stderr)
    return await tell_damaged(letters, arguments)


async def tell_damaged(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    """Print the ids of damaged letters, which no list has; returns 1 if there are any."""
    found = await letters.list_damaged(arguments.subscription, limit=LINES_MAX)
    if not found:
        return 0
    count = f"{len(found)}{' or more' if len(found) == LINES_MAX else ''}"
    text = (
        f"damaged letters, not listed: {count}; `show ID` shows the fault, `delete ID` deletes one"
    )
    fail(text, 1)
    for letter_id in found:
        print(plain(letter_id), file=sys.stderr)
    return 1


async def do_each(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    """Redrive or delete letters. Print each failure, and continue with the others."""
    failed = 0
    async for letter_id in choose_ids(letters, arguments):
        try:
            if arguments.action == "redrive":
                await letters.redrive(letter_id)
            elif not await letters.delete(letter_id):
                raise LookupError("there is no such letter")
        except Exception as error:  # a handler may raise any error
            failed += 1
            fail(f"{letter_id}: {type(error).__name__}: {error}", 1)
        else:
            print(f"{'redriven' if arguments.action == 'redrive' else 'deleted'} {letter_id}")
    return 1 if failed else 0


async def choose_ids(letters: DeadLetters, arguments: argparse.Namespace) -> AsyncIterator[str]:
    """Yield the given ids, or those of all letters of a subscription."""
    for letter_id in arguments.id:
        yield letter_id
    if arguments.all:
        async for letter in letters.all(arguments.subscription):
            yield letter.id


def line(letter: DeadLetter) -> str:
    """Return one letter in a line: id, time, attempts, first line of the error."""
    error = letter.failure.error.partition("\n")[0]
    return plain(f"{letter.id}  {when(letter)}  {letter.failure.attempts} attempts  {error}")


def whole(letter: DeadLetter) -> str:
    """Return all facts of one letter."""
    failure = letter.failure
    rows = {
        "id": letter.id,
        "given up": when(letter),
        "stream": f"{failure.provider}: {failure.stream} ({failure.queue})",
        "subscription": failure.subscription,
        "handler": f"{failure.grain_type}/{failure.grain_key}.{failure.handler}",
        "token": str(failure.token),
        "attempts": str(failure.attempts),
        **{f"header {name}": value for name, value in failure.headers.items()},
        "item": item_text(failure.body),
    }
    width = max(map(len, rows)) + 2
    lines = [plain(f"{name + ':':<{width}}{value}") for name, value in rows.items()]
    return "\n".join([*lines, "", *map(plain, failure.error.split("\n"))])


def when(letter: DeadLetter) -> str:
    """Return the time when the event was given up."""
    return datetime.fromtimestamp(letter.stored_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def item_text(body: bytes) -> str:
    """Return an item as JSON if possible, otherwise in Python's notation."""
    value = msgspec.msgpack.decode(body)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return repr(value)


def plain(text: str) -> str:
    """Return text of one line, with visible control characters."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
