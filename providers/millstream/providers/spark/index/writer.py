"""Puts batches into an index: tables and, if wanted, files by day.

Owns: `IndexWriter`, the order of the steps. Not: the steps (`tables`, `files`), Spark (`job`).
Invariant: whatever step is the last before the process dies, the batch that is put in again leaves
tables and files as if it had been put in once.
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
    """Writes an index; one process at a time.

    Args:
        place: `sqlite:path` or `postgresql://user@host/database`.
        disk: for the files; None: the machine's.
    Raises: ConfigError (another place, another process writes, no database of ours),
        StorageUnavailable.
    """

    def __init__(
        self, place: str, options: IndexOptions | None = None, *, disk: Disk | None = None
    ) -> None:
        self._place = place
        self._options = options or IndexOptions()
        self._disk = disk

    def prepare(self, source: str) -> None:
        """Make the tables.

        Args:
            source: where the changes come from: an index has those of one source.
        Raises: as the class; ConfigError, too: the index has the changes of another source.
        """
        with closing(open_database(self._place, writes=True)) as database:
            create(database)
            keep_source(database, source)

    def apply(self, query: str, batch: int, rows: Sequence[ChangeRow], now_ms: int) -> Applied:
        """Put a batch in; one that is in already is left alone.

        Args:
            query: who numbers the batches, such as a query's id; the same for a batch that is put
                in again.
            now_ms: by which history is too old.
        Raises: as the class; nothing of the batch is in then.
        """
        with closing(open_database(self._place, writes=True)) as database:
            return self.apply_in(database, query, batch, rows, now_ms)

    def apply_in(
        self, database: Database, query: str, batch: int, rows: Sequence[ChangeRow], now_ms: int
    ) -> Applied:
        """The same, in a database that is open for writing."""
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
