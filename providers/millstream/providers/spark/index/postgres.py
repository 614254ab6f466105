"""The index in PostgreSQL, in a schema of its own, by psycopg.

Owns: `PostgresDatabase`. Not: tables (`database`). Invariants: as `Database` says; of all sessions
one writes: it holds an advisory lock, which ends with its connection; a name for people has no
password. Why psycopg: docs/decisions/0019.
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
"""How long the lock is waited for: a server notices a moment later that a writer died."""
CONNECT_S = 10
_COPY = f"COPY incoming ({', '.join(INCOMING_COLUMNS)}) FROM STDIN"


class PostgresDatabase:
    """A session.

    Args:
        url: `postgresql://user:password@host:port/database`.
        writes: hold the lock, and make the schema if it is not there.
    Raises: ConfigError (psycopg is missing, the schema is, or another session writes),
        StorageUnavailable.
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
            raise ConfigError(f"{self.name} has no schema {SCHEMA}: where is the index?")
        self.run(f"SET search_path TO {SCHEMA}")

    def _lock(self) -> None:
        self.run(f"SET lock_timeout = {LOCK_MS}")
        try:
            self.run("SELECT pg_advisory_lock(?)", (LOCK,))
        except StorageUnavailable as error:
            if not isinstance(error.__cause__, self._busy):
                raise
            raise ConfigError(
                f"{self.name}: another session writes this index: of one index one job writes"
            ) from None
        self.run("SET lock_timeout = 0")

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise StorageUnavailable(f"{self.name}: {str(error).strip()}") from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement."""
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
        """All of it or none."""
        with self._translate(), self._connection.transaction():
            yield

    def with_pairs(self, pairs: dict[str, str]) -> tuple[str, list[Any]]:
        """Metadata have these pairs."""
        one = "metadata::jsonb ->> ? = ?"
        values = [part for pair in pairs.items() for part in pair]
        return " AND ".join([one] * len(pairs)) or "true", values

    def is_empty(self) -> bool:
        """No tables in the schema."""
        return not self.run("SELECT 1 FROM pg_tables WHERE schemaname = ? LIMIT 1", (SCHEMA,))

    def close(self) -> None:
        """Close it."""
        self._connection.close()
