"""The index in a file of SQLite (WAL): one process writes, and any number of processes read.

This module owns `SqliteDatabase`, and `database` owns the tables. It keeps the invariants of
`Database`. One process at a time writes: it holds the lock of a directory beside the file. A commit
is on disk when it returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.runtime import ConfigError, StorageUnavailable
from millstream.runtime.extending import DirLock, RealDisk

from .database import INCOMING, INCOMING_COLUMNS

__all__ = ["SqliteDatabase"]

BUSY_S = 30.0
_FILL = f"INSERT INTO incoming VALUES ({', '.join('?' * len(INCOMING_COLUMNS))})"


class SqliteDatabase:
    """A connection to a file.

    Args:
        path: The file. A writer creates its directory.
        writes: Hold the lock, and create the file if it does not exist.

    Raises:
        ConfigError: The file does not exist or is no SQLite file, or another process writes.
        StorageUnavailable: The file cannot be used.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self.name = str(path)
        self._lock: DirLock | None = None
        if not writes and not path.exists():
            raise ConfigError(f"{path} does not exist: there is no index")
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock(path)
        try:
            with self._translate():
                self._connection = self._open(path, writes)
        except BaseException:
            self._unlock()
            raise

    def _open(self, path: Path, writes: bool) -> sqlite3.Connection:
        mode = "rwc" if writes else "ro"
        target = f"{path.absolute().as_uri()}?mode={mode}"
        found = sqlite3.connect(
            target, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            if writes:
                found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = FULL")
            found.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.Error:
            found.close()
            raise
        return found

    def _take_lock(self, path: Path) -> DirLock:
        disk, place = RealDisk(), f"{path}.writer"
        disk.make_dir(place)
        found = disk.lock(place)
        if found is None:
            raise ConfigError(
                f"{path}: another process writes this index; only one job at a time may write"
            )
        return found

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
                raise ConfigError(f"{self.name} is not a SQLite file: give another path") from None
            raise StorageUnavailable(f"{self.name}: {error}") from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement."""
        with self._translate():
            return self._connection.execute(sql, values).fetchall()

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Fill `incoming`."""
        with self._translate():
            self._connection.execute("DROP TABLE IF EXISTS temp.incoming")
            self._connection.execute(INCOMING)
            self._connection.executemany(_FILL, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.run("ROLLBACK")
            raise

    def with_pairs(self, pairs: dict[str, str]) -> tuple[str, list[Any]]:
        """Return a condition for metadata with these pairs."""
        one = "EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = ? AND value = ?)"
        values = [part for pair in pairs.items() for part in pair]
        return " AND ".join([one] * len(pairs)) or "true", values

    def is_empty(self) -> bool:
        """Whether the file has no tables."""
        return not self.run("SELECT 1 FROM sqlite_master LIMIT 1")

    def close(self) -> None:
        """Close the connection, and release the lock."""
        self._connection.close()
        self._unlock()
