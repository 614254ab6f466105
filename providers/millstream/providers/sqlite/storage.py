"""Grain state in SQLite files.

This module owns `SqliteStateStore` and `file_index`. A frozen hash spreads keys over eight files,
so that eight transactions can run at once. The store keeps the invariants of `StateStore`. In a
file, the etags of a key only grow, even after `clear`. A write is on disk before it is
acknowledged. A write checks etag and fence in the same statement or before its change, so a refusal
changes nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import xxhash

from millstream.runtime import Env, Etag, Row, StorageUnavailable
from millstream.runtime.database import (
    Connect,
    DatabaseDirectory,
    Reader,
    Writer,
    WriterOptions,
    open_writer,
)
from millstream.runtime.extending import refuse_stale

from .schema import OURS, STATE

__all__ = [
    "FILES",
    "SqliteStateStore",
    "file_index",
    "insert",
]

FILES = 8


def file_index(key: str) -> int:
    """Return the index of the state file that has the key. Frozen: files on disk depend on it."""
    return xxhash.xxh3_64_intdigest(key.encode()) % FILES


def _find(path: Path, key: str, connect: Connect) -> Row | None:
    return find(connect(path), key)


def _find_range(
    path: Path, prefix: str, after: str, limit: int, connect: Connect
) -> list[tuple[str, Row]]:
    return find_range(connect(path), prefix, after, limit)


class SqliteStateStore:
    """A state store in the files `state-0.db` to `state-7.db` of a local directory.

    `stores={"default": "sqlite:directory"}` creates it by name. Use it for the silos of one
    machine: several processes may share the directory. A frozen hash of the key selects the file.

    - The files use WAL and `synchronous=FULL`: an acknowledged write is on disk, and survives a
      crash or a power cut.
    - A write costs one fsync. Writes that wait for the same file share one transaction and one
      fsync.
    - Each process has one writer thread for each file, and each store has one reader thread. They
      wait for locks of other processes in short random pauses, up to `lock_wait_s`.
    - Open the store after any fork. A child process cannot use the store of its parent, and SQLite
      does not allow it to open the parent's files again.
    - The directory gets the mode 0700, unless it has other files too. The files get the mode 0600,
      and permissions of other users are removed.
    - A file of another schema version raises `ConfigError` and is not changed.
    - `millstream.manifest` lists the files, and each file has the directory's identity and its own
      name. If a listed file is missing, empty or another one, `StorageUnavailable` is raised, at
      the start and while the store is open. From then on nothing is acknowledged. Stop every silo
      of the directory. Then restore the whole directory, or start with a fresh one.
    - The store cannot detect the loss of the whole directory, an older copy of a file of the same
      directory, or the loss of a `-wal` file that no process had open.
    - A silo closes a store that it created by name (`"sqlite:data"`). The program closes a store
      that it created itself.

    Every method raises `StorageUnavailable` if a file cannot be used, if the store is closed, or if
    a limit of `options` is reached. After a failure of the disk, the outcome of a write is unknown.

    Args:
        directory: The directory. It is created if it is missing.
        env: The clock and the source of random numbers. Default: those of the machine.
        options: Limits of each file. Default: `WriterOptions()`. If a process opens one file
            several times, the options of the first opener apply.

    Raises:
        ConfigError: The path is a network mount or a file, or the user may not write there.
        StorageUnavailable: A file of the directory is missing or empty.
    """

    def __init__(
        self,
        directory: str | Path,
        env: Env | None = None,
        options: WriterOptions | None = None,
    ) -> None:
        self._env = env or Env()
        folder = DatabaseDirectory(directory, self._env, OURS)
        self._paths = [folder.path / f"state-{index}.db" for index in range(FILES)]
        folder.check(path.name for path in self._paths)
        self.place = str(folder.path)
        # silos of one cluster must agree on the identity, not on the path
        self.identity = folder.identity
        self._options = options or WriterOptions()
        self._writers: dict[int, Writer] = {}
        self._reader: Reader | None = None
        self._closed = False

    async def read(self, key: str, /) -> Row | None:
        """Return the row of a key, or None.

        Args:
            key: The key of the row.
        """
        path = self._paths[file_index(key)]
        return await self._reading().submit(partial(_find, path, key))

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store a row; it is on disk when this method returns.

        Args:
            key: The key of the row.
            data: The content.
            expect: The etag that the row must have. None: there must be no row.
            fence: The fence of the writer. A row with a higher fence is not replaced.

        Returns:
            The new etag.

        Raises:
            Conflict: The row has another etag or a higher fence.
        """
        writer = self._writer(file_index(key))
        if expect is None:
            return await writer.submit(partial(insert, key, bytes(data), fence))
        return await writer.submit(partial(update, key, bytes(data), expect, fence))

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete a row; the deletion is on disk when this method returns.

        Args:
            key: The key of the row.
            expect: The etag that the row must have.
            fence: The fence of the writer.

        Raises:
            Conflict: The row has another etag or a higher fence.
        """
        await self._writer(file_index(key)).submit(partial(delete, key, expect, fence))

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Return rows whose keys begin with a prefix, in key order.

        The method reads up to `limit` rows of each of the eight files, and the result is not a
        snapshot.

        Args:
            prefix: The beginning of the keys.
            after: Return only keys greater than this one. "": from the first key.
            limit: The most rows to return.

        Returns:
            Pairs of key and row.
        """
        reading = self._reading()
        parts = [
            reading.submit(partial(_find_range, path, prefix, after, limit)) for path in self._paths
        ]
        merged = heapq.merge(*await asyncio.gather(*parts), key=lambda found: found[0])
        return list(islice(merged, max(limit, 0)))

    async def aclose(self) -> None:
        """Finish the submitted operations, then close the files. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        closing = [writer.release() for writer in self._writers.values()]
        if self._reader is not None:
            closing.append(self._reader.stop())
        await asyncio.gather(*closing)

    def _writer(self, index: int) -> Writer:
        self._refuse_closed()
        writer = self._writers.get(index)
        if writer is None:
            writer = open_writer(self._paths[index], STATE, self._env, self._options)
            self._writers[index] = writer
        return writer

    def _reading(self) -> Reader:
        self._refuse_closed()
        if self._reader is None:
            self._reader = Reader("state reader", STATE, self._env, self._options)
        return self._reader

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageUnavailable(f"{self._paths[0].parent}: this state store is closed")


def _number(etag: Etag) -> int:
    """Return the stored form of an etag; -1, which is never stored, for other text."""
    number = int(etag) if etag.isdecimal() and len(etag) < 19 else -1
    return number if str(number) == etag else -1


def find(connection: sqlite3.Connection, key: str) -> Row | None:
    """Return the row of a key, or None."""
    found = connection.execute(
        "SELECT data, etag, fence FROM rows WHERE key = ?", (key,)
    ).fetchone()
    return None if found is None else Row(found[0], str(found[1]), found[2])


def find_range(
    connection: sqlite3.Connection, prefix: str, after: str, limit: int
) -> list[tuple[str, Row]]:
    """Return at most `limit` rows of a prefix after the key `after`, in key order."""
    found = connection.execute(
        "SELECT key, data, etag, fence FROM rows WHERE key >= ? AND key > ? ORDER BY key LIMIT ?",
        (prefix, after, max(limit, 0)),
    )
    inside = takewhile(lambda columns: columns[0].startswith(prefix), found.fetchall())
    return [(key, Row(data, str(etag), fence)) for key, data, etag, fence in inside]


def insert(key: str, data: bytes, fence: int, connection: sqlite3.Connection) -> Etag:
    """Store a row that must not exist. Raises Conflict."""
    made = connection.execute(
        "INSERT INTO rows SELECT ?, etag + 1, ?, ? FROM floor WHERE true"
        " ON CONFLICT DO NOTHING RETURNING etag",
        (key, fence, data),
    ).fetchone()
    if made is None:
        refuse_stale(key, find(connection, key), None, fence)
        raise AssertionError(f"{key}: not inserted, yet absent")
    return str(made[0])


def update(key: str, data: bytes, expect: Etag, fence: int, connection: sqlite3.Connection) -> Etag:
    """Replace a row with the expected etag and no higher fence. Raises Conflict."""
    number = _number(expect)
    cursor = connection.execute(
        "UPDATE rows SET data = ?, etag = etag + 1, fence = ?"
        " WHERE key = ? AND etag = ? AND fence <= ?",
        (data, fence, key, number, fence),
    )
    if cursor.rowcount != 1:
        refuse_stale(key, find(connection, key), expect, fence)
        raise AssertionError(f"{key}: not updated, yet as expected")
    return str(number + 1)


def delete(key: str, expect: Etag, fence: int, connection: sqlite3.Connection) -> None:
    """Delete a row with the expected etag and no higher fence. Raises Conflict."""
    refuse_stale(key, find(connection, key), expect, fence)
    connection.execute("UPDATE floor SET etag = max(etag, ?)", (_number(expect),))
    connection.execute("DELETE FROM rows WHERE key = ?", (key,))
