"""Connections to SQLite files, and the check that a file is still the one on disk.

Invariants:

- Every connection is in WAL mode with `synchronous=FULL` and `busy_timeout=0`, and in autocommit
  mode. Transactions begin and end only with explicit statements.
- A file of another schema or another directory is never changed.
- If a file disappears from disk while it is open, every use of it fails until the process ends. To
  open its replacement could remove the replacement's log.
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

# Closing a file drops this process's locks on it, so no connection may exist while it is created.
_making = threading.Lock()


def _forget_lock() -> None:
    """Replace the lock in a forked child. The thread that held it may exist only in the parent."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class Database:
    """An open connection to a SQLite file, with the identity of the file and its log.

    `open_database` creates these objects. Use them in threads that may block.

    Attributes:
        path: the path of the file.
        connection: the connection, in WAL mode and autocommit mode.
    """

    __slots__ = ("_files", "connection", "path")

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        log = path.with_name(f"{path.name}-wal")
        self._files = [(str(name), inode_of(name)) for name in (path, log)]

    def check(self) -> None:
        """Check that the file and its log are still the ones that were opened.

        Call this before and after a write. It takes about 4 µs, much less than an fsync.

        Raises:
            StorageUnavailable: the file or its log is gone, was replaced or was emptied. Stop all
                silos that use the directory, then restore the whole directory from a backup or
                start with a fresh one.
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
        """Close the connection.

        Raises:
            sqlite3.Error: SQLite could not close it.
        """
        self.connection.close()


def inode_of(path: Path) -> tuple[int, int]:
    """Return the numbers that distinguish a file from another file of the same name."""
    found = path.stat()
    return found.st_dev, found.st_ino


def open_database(path: Path, schema: Schema, env: Env, lock_wait: LockWait) -> Database:
    """Open a file, and create it with its tables if it does not exist. Blocks.

    The file is readable only by its user. Its name is added to the manifest of its directory once
    its tables are on disk.

    Args:
        path: the file, in a directory on a local disk.
        schema: creates the tables of a new file.
        env: supplies ids and random pauses.
        lock_wait: limits the wait for locks of other processes.

    Returns:
        A new connection. The caller closes it.

    Raises:
        ConfigError: the file has another schema version, or its file system does not support WAL.
        StorageUnavailable: other processes hold the lock too long, or a file that was created here
            is gone, empty or replaced.
        sqlite3.Error: SQLite failed.
        OSError: the disk failed.
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
    """Create an empty private file. A file that exists becomes private, too."""
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
        raise ConfigError(f"{path}: journal_mode is {mode}, this file system does not support WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    if not schema.is_made(connection, path):
        if is_listed:
            raise StorageUnavailable(f"{path} has lost its tables: {REMEDY}")
        schema.make(connection, path, env, directory.id)
    found = connection.execute("SELECT directory, name FROM identity").fetchone()
    if found != (directory.id, path.name):
        where = f"it is {found[1]} of directory {found[0]}, and this is directory {directory.id}"
        raise StorageUnavailable(f"{path} was replaced: {where}. To repair it: {REMEDY}")


def why_failed(name: str, error: Exception) -> str:
    """Return the message of SQLite or the disk about a file, with advice."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if isinstance(error, OSError):
        return why_unusable(Path(name), error)
    if code == _FULL:
        return f"{name}: the disk is full ({error}). Free space; the next write tries again"
    if code in _DENIED:
        return f"{name}: {error}. Make the directory and its files writable for this user"
    if code in _DAMAGED:
        return f"{name}: {error}. To repair it: {REMEDY}"
    return f"{name}: {error}"
