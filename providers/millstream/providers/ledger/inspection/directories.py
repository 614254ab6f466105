"""The directories of bookies on this machine: finding, reading and repairing them.

Owns: `places_of`, `file_ledgers`, `topic_reader`, which only read; `open_repair_target`, which runs
the bookies. Invariant: no other process writes a directory that is written here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.bookie.offline.view import FileBookies, View, bookie_of, read_view
from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.protocol.errors import DirectoryRefused
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.repair_target import RepairTarget
from millstream.providers.ledger.topic.numbers import LostNumbers
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import Env
from millstream.runtime.extending import RealDisk

from .content import Content, Source

__all__ = ["file_ledgers", "open_repair_target", "path_of", "places_of", "topic_reader"]


def path_of(record: BookieRecord) -> str:
    """Return the directory of a bookie that runs on this machine."""
    return record.place.replace("{silo}", record.owner)


def places_of(content: Content, directories: Sequence[str]) -> dict[str, str]:
    """Return directories by bookie: the given ones, and those that the rows name.

    Args:
        content: the rows of the cluster.
        directories: directories of bookies, in addition to those in the rows.

    Raises:
        DirectoryRefused: a given directory is not a bookie's, or is damaged.
        OSError: a given directory cannot be read.
    """
    found: dict[str, str] = {}
    for name in directories:
        view = read_view(RealDisk(), str(Path(name).absolute()))
        found[view.name] = str(Path(name).absolute())
        view.close()
    for path in {str(Path(path_of(record)).absolute()) for record in content.bookies.values()}:
        if path not in found.values() and Path(path, "identity").is_file():
            # the directory itself names its bookie: it may be a new one, or may have been swapped
            found.setdefault(bookie_of(RealDisk(), path), path)
    return found


@contextmanager
def file_ledgers(
    source: Source, places: dict[str, str], left_out: Callable[[Exception], None]
) -> Iterator[BookieLedgers]:
    """Open ledgers for reading out of the directories, for the length of a block.

    Args:
        source: the rows of the cluster.
        places: the directories, by bookie.
        left_out: called with the error of a directory that cannot be read. Other directories may
            have its entries.
    """
    views: dict[str, View] = {}
    try:
        for bookie, path in places.items():
            try:
                views[bookie] = read_view(RealDisk(), path)
            except (DirectoryRefused, OSError) as error:
                left_out(error)
        rows = ledger_rows(source.metadata)
        context = HandleContext(
            FileBookies(views), rows, source.process.clock, source.process.tasks, HandleOptions()
        )
        yield BookieLedgers(context, LedgerIds(source.metadata))
    finally:
        for view in views.values():
            view.close()


def topic_reader(source: Source, ledgers: BookieLedgers, topic: str) -> TopicReader:
    """Return a reader of a topic's messages. Close it after use."""
    return TopicReader(ledgers, topic_rows(source.metadata), topic, source.process.clock.now)


@asynccontextmanager
async def open_repair_target(
    source: Source, content: Content, places: Mapping[str, str]
) -> AsyncIterator[RepairTarget]:
    """Run the bookies that have rows, by their directories, for the length of a block.

    Raises:
        QueueUnavailable: a silo runs one of them.
    """
    homes = [
        Home(path, content.bookies[bookie].place, content.bookies[bookie].owner)
        for bookie, path in places.items()
        if bookie in content.bookies
    ]
    own = OwnLedgers(homes, source.store, source.scope, BookieOptions(), Env(), RealDisk())
    try:
        await own.start(0.0)
        lost = content.list_lost_bookies()
        numbers = LostNumbers(topic_rows(source.metadata))
        yield RepairTarget(own.context, numbers, lost.__contains__)
    finally:
        await own.aclose()
