"""The tables of the SQLite files, and how a connection is opened.

Owns: `Schema`, `STATE`, `MEMBERSHIP`, `open_database`. Invariants: every connection is in WAL mode
with `synchronous=FULL` and `busy_timeout=0`, and in autocommit, so that transactions begin and end
only where our code says so; a file of a newer schema is never touched.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError

from .patience import Patience

__all__ = ["MEMBERSHIP", "STATE", "Schema", "open_database"]


@dataclass(frozen=True, slots=True)
class Schema:
    """The statements that make a file's tables, and what to fill them with at first."""

    version: int
    tables: tuple[str, ...]
    fill: Callable[[sqlite3.Connection, Env], None]


def _fill_state(connection: sqlite3.Connection, env: Env) -> None:
    connection.execute("INSERT INTO floor VALUES (0, 0)")


def _fill_membership(connection: sqlite3.Connection, env: Env) -> None:
    # Milliseconds, so that a table made anew is ahead of the fences of an earlier cluster.
    connection.execute("INSERT INTO version VALUES (0, ?)", (int(env.wall_s() * 1000),))


# `floor` is the highest etag of a cleared row: a key that is written again never reuses an etag.
STATE = Schema(
    1,
    (
        "CREATE TABLE rows (key TEXT PRIMARY KEY, etag INTEGER NOT NULL, fence INTEGER NOT NULL,"
        " data BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE floor (one INTEGER PRIMARY KEY CHECK (one = 0), etag INTEGER NOT NULL)",
    ),
    _fill_state,
)
# `alive_s` is a column of its own: a heartbeat must not write back an old status or vote.
MEMBERSHIP = Schema(
    1,
    (
        "CREATE TABLE version (one INTEGER PRIMARY KEY CHECK (one = 0), version INTEGER NOT NULL)",
        "CREATE TABLE members (silo TEXT PRIMARY KEY, row BLOB NOT NULL, alive_s REAL NOT NULL)",
    ),
    _fill_membership,
)


def open_database(path: Path, schema: Schema, env: Env, patience: Patience) -> sqlite3.Connection:
    """A connection to the file, which exists with its tables afterwards. Blocks.

    Raises ConfigError (newer schema, no WAL here), StorageUnavailable (locked), sqlite3.Error.
    """
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        patience.run(path.name, lambda: _prepare(connection, path, schema, env))
        _sync_directory(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: Schema, env: Env) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(f"{path}: journal_mode is {mode}, this file system has no WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    if not _is_made(connection, path, schema):
        _make(connection, path, schema, env)


def _is_made(connection: sqlite3.Connection, path: Path, schema: Schema) -> bool:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, schema.version):
        raise ConfigError(f"{path}: schema version is {found}, known here is {schema.version}")
    return bool(found == schema.version)


def _make(connection: sqlite3.Connection, path: Path, schema: Schema, env: Env) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have made the tables since we looked.
        if not _is_made(connection, path, schema):
            for statement in schema.tables:
                connection.execute(statement)
            schema.fill(connection, env)
            connection.execute(f"PRAGMA user_version={schema.version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _sync_directory(directory: Path) -> None:
    """Make the names of new files durable: a commit is lost with a log file that has no name."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
