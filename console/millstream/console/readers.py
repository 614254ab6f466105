"""`millstream queues readers | drop-reader`: readers for which queues keep events.

This module owns the arguments and the output, and `millstream.streams.rewinding` keeps events.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from millstream.runtime import MillstreamError
from millstream.streams.extending import QueueReads

from .arguments import utf8
from .dead_letters import add_cluster, plain
from .gateway import connect_gateway

__all__ = ["add_readers"]

PATIENCE_S = 10.0


def add_readers(actions: argparse._SubParsersAction[Any]) -> None:
    """Add these commands to `millstream queues`."""
    readers = actions.add_parser(
        "readers", help="list readers, such as Spark, for which queues keep events"
    )
    readers.set_defaults(run=run_readers, name=[])
    drop = actions.add_parser("drop-reader", help="stop keeping events for a reader")
    drop.add_argument(
        "name", nargs="+", type=utf8, metavar="READER", help="the name that `readers` prints"
    )
    drop.set_defaults(run=run_readers)
    for one in (readers, drop):
        add_cluster(one)


def run_readers(arguments: argparse.Namespace) -> int:
    """List the readers, or drop the named ones."""
    try:
        return asyncio.run(_act(arguments))
    except (MillstreamError, ValueError) as error:
        return _fail(arguments, f"{type(error).__name__}: {error}")


async def _act(arguments: argparse.Namespace) -> int:
    async with connect_gateway(arguments) as client:
        reads = QueueReads(client.gateway, arguments.provider, "", patience_s=PATIENCE_S)
        known = await reads.list_retained()
        if not arguments.name:
            for reader, positions in sorted(known.items()):
                for queue, position in sorted(positions.items()):
                    print(plain(f"{reader}  {queue}  {position}"))
            return 0
        return await _drop(reads, arguments, list(known))


async def _drop(reads: QueueReads, arguments: argparse.Namespace, known: list[str]) -> int:
    code = 0
    for name in arguments.name:
        if name in known:
            await reads.let_go(name)
            print(plain(f"dropped {name}"))
        else:
            code = _fail(arguments, f"there is no reader {name}")
    return code


def _fail(arguments: argparse.Namespace, text: str) -> int:
    """Print the fault; returns 1."""
    print(f"millstream queues {arguments.action}: {plain(text)}", file=sys.stderr)
    return 1
