"""The work of each command of `millstream pq`: calls to the cluster.

`commands` owns the arguments, and `tables` the output.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from millstream.console.gateway import connect_gateway
from millstream.providers.priority import (
    Done,
    Enqueued,
    LeaseToken,
    PriorityClass,
    PriorityQueue,
    QueueSettings,
    RequestInvalid,
    SettingsRow,
    State,
    priority_queue,
    priority_queues,
)
from millstream.runtime import Client, ConfigError
from millstream.runtime.extending import show_text, show_value
from millstream.runtime.run import stop_signals

from . import tables

__all__ = ["act"]

DIGITS_MAX = 16
TRUE, FALSE = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, slots=True)
class Asked:
    """One command: its arguments and its client."""

    arguments: argparse.Namespace
    client: Client

    @property
    def queue(self) -> PriorityQueue:
        """The queue that the arguments name. Raises RequestInvalid."""
        return priority_queue(self.client, self.arguments.queue, part=self.arguments.part)

    def show(self, value: object, lines: Callable[[], list[str]]) -> None:
        """Print the value as JSON or as lines, as the arguments say."""
        tables.show(self.arguments.json, value, lines)


async def act(arguments: argparse.Namespace) -> int:
    """Connect, and run the action. Raises errors of the client."""
    async with connect_gateway(arguments) as client:
        if arguments.action == "serve":
            return await serve(client, arguments)
        await ACTIONS[arguments.action](Asked(arguments, client))
        return 0


# -- queues


async def ls(asked: Asked) -> None:
    prefix, most, part = asked.arguments.prefix, asked.arguments.limit, asked.arguments.part
    found: list[str] = []
    async for name in priority_queues(asked.client, prefix, part=part):
        if len(found) == most:
            print(f"there are more than {most} names: raise --limit", file=sys.stderr)
            break
        found.append(name)
    asked.show(found, lambda: found)


async def show(asked: Asked) -> None:
    row, depth = await asked.queue.settings(), await asked.queue.depth()
    told = {**tables.settings(row), "depth": tables.depth(depth)}
    asked.show(told, lambda: tables.queue_lines(row, depth))


async def depth(asked: Asked) -> None:
    arguments = asked.arguments
    if arguments.values:
        values = await asked.queue.values()
        told = {value: tables.depth(counts) for value, counts in values.items()}
        return asked.show(told, lambda: tables.values_lines(values))
    counts = await asked.queue.depth(wanted=arguments.wanted, value=arguments.value)
    return asked.show(tables.depth(counts), lambda: tables.depth_lines(counts))


async def create(asked: Asked) -> None:
    given = changes(asked.arguments)
    show_settings(asked, await asked.queue.create(QueueSettings(**given)))


async def configure(asked: Asked) -> None:
    known, given = await asked.queue.settings(), changes(asked.arguments)
    version = asked.arguments.version
    wanted = known.version if version is None else version
    row = await asked.queue.configure(replace(known.settings, **given), version=wanted)
    show_settings(asked, row)


def show_settings(asked: Asked, row: SettingsRow) -> None:
    name = asked.arguments.queue
    asked.show(tables.settings(row), lambda: [f"{name}: settings have version {row.version}"])


def changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given settings. Raises RequestInvalid."""
    found = {}
    for text in arguments.set:
        name, is_pair, value = text.partition("=")
        known = asdict(QueueSettings())
        if not is_pair or name not in known:
            names = ", ".join(one.name for one in fields(QueueSettings))
            raise RequestInvalid(
                arguments.queue, show_text(name), f"is not a setting: choose one of {names}"
            )
        found[name] = setting(arguments.queue, name, known[name], value)
    return found | ({"exclusivity_key": arguments.exclusive} if arguments.exclusive else {})


def setting(queue: str, name: str, usual: object, text: str) -> Any:
    """Parse a setting by the type of its default. Raises RequestInvalid."""
    if name == "shapes":
        return tuple(tuple(shape.split(",")) for shape in text.split(";") if shape)
    if name == "exclusivity_key":
        return text or None
    if isinstance(usual, bool):
        if text.lower() not in TRUE + FALSE:
            raise RequestInvalid(queue, name, f"is {show_value(text)}, neither yes nor no")
        return text.lower() in TRUE
    try:
        return int(text)
    except ValueError:
        raise RequestInvalid(queue, name, f"is {show_value(text)}, not a whole number") from None


async def delete(asked: Asked) -> None:
    await asked.queue.delete()
    asked.show({"deleted": asked.arguments.queue}, lambda: [f"deleted {asked.arguments.queue}"])


async def clock(asked: Asked) -> None:
    queue = asked.queue
    readings = await (queue.reset_clocks() if asked.arguments.reset else queue.clocks())
    asked.show([tables.row(one) for one in readings], lambda: tables.clock_lines(readings))


# -- messages


async def enqueue(asked: Asked) -> None:
    arguments = asked.arguments
    done = await asked.queue.enqueue(
        payload_of(arguments),
        priority=priority_of(arguments),
        id=arguments.id,
        metadata=arguments.metadata,
        invisible_s=arguments.invisible,
        lease_s=arguments.lease,
        attempts=arguments.attempts,
    )
    show_entered(asked, done)


def show_entered(asked: Asked, done: Enqueued) -> None:
    """Print the result of an enqueue."""
    word = "enqueued" if done.is_changed else "already enqueued:"
    asked.show(tables.row(done), lambda: [f"{word} {done.id} ({tables.name(done.state)})"])


def payload_of(arguments: argparse.Namespace) -> bytes:
    """Return the payload from one of three sources. Raises OSError."""
    text: str = arguments.payload
    if text == "-":
        return sys.stdin.buffer.read()
    return Path(text[1:]).read_bytes() if text.startswith("@") else os.fsencode(text)


def priority_of(arguments: argparse.Namespace) -> int | PriorityClass | None:
    """Return the option `--priority` as a number or a class; None if the option was not given.

    The name of a class is in upper case, such as `HIGH`. Raises RequestInvalid.
    """
    text = arguments.priority
    if text is None or text in PriorityClass.__members__:
        return None if text is None else PriorityClass[text]
    try:
        return int(text)
    except ValueError:
        names = ", ".join(PriorityClass.__members__)
        what = f"is {show_value(text)}, neither a whole number nor one of {names}"
        raise RequestInvalid(arguments.queue, "priority", what) from None


async def get(asked: Asked) -> None:
    view = await asked.queue.get(asked.arguments.id)
    if asked.arguments.payload and not asked.arguments.json:
        sys.stdout.buffer.write(view.payload)
        sys.stdout.buffer.flush()
    else:
        asked.show(tables.row(view), lambda: tables.message_lines(view))


async def peek(asked: Asked) -> None:
    views = await asked.queue.peek(asked.arguments.count, wanted=asked.arguments.wanted)
    asked.show([tables.row(view) for view in views], lambda: tables.messages_lines(views))


async def list_queues(asked: Asked) -> None:
    arguments = asked.arguments
    state = State[arguments.state.upper()] if arguments.state else None
    page = partial(asked.queue.page, state=state, wanted=arguments.wanted)
    views = await page(arguments.count, after=arguments.after)
    asked.show([tables.row(view) for view in views], lambda: tables.messages_lines(views))
    if views and await page(1, after=views[-1].sequence):
        print(f"there are more messages: --after {views[-1].sequence}", file=sys.stderr)


async def cancel(asked: Asked) -> None:
    show_told(asked, await asked.queue.cancel(asked.arguments.id, reason=asked.arguments.reason))


async def prioritise(asked: Asked) -> None:
    show_told(asked, await asked.queue.prioritise(asked.arguments.id, asked.arguments.priority))


async def requeue(asked: Asked) -> None:
    show_entered(
        asked, await asked.queue.requeue(asked.arguments.id, new_id=asked.arguments.new_id)
    )


# -- leases


async def dequeue(asked: Asked) -> None:
    arguments = asked.arguments
    leases = await asked.queue.dequeue(
        worker=arguments.worker,
        count=arguments.count,
        wanted=arguments.wanted,
        lease_s=arguments.lease,
        wait_s=arguments.wait,
    )
    asked.show([tables.lease(one) for one in leases], lambda: tables.leases_lines(leases))
    if not leases:
        print("no message is available", file=sys.stderr)


async def complete(asked: Asked) -> None:
    show_told(asked, await asked.queue.complete(asked.arguments.id, token_of(asked.arguments)))


async def fail(asked: Asked) -> None:
    arguments = asked.arguments
    token = token_of(arguments)
    show_told(asked, await asked.queue.fail(arguments.id, token, reason=arguments.reason))


async def release(asked: Asked) -> None:
    arguments = asked.arguments
    done = await asked.queue.release(
        arguments.id,
        token_of(arguments),
        delay_s=arguments.delay,
        refund=arguments.refund,
        reason=arguments.reason,
    )
    show_told(asked, done)


async def extend(asked: Asked) -> None:
    arguments = asked.arguments
    show_told(asked, await asked.queue.extend(arguments.id, token_of(arguments), arguments.lease))


def token_of(arguments: argparse.Namespace) -> LeaseToken:
    """Parse the token. Raises RequestInvalid."""
    parts = arguments.token.split(".")
    if len(parts) != 2 or not all(
        part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts
    ):
        what = f"is {show_value(arguments.token)}, not a lease token such as 17.2"
        raise RequestInvalid(arguments.queue, "token", what)
    return LeaseToken(int(parts[0]), int(parts[1]))


def show_told(asked: Asked, done: Done) -> None:
    """Print the result of a change."""
    asked.show(tables.row(done), lambda: [tables.show_done(asked.arguments.id, done)])


ACTIONS: dict[str, Callable[[Asked], Awaitable[None]]] = {
    "ls": ls,
    "show": show,
    "depth": depth,
    "create": create,
    "configure": configure,
    "delete": delete,
    "clock": clock,
    "enqueue": enqueue,
    "get": get,
    "peek": peek,
    "list": list_queues,
    "cancel": cancel,
    "prioritise": prioritise,
    "requeue": requeue,
    "dequeue": dequeue,
    "complete": complete,
    "fail": fail,
    "release": release,
    "extend": extend,
}


async def serve(client: Client, arguments: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises ConfigError, OSError (the port is in use)."""
    try:
        from millstream.providers.priority.http import PriorityApi
    except ModuleNotFoundError as error:
        text = f"{error.name} is missing. In a clone of Millstream, run "
        text += "pip install -c constraints.txt '.[http]'"
        raise ConfigError(text) from error
    api = PriorityApi(
        client,
        token=arguments.token_file,
        host=arguments.host,
        port=arguments.port,
        part=arguments.part,
        insecure=arguments.insecure,
    )
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, ended.set)
    async with api:
        print(f"priority queues of {arguments.cluster!r} at {api.url}", flush=True)
        await ended.wait()
    return 0
