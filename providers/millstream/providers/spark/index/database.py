"""The database that the index needs, and the tables in it.

This module owns `Database` (the contract), tables, views and their version. `tables` and `queries`
use them. The statements of this package run on both SQLite and PostgreSQL, and `?` stands for a
value. A database of another version or of another program is refused and not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from millstream.runtime import ConfigError, StorageUnavailable

from .changes import COLUMNS

__all__ = ["INCOMING", "INCOMING_COLUMNS", "Database", "check_version", "create", "keep_source"]

VERSION = "2"
_TYPES = {
    "shard": "INTEGER NOT NULL",
    "created_ms": "BIGINT NOT NULL",
    "sequence": "BIGINT NOT NULL",
    "version": "BIGINT NOT NULL",
    "from_state": "TEXT",
    "to_state": "TEXT",
    "time_ms": "BIGINT NOT NULL",
    "attempt": "INTEGER NOT NULL",
    "priority": "BIGINT NOT NULL",
    "due_ms": "BIGINT NOT NULL",
    "payload_bytes": "INTEGER NOT NULL",
}
_DEFINED = ", ".join(f"{name} {_TYPES.get(name, 'TEXT NOT NULL')}" for name in COLUMNS)
INCOMING_COLUMNS = (*COLUMNS, "is_latest")
INCOMING = f"CREATE TEMPORARY TABLE incoming ({_DEFINED}, is_latest INTEGER NOT NULL)"
"""The rows of a batch. `is_latest` is 1 for the latest change of each message in the batch."""
_NAME = "queue, id, shard"
_LIFE = f"{_NAME}, created_ms, sequence"
_IN_ORDER = f"PARTITION BY {_LIFE} ORDER BY version"
_SCHEMA = (
    "CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE batches (query TEXT PRIMARY KEY, batch BIGINT NOT NULL)",
    "CREATE TABLE begins (queue TEXT, shard INTEGER, time_ms BIGINT NOT NULL,"
    " PRIMARY KEY (queue, shard))",
    "CREATE TABLE low_water (queue TEXT, era TEXT, token TEXT NOT NULL, PRIMARY KEY (queue, era))",
    f"CREATE TABLE historic ({_DEFINED}, PRIMARY KEY ({_LIFE}, version))",
    "CREATE INDEX historic_time ON historic (time_ms)",
    f"CREATE TABLE current ({_DEFINED}, PRIMARY KEY ({_NAME}))",
    # how long a message was in a state; until_ms is NULL while the message is in the state
    f"CREATE VIEW time_in_state AS SELECT {_LIFE}, version, to_state AS state, since_ms, until_ms"
    f" FROM (SELECT {_LIFE}, version, to_state, time_ms AS since_ms, lead(time_ms)"
    f" OVER ({_IN_ORDER}) AS until_ms FROM historic) AS changes WHERE to_state IS NOT NULL",
    # an attempt that was used without finishing the work; a release that returned the attempt does
    # not count
    f"CREATE VIEW processing_errors AS SELECT {_LIFE}, version, time_ms, step,"
    " attempt, worker, reason FROM (SELECT historic.*, lag(attempt)"
    f" OVER ({_IN_ORDER}) AS before FROM historic) AS changes WHERE step IN ('failed', 'expired')"
    " OR (step = 'released' AND attempt >= coalesce(before, attempt))",
    "CREATE VIEW depths AS SELECT queue, to_state AS state, count(*) AS messages FROM current"
    " GROUP BY queue, to_state",
    f"INSERT INTO marks VALUES ('version', '{VERSION}')",
)


class Database(Protocol):
    """A connection to the database of the tables. Calls block; one thread uses it at a time.

    All methods raise `StorageUnavailable` with the message of the database.
    """

    name: str
    """The name of the database for people, without a password."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        ...

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Fill the temporary table `incoming`, which is created or emptied first."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Run the statements of a block as one change, undone by an exception or a crash."""
        ...

    def with_pairs(self, pairs: dict[str, str]) -> tuple[str, list[Any]]:
        """Return a condition for rows whose `metadata` has these pairs, and its values."""
        ...

    def is_empty(self) -> bool:
        """Whether the database has no tables at all."""
        ...

    def close(self) -> None:
        """Close the connection, so that another one can write."""
        ...


def version_of(database: Database) -> str | None:
    """Return the version of the tables; None without tables.

    Raises ConfigError if there are tables of another program.
    """
    if database.is_empty():
        return None
    try:
        found = database.run("SELECT value FROM marks WHERE name = 'version'")
    except StorageUnavailable:
        found = []
    if not found:
        raise ConfigError(
            f"{database.name} has tables that do not belong to an index of priority queues: "
            "use a separate database for the index"
        )
    return str(found[0][0])


def check_version(database: Database) -> bool:
    """Return True if the tables exist.

    Raises ConfigError for tables of another version or another program.
    """
    version = version_of(database)
    if version not in (None, VERSION):
        raise ConfigError(
            f"{database.name} is an index of version {version}, and this program reads version "
            f"{VERSION}: use the release that wrote the index. Or give the job an empty place and "
            "a new checkpoint (and an empty directory for Parquet files): it builds the index "
            "again from the changes that the stream keeps"
        )
    return version is not None


def create(database: Database) -> None:
    """Create tables and views, unless they exist. Raises ConfigError as `check_version` does."""
    if check_version(database):
        return
    with database.transaction():
        for statement in _SCHEMA:
            database.run(statement)


def keep_source(database: Database, source: str) -> None:
    """Store the source of the changes, the first time. Raises ConfigError for another source.

    Tokens and sequences of two sources cannot be compared: changes of one source could look like
    known or deleted changes of the other, and would be left out.
    """
    with database.transaction():
        found = database.run("SELECT value FROM marks WHERE name = 'source'")
        if not found:
            database.run("INSERT INTO marks VALUES ('source', ?)", (source,))
        elif found[0][0] != source:
            raise ConfigError(
                f"{database.name} has the changes of {found[0][0]}, and this query reads {source}: "
                "give the job an empty place and a new checkpoint, and keep the former index for "
                "questions about its changes"
            )
