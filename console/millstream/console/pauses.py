"""`millstream queues` and `millstream streams`: pauses and resumes queues and streams.

This module owns the arguments and the output. `millstream.streams` owns pausing, and `readers` the
readers of queues.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.runtime import Client, MillstreamError
from millstream.streams import (
    StreamNamespace,
    pause_queue,
    pause_stream,
    resume_queue,
    resume_stream,
)

from .arguments import part_name, utf8
from .dead_letters import add_cluster, plain
from .gateway import connect_gateway
from .readers import add_readers

__all__ = ["add_queues", "add_streams"]

DONE = {"pause": "paused", "resume": "resumed"}
Act = Callable[[Client, argparse.Namespace, str], Awaitable[None]]


def add_queues(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream queues`."""
    actions = command.add_subparsers(dest="action", required=True)
    add_readers(actions)
    for action in _actions(actions, "pause queues: no silo reads them", "end the pause"):
        action.add_argument("name", nargs="+", type=utf8, metavar="QUEUE", help="such as queue-3")
        action.set_defaults(run=run_pausing, act=_of_queue)


def add_streams(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream streams`."""
    actions = command.add_subparsers(dest="action", required=True)
    for action in _actions(actions, "pause all subscriptions of streams", "end the pause"):
        action.add_argument("namespace", type=part_name, help="the namespace of the streams")
        action.add_argument("name", nargs="+", type=utf8, metavar="KEY", help="the key of a stream")
        action.set_defaults(run=run_pausing, act=_of_stream)


def _actions(
    actions: argparse._SubParsersAction[Any], pauses: str, resumes: str
) -> list[argparse.ArgumentParser]:
    made = [actions.add_parser("pause", help=pauses), actions.add_parser("resume", help=resumes)]
    for one in made:
        add_cluster(one)
    return made


def run_pausing(arguments: argparse.Namespace) -> int:
    """Pause or resume each name. Print each failure, and continue with the others."""
    try:
        return asyncio.run(_act(arguments))
    except (MillstreamError, ValueError) as error:
        return _fail(arguments, error)


async def _act(arguments: argparse.Namespace) -> int:
    code = 0
    async with connect_gateway(arguments) as client:
        for name in arguments.name:
            try:
                await arguments.act(client, arguments, name)
            except (MillstreamError, ValueError) as error:
                code = _fail(arguments, error)
            else:
                print(plain(f"{DONE[arguments.action]} {name}"))
    return code


async def _of_queue(client: Client, arguments: argparse.Namespace, name: str) -> None:
    act = pause_queue if arguments.action == "pause" else resume_queue
    await act(client, name, arguments.provider)


async def _of_stream(client: Client, arguments: argparse.Namespace, name: str) -> None:
    act = pause_stream if arguments.action == "pause" else resume_stream
    namespace = StreamNamespace[Any](arguments.namespace, object, provider=arguments.provider)
    await act(client, namespace, name)


def _fail(arguments: argparse.Namespace, error: Exception) -> int:
    """Print the error; returns 1."""
    text = f"{type(error).__name__}: {error}"
    print(f"millstream {arguments.command} {arguments.action}: {plain(text)}", file=sys.stderr)
    return 1
