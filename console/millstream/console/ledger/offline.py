"""Repairing ledgers while no silo runs: with the directories of this machine.

Owns: `open_stopped_cluster`.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.providers.ledger.inspection import RepairTarget, open_repair_target, places_of
from millstream.runtime import ConfigError, QueueUnavailable

from .source import source_of

__all__ = ["open_stopped_cluster"]


@asynccontextmanager
async def open_stopped_cluster(arguments: argparse.Namespace) -> AsyncIterator[RepairTarget]:
    """The bookies of this machine, run here. Raises LookupError (no such ledger), ConfigError (a
    silo runs one of them)."""
    async with source_of(arguments) as source:
        content = await source.content()
        for ledger in arguments.ledger:
            content.ledger(ledger)
        places = places_of(content, arguments.directory)
        try:
            async with open_repair_target(source, content, places) as target:
                yield target
        except QueueUnavailable as error:
            text = "say --gateway instead of --store, or stop the silos that run its bookies"
            raise ConfigError(f"{error}. What can be done: {text}") from error
