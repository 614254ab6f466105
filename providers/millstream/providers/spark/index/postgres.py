"""The index in PostgreSQL, in its own schema, with psycopg.

This module owns `PostgresDatabase`, and `database` owns the tables. It keeps the
invariants of `Database`. One session at a time writes: it holds an advisory lock, which ends with
its connection.
The name that people see has no password. docs/decisions/0019 explains the choice of psycopg.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream.runtime import ConfigError, StorageUnavailable

from .database import INCOMING, INCOMING_COLUMNS

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresDatabase"]

SCHEMA = "priority_index"
LOCK = 0x6D69_6C6C_7374
"""The number of the advisory lock: "millst"."""
LOCK_MS = 5_000
"""How long to wait for the lock: a server notices the crash of a writer a moment later."""
CONNECT_S = 10
_COPY = f"COPY incoming ({', '.join(INCOMING_COLUMNS)}) FROM STDIN"


class PostgresDatabase:
    """A session of PostgreSQL.

    Args:
        url: `postgresql://user:password@host:port/database`.
        writes: Hold the lock, and create the schema if it does not exist.

    Raises:
        ConfigError: psycopg or the schema is missing, or another session writes.
        StorageUnavailable: The database cannot be used.
    """

    def __init__(self, url: str, *, writes: bool) -> None:
        if find_spec("psycopg") is None:
            raise ConfigError("psycopg is not installed: install the extra millstream[index]")
        import psycopg

        self._errors = psycopg.Error
        self._busy = psycopg.errors.LockNotAvailable
        self.name = url.partition("://")[2].rpartition("@")[2]
        with self._translate():
            self._connection: psycopg.Connection = psycopg.connect(
                url, autocommit=True, connect_timeout=CONNECT_S, application_name="millstream"
            )
        try:
            self._begin(writes)
        except BaseException:
            self._connection.close()
            raise

    def _begin(self, writes: bool) -> None:
        if writes:
            self._lock()
            self.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        elif not self.run("SELECT 1 FROM pg_namespace WHERE nspname = ?", (SCHEMA,)):
            raise ConfigError(f"{self.name} has no schema {SCHEMA}: there is no index")
        self.run(f"SET search_path TO {SCHEMA}")

    def _lock(self) -> None:
        self.run(f"SET lock_timeout = {LOCK_MS}")
        try:
            self.run("SELECT pg_advisory_lock(?)", (LOCK,))
        except StorageUnavailable as error:
            if not isinstance(error.__cause__, self._busy):
                raise
            raise ConfigError(
                f"{self.name}: another session writes this index; only one job at a time may write"
            ) from None
        self.run("SET lock_timeout = 0")

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise StorageUnavailable(f"{self.name}: {str(error).strip()}") from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement."""
        with self._translate():
            cursor = self._connection.execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Fill `incoming`."""
        self.run("DROP TABLE IF EXISTS pg_temp.incoming")
        self.run(INCOMING)
        with self._translate(), self._connection.cursor() as cursor:
            with cursor.copy(_COPY.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        self.run("ANALYZE incoming")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction."""
        with self._translate(), self._connection.transaction():
            yield

    def with_pairs(self, pairs: dict[str, str]) -> tuple[str, list[Any]]:
        """Return a condition for metadata with these pairs."""
        one = "metadata::jsonb ->> ? = ?"
        values = [part for pair in pairs.items() for part in pair]
        return " AND ".join([one] * len(pairs)) or "true", values

    def is_empty(self) -> bool:
        """Whether the schema has no tables."""
        return not self.run("SELECT 1 FROM pg_tables WHERE schemaname = ? LIMIT 1", (SCHEMA,))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
