"""The creation of the tables in a SQLite file.

The user of this package defines the tables, and `database` owns connections.

Invariants:

- The tables and the identity of a file are created in one transaction.
- A file of another schema version is never changed.
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
    """The tables of a file, and the version of their definition.

    Attributes:
        version: the number of the schema, at least 1, which the file stores as `user_version`. A
            file with another version is refused.
        tables: the statements that create the tables and indexes.
        fill: inserts the first rows. It gets the connection and the `Env`, inside the transaction
            that creates the tables.
        ours: prefixes of the file names that the user of the schema keeps in the directory, see
            `DatabaseDirectory`.
    """

    version: int
    tables: tuple[str, ...]
    fill: Callable[[sqlite3.Connection, Env], None]
    ours: tuple[str, ...]

    def is_made(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Tell whether the file has the tables.

        Args:
            connection: a connection to the file.
            path: the file, for the error text.

        Returns:
            True if the file has the tables of this version, False for an empty file.

        Raises:
            ConfigError: the file has tables of another version.
        """
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, self.version):
            raise ConfigError(
                f"{path}: schema version is {found}, this Millstream needs {self.version}"
            )
        return bool(found == self.version)

    def make(self, connection: sqlite3.Connection, path: Path, env: Env, directory: str) -> None:
        """Create the tables in one transaction, unless another process has done it meanwhile.

        Args:
            connection: a connection to the file, in autocommit mode.
            path: the file. Its name becomes part of its identity.
            env: passed to `fill`.
            directory: the id of the directory, which becomes part of the file's identity.

        Raises:
            ConfigError: the file has tables of another version.
            sqlite3.Error: a statement failed. The file is unchanged.
        """
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
