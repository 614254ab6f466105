"""`millstream staged`: shows batches of writers such as Spark, and gives up refused messages.

This module owns the arguments and the output, and `millstream.streams.staging` owns staged writes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from millstream.runtime import MillstreamError
from millstream.streams.extending import RefusedMessage, StagedWrites, WriterStatus

from .arguments import part_name, utf8, whole
from .dead_letters import add_cluster, plain
from .gateway import connect_gateway

__all__ = ["add_staged"]


def add_staged(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream staged`."""
    actions = command.add_subparsers(dest="action", required=True)
    every = actions.add_parser("list", help="list writers, one per line")
    show = actions.add_parser("show", help="show one writer, and its messages that were given up")
    abandon = actions.add_parser(
        "abandon",
        help="give up the messages of a decided batch that queues refuse for good, publish the "
        "others, and let the writer continue",
    )
    for one in (show, abandon):
        one.add_argument("namespace", type=part_name, help="the namespace of the streams")
        one.add_argument("writer", type=utf8, help="the name that `list` prints")
    abandon.add_argument("batch", type=whole, help="the waiting batch that `list` prints")
    for one in (every, show, abandon):
        add_cluster(one)
    command.set_defaults(run=run_staged)


def run_staged(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    try:
        return asyncio.run(_act(arguments))
    except (MillstreamError, LookupError, ValueError) as error:
        text = plain(str(error.args[0] if error.args else error))
        print(f"millstream staged: {type(error).__name__}: {text}", file=sys.stderr)
        return 1


async def _act(arguments: argparse.Namespace) -> int:
    async with connect_gateway(arguments) as client:
        writes = StagedWrites(client.gateway, arguments.provider)
        if arguments.action == "list":
            async for status in writes.writers():
                print(line(status))
            return 0
        where = arguments.namespace, arguments.writer
        if arguments.action == "abandon":
            await writes.abandon(*where, arguments.batch)
        return await _show(writes, await writes.status(*where))


async def _show(writes: StagedWrites, status: WriterStatus) -> int:
    print(line(status))
    abandoned = status.abandoned
    if abandoned is not None:
        print(
            f"batch {abandoned.batch} was abandoned: {abandoned.published} messages are published, "
            f"{abandoned.refused} are not:"
        )
        async for message in writes.iter_refused(*status.name, abandoned.batch):
            print(show_refused(message))
    return 0


def line(status: WriterStatus) -> str:
    """Return a writer in a line: name, last batch, waiting batch, and refusal."""
    namespace, writer = status.name
    found = [f"{namespace}  {writer}", f"last batch {status.last}"]
    if status.waiting is not None:
        found.append(f"batch {status.waiting} waits ({status.messages} messages)")
    if status.is_abandoned:
        found.append("its refused messages are being given up")
    if status.refusal:
        found.append(f"REFUSED: {status.refusal}")
    found.append(f"{status.attempts} attempts open, {status.staged_bytes} bytes staged")
    return plain("  ".join(found))


def show_refused(message: RefusedMessage) -> str:
    """Return a message that was given up, in a line: its place, stream, size and refusal."""
    where = f"part {message.part}, chunk {message.chunk}, message {message.place}"
    size = f"{message.items} items of {message.size_bytes} bytes"
    why = message.why or "reason not stored"
    return plain(f"  {where}: key {message.key!r}, {size}: {why}")
