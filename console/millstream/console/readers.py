"""`millstream queues readers | let-go`: for whom queues are kept, and for whom no longer.

Owns: the arguments, and what is printed. Not: keeping (`millstream.streams.rewinding`).
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
    """Actions of `millstream queues`."""
    readers = actions.add_parser("readers", help="for whom queues are kept, as for Spark")
    readers.set_defaults(run=run_readers, name=[])
    let_go = actions.add_parser("let-go", help="keep nothing for a reader any more")
    let_go.add_argument(
        "name", nargs="+", type=utf8, metavar="READER", help="as `readers` prints it"
    )
    let_go.set_defaults(run=run_readers)
    for one in (readers, let_go):
        add_cluster(one)


def run_readers(arguments: argparse.Namespace) -> int:
    """List them, or let those that are named go."""
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
        return await _let_go(reads, arguments, list(known))


async def _let_go(reads: QueueReads, arguments: argparse.Namespace, known: list[str]) -> int:
    code = 0
    for name in arguments.name:
        if name in known:
            await reads.let_go(name)
            print(plain(f"let go {name}"))
        else:
            code = _fail(arguments, f"nothing is kept for {name}")
    return code


def _fail(arguments: argparse.Namespace, text: str) -> int:
    """Say what is wrong."""
    print(f"millstream queues {arguments.action}: {plain(text)}", file=sys.stderr)
    return 1
