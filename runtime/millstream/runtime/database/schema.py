"""How the tables of a SQLite file are made.

Owns: `Schema`. Not: which tables (who uses this room), connections (`database`).
Invariants: the tables and the identity of a file are made in one transaction; a file of another
schema is never touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError

__all__ = ["Schema"]

_IDENTITY = (
    "CREATE TABLE identity (one INTEGER PRIMARY KEY CHECK (one = 0), directory TEXT NOT NULL,"
    " name TEXT NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The statements that make a file's tables, what to fill them with at first, and how the names
    begin of everything that its users keep in the directory (`ours`)."""

    version: int
    tables: tuple[str, ...]
    fill: Callable[[sqlite3.Connection, Env], None]
    ours: tuple[str, ...]

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
