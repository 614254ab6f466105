"""Where the directories of bookies are, as rows say, on this machine.

Owns: `places_of`, `file_ledgers`, `topic_reader`. Invariant: directories are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from millstream.providers.ledger.bookie.offline.view import FileBookies, View, bookie_of, viewed
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.protocol.errors import DirectoryRefused
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime.extending import RealDisk

from .content import Content, Source

__all__ = ["file_ledgers", "path_of", "places_of", "topic_reader"]


def path_of(record: BookieRecord) -> str:
    """The directory of a bookie, which one of this machine has there."""
    return record.place.replace("{silo}", record.owner)


def places_of(content: Content, directories: Sequence[str]) -> dict[str, str]:
    """Directories by bookie: those that are named, and where rows say that they are. Raises
    DirectoryRefused, OSError: of what is named."""
    found: dict[str, str] = {}
    for name in directories:
        view = viewed(RealDisk(), str(Path(name).absolute()))
        found[view.name] = str(Path(name).absolute())
        view.close()
    for path in {str(Path(path_of(record)).absolute()) for record in content.bookies.values()}:
        if path not in found.values() and Path(path, "identity").is_file():
            # whose it is says the directory: it may have been lost and made anew, or swapped
            found.setdefault(bookie_of(RealDisk(), path), path)
    return found


@contextmanager
def file_ledgers(
    source: Source, places: dict[str, str], left_out: Callable[[Exception], None]
) -> Iterator[BookieLedgers]:
    """Ledgers that are read out of the directories.

    Args:
        left_out: is told why a directory cannot be read; others may have what is in it.
    """
    views: dict[str, View] = {}
    try:
        for bookie, path in places.items():
            try:
                views[bookie] = viewed(RealDisk(), path)
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
    """Reads the messages of a topic; to be closed."""
    return TopicReader(ledgers, topic_rows(source.metadata), topic, source.process.clock.now)
