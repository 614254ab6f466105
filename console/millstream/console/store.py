"""`millstream store show | migrate`: the schema of Millstream in a PostgreSQL database.

This module owns the arguments and the output, and `millstream.providers.postgres` does the work.
The password may come from the variable of libpq, `PGPASSWORD`, so that no command line shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from millstream.runtime import MillstreamError

from .dead_letters import plain

if TYPE_CHECKING:
    from millstream.providers.postgres import SchemaState

__all__ = ["add_store"]


def add_store(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream store`."""
    actions = command.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="show the version of the schema, and its cluster")
    migrate = actions.add_parser(
        "migrate", help="create the schema, or bring it to the version of this Millstream"
    )
    for one in (show, migrate):
        one.add_argument("url", help="postgresql://user@host/database?schema=name")
        one.set_defaults(run=run_store)


def run_store(arguments: argparse.Namespace) -> int:
    """Run the command. Exit codes: 0 done, 1 failed."""
    try:
        return asyncio.run(_act(arguments))
    except (MillstreamError, ModuleNotFoundError) as error:
        text = f"millstream store {arguments.action}: {type(error).__name__}: {error}"
        print(plain(text), file=sys.stderr)
        return 1


async def _act(arguments: argparse.Namespace) -> int:
    from millstream.providers.postgres import migrate_schema, read_schema

    if arguments.action == "show":
        state = await read_schema(arguments.url)
        print(plain(describe(state)))
        return 0 if state.version else 1
    before, after = await migrate_schema(arguments.url)
    if before == after:
        print(plain(f"nothing to do: {describe(after)}"))
    else:
        print(plain(f"migrated from version {before.version}: {describe(after)}"))
    return 0


def describe(state: SchemaState) -> str:
    """Return the state of a schema as one line."""
    if not state.version:
        return "there is no schema of Millstream: run `millstream store migrate`"
    owner = f"cluster {state.cluster!r}" if state.cluster else "no cluster yet"
    return (
        f"version {state.version}, for programs of version {state.readable_from} or later, {owner}"
    )
