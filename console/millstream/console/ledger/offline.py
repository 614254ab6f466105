"""Mending ledgers while no silo runs: with the directories of this machine.

Owns: `stopped_cluster`. Invariant: it has the directories that it writes to itself.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.repair_target import RepairTarget
from millstream.providers.ledger.topic.numbers import LostNumbers
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import ConfigError, Env, QueueUnavailable
from millstream.runtime.extending import RealDisk

from .files import places_of
from .source import source_of

__all__ = ["stopped_cluster"]


@asynccontextmanager
async def stopped_cluster(arguments: argparse.Namespace) -> AsyncIterator[RepairTarget]:
    """The bookies of this machine, run here. Raises LookupError (no such ledger), ConfigError (a
    silo runs one of them)."""
    async with source_of(arguments) as source:
        content = await source.content()
        for ledger in arguments.ledger:
            content.ledger(ledger)
        homes = [
            Home(path, content.bookies[bookie].place, content.bookies[bookie].owner)
            for bookie, path in places_of(content, arguments.directory).items()
            if bookie in content.bookies
        ]
        own = OwnLedgers(homes, source.store, source.scope, BookieOptions(), Env(), RealDisk())
        try:
            await own.start(0.0)
            lost = content.lost_bookies()
            numbers = LostNumbers(topic_rows(source.metadata))
            yield RepairTarget(own.context, numbers, lost.__contains__)
        except QueueUnavailable as error:
            text = "say --gateway instead of --store, or stop the silos that run its bookies"
            raise ConfigError(f"{error}. What can be done: {text}") from error
        finally:
            await own.aclose()
