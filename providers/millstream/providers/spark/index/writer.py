"""Stores batches in an index: in tables, and as files by day if wanted.

This module owns `IndexWriter` and the order of the steps. `tables` and `files` own the steps, and
`job` the use of Spark. If the process crashes after any step and the batch is repeated, tables and
files look as if the batch had been stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from millstream.runtime import StorageUnavailable
from millstream.runtime.extending import Disk

from .changes import DAY_MS, ChangeRow
from .database import Database, create, keep_source
from .files import HistoryFiles
from .options import IndexOptions
from .place import open_database
from .tables import Applied, Tables

__all__ = ["IndexWriter"]


class IndexWriter:
    """Writes an index of priority queues, for a job of your own; `start_index` uses it.

    Only one process at a time may write an index. Call `prepare` first, then `apply` for each
    batch.

    Args:
        place: The database: `sqlite:path` or `postgresql://user@host/database`.
        options: How to keep the index. Default: `IndexOptions()`.
        disk: The disk for Parquet files. None: the disk of the machine.
    """

    def __init__(
        self, place: str, options: IndexOptions | None = None, *, disk: Disk | None = None
    ) -> None:
        self._place = place
        self._options = options or IndexOptions()
        self._disk = disk

    def prepare(self, source: str) -> None:
        """Create the tables, and store the source of the changes.

        Args:
            source: The source of the changes. An index has the changes of one source.

        Raises:
            ConfigError: `place` is not valid, another process writes the database, or the database
                has other content or the changes of another source.
            StorageUnavailable: The database cannot be opened or written.
        """
        with closing(open_database(self._place, writes=True)) as database:
            create(database)
            keep_source(database, source)

    def apply(self, query: str, batch: int, rows: Sequence[ChangeRow], now_ms: int) -> Applied:
        """Store a batch. A batch that is already stored is skipped.

        Args:
            query: The source of the batch numbers, such as the id of a Spark query. Give a repeated
                batch the same one.
            batch: The number of the batch. The numbers of a query only grow.
            rows: The changes of the batch.
            now_ms: The present time, in ms. It decides which history is too old.

        Returns:
            The numbers of changes, and whether the batch is a repeat.

        Raises:
            ConfigError: As for `prepare`.
            StorageUnavailable: The database cannot be written, and nothing of the batch is stored.
        """
        with closing(open_database(self._place, writes=True)) as database:
            return self._apply_in(database, query, batch, rows, now_ms)

    def _apply_in(
        self, database: Database, query: str, batch: int, rows: Sequence[ChangeRow], now_ms: int
    ) -> Applied:
        """Store a batch in a database that is open for writing."""
        create(database)
        tables, days = Tables(database), self._options.history_days
        keep_ms = None if days is None else now_ms - days * DAY_MS
        if self._options.parquet is None:
            return tables.apply(query, batch, rows, keep_after_ms=keep_ms)
        try:
            return self._with_files(self._options.parquet, tables, query, batch, rows, keep_ms)
        except OSError as error:
            raise StorageUnavailable(f"{self._options.parquet}: {error}") from error

    def _with_files(
        self,
        directory: Path,
        tables: Tables,
        query: str,
        batch: int,
        rows: Sequence[ChangeRow],
        keep_ms: int | None,
    ) -> Applied:
        files = HistoryFiles(directory, self._disk)
        files.settle(tables.marker)

        def save(new: Sequence[ChangeRow]) -> None:
            files.save(query, batch, new)

        done = tables.apply(query, batch, rows, keep_after_ms=keep_ms, save=save)
        files.settle(tables.marker)
        files.trim(done.trimmed_before_ms)
        return done
