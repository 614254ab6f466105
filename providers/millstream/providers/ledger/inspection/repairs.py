"""Mending ledgers while no silo runs: with the directories of this machine.

Owns: `mending`. Invariant: it has the directories that it writes to itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.repair_target import RepairTarget
from millstream.providers.ledger.topic.numbers import LostNumbers
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import Env
from millstream.runtime.extending import RealDisk

from .content import Content, Source

__all__ = ["mending"]


@asynccontextmanager
async def mending(
    source: Source, content: Content, places: Mapping[str, str]
) -> AsyncIterator[RepairTarget]:
    """Run the bookies that have rows, by their directories. Raises QueueUnavailable: a silo runs
    one of them."""
    homes = [
        Home(path, content.bookies[bookie].place, content.bookies[bookie].owner)
        for bookie, path in places.items()
        if bookie in content.bookies
    ]
    own = OwnLedgers(homes, source.store, source.scope, BookieOptions(), Env(), RealDisk())
    try:
        await own.start(0.0)
        lost = content.lost_bookies()
        numbers = LostNumbers(topic_rows(source.metadata))
        yield RepairTarget(own.context, numbers, lost.__contains__)
    finally:
        await own.aclose()
