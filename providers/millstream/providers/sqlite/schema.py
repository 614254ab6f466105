"""The tables of the SQLite files.

Owns: `Schema`, `STATE`, `MEMBERSHIP`. Not: connections (`database`). Invariants: the tables and the
identity of a file are made in one transaction; a file of another schema is never touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.runtime import ConfigError, Env

__all__ = ["MEMBERSHIP", "STATE", "Schema"]

_IDENTITY = (
    "CREATE TABLE identity (one INTEGER PRIMARY KEY CHECK (one = 0), directory TEXT NOT NULL,"
    " name TEXT NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The statements that make a file's tables, and what to fill them with at first."""

    version: int
    tables: tuple[str, ...]
    fill: Callable[[sqlite3.Connection, Env], None]

    def is_made(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Are the tables there? Raises ConfigError for those of another version."""
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, self.version):
            raise ConfigError(f"{path}: schema version is {found}, known here is {self.version}")
        return bool(found == self.version)

    def make(self, connection: sqlite3.Connection, path: Path, env: Env, directory: str) -> None:
        """Make the tables, unless another process has done it since we looked."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self.is_made(connection, path):
                for statement in (_IDENTITY, *self.tables):
                    connection.execute(statement)
                connection.execute("INSERT INTO identity VALUES (0, ?, ?)", (directory, path.name))
                self.fill(connection, env)
                connection.execute(f"PRAGMA user_version={self.version}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _fill_state(connection: sqlite3.Connection, env: Env) -> None:
    connection.execute("INSERT INTO floor VALUES (0, 0)")


def _fill_membership(connection: sqlite3.Connection, env: Env) -> None:
    # Milliseconds, so that a table made anew is ahead of the fences of an earlier cluster.
    connection.execute("INSERT INTO version VALUES (0, ?)", (int(env.wall_s() * 1000),))


# `floor` is the highest etag of a cleared row: a key that is written again never reuses an etag.
STATE = Schema(
    2,
    (
        "CREATE TABLE rows (key TEXT PRIMARY KEY, etag INTEGER NOT NULL, fence INTEGER NOT NULL,"
        " data BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE floor (one INTEGER PRIMARY KEY CHECK (one = 0), etag INTEGER NOT NULL)",
    ),
    _fill_state,
)
# `alive_s` is a column of its own: a heartbeat must not write back an old status or vote.
MEMBERSHIP = Schema(
    2,
    (
        "CREATE TABLE version (one INTEGER PRIMARY KEY CHECK (one = 0), version INTEGER NOT NULL)",
        "CREATE TABLE members (silo TEXT PRIMARY KEY, row BLOB NOT NULL, alive_s REAL NOT NULL)",
    ),
    _fill_membership,
)
