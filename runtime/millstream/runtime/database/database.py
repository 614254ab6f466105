"""A connection to one of the files, and whether that file is still the one on disk.

Owns: `Database`, `open_database`, `why_failed`. Invariants: every connection is in WAL mode with
`synchronous=FULL` and `busy_timeout=0`, and in autocommit, so that transactions begin and end only
where our code says so; a file of another schema or another directory is never touched; what is
gone from disk while it is open fails from then on, until the process ends: to open what came in its
place could take that one's log away.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, StorageUnavailable

from .directory import REMEDY, DatabaseDirectory, keep_private, sync_directory, why_unusable
from .lock_wait import LockWait
from .schema import Schema

__all__ = ["Database", "open_database", "why_failed"]

_FULL = sqlite3.SQLITE_FULL
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
_DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})

# To close a file drops this process's locks on it: nobody may be connected while it is made.
_making = threading.Lock()


def _forget_lock() -> None:
    """In a forked child: the thread that may have held it stayed with the parent."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class Database:
    """An open connection, with the identity of its files."""

    __slots__ = ("_files", "connection", "path")

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        log = path.with_name(f"{path.name}-wal")
        self._files = [(str(name), inode_of(name)) for name in (path, log)]

    def check(self) -> None:
        """Raise StorageUnavailable if the file or its log is gone, replaced or emptied.

        Three calls of the system, 4 µs together: little beside the fsync of a write.
        """
        for name, inode in self._files:
            try:
                found = os.stat(name)
            except FileNotFoundError:
                raise StorageUnavailable(f"{name} is gone while it is in use: {REMEDY}") from None
            if (found.st_dev, found.st_ino) != inode:
                raise StorageUnavailable(f"{name} was replaced while it is in use: {REMEDY}")
        if not os.stat(self.path).st_size:
            raise StorageUnavailable(f"{self.path} was emptied while it is in use: {REMEDY}")

    def close(self) -> None:
        """Close the connection. Raises sqlite3.Error."""
        self.connection.close()


def inode_of(path: Path) -> tuple[int, int]:
    """What tells a file from another one of its name."""
    found = path.stat()
    return found.st_dev, found.st_ino


def open_database(path: Path, schema: Schema, env: Env, lock_wait: LockWait) -> Database:
    """A connection to the file, which exists with its tables afterwards. Blocks.

    Raises ConfigError (another schema, no WAL here), StorageUnavailable (locked; gone, emptied or
    replaced since it was made), sqlite3.Error, OSError.
    """
    directory = DatabaseDirectory(path.parent, env, schema.ours)
    is_listed = directory.lists(path.name)
    if is_listed:
        directory.require(path.name)
    make_file(path)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        lock_wait.run(
            str(path), lambda: _prepare(connection, path, schema, env, directory, is_listed)
        )
        if not is_listed:
            directory.add(path.name)
        sync_directory(path.parent)
        return Database(path, connection)
    except BaseException:
        connection.close()
        raise


def make_file(path: Path) -> None:
    """Make an empty file that only this user may read; one that is there becomes private, too."""
    with _making:
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if name.exists():
            keep_private(name, 0o600)


def _prepare(
    connection: sqlite3.Connection,
    path: Path,
    schema: Schema,
    env: Env,
    directory: DatabaseDirectory,
    is_listed: bool,
) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(f"{path}: journal_mode is {mode}, this file system has no WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    if not schema.is_made(connection, path):
        if is_listed:
            raise StorageUnavailable(f"{path} has lost its tables: {REMEDY}")
        schema.make(connection, path, env, directory.id)
    found = connection.execute("SELECT directory, name FROM identity").fetchone()
    if found != (directory.id, path.name):
        where = f"it was made as {found[1]} of directory {found[0]}, this is {directory.id}"
        raise StorageUnavailable(f"{path} was replaced: {where}. To mend it: {REMEDY}")


def why_failed(name: str, error: Exception) -> str:
    """What SQLite or the disk says about a file, and what to do."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if isinstance(error, OSError):
        return why_unusable(Path(name), error)
    if code == _FULL:
        return f"{name}: the disk is full ({error}). Make room; the next write tries again"
    if code in _DENIED:
        return f"{name}: {error}. Make the directory and its files writable for this user"
    if code in _DAMAGED:
        return f"{name}: {error}. To mend it: {REMEDY}"
    return f"{name}: {error}"
