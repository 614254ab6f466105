"""Grain state in SQLite files.

Owns: `SqliteStateStore`, `file_index`. Keys are spread over eight files by a frozen hash, so that
eight transactions can be under way at once.
Invariants: those of `StateStore`; in a file, a key's etags only grow, also over `clear`; a write is
on disk before it is acknowledged; a write is one statement that also checks etag and fence, or
checks before it changes, so a refusal changes nothing.
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
    """Which of the state files holds the key. Frozen: files on disk depend on it."""
    return xxhash.xxh3_64_intdigest(key.encode()) % FILES


def _find(path: Path, key: str, connect: Connect) -> Row | None:
    return find(connect(path), key)


def _find_range(
    path: Path, prefix: str, after: str, limit: int, connect: Connect
) -> list[tuple[str, Row]]:
    return find_range(connect(path), prefix, after, limit)


class SqliteStateStore:
    """Rows in `state-0.db` to `state-7.db` of a directory on a local disk.

    Silos of several processes may share the directory. A write costs one fsync, shared by all
    that wait for the same file. Open it after any fork: a child is refused its parent's store, and
    SQLite does not allow it to open the parent's files anew. Raises ConfigError (a network mount, a
    file, no permission), StorageUnavailable (a file of the directory is gone or emptied).
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
        self.identity = folder.identity  # silos of one cluster must agree on it, not on a path
        self._options = options or WriterOptions()
        self._writers: dict[int, Writer] = {}
        self._reader: Reader | None = None
        self._closed = False

    async def read(self, key: str, /) -> Row | None:
        """The row, or None."""
        path = self._paths[file_index(key)]
        return await self._reading().submit(partial(_find, path, key))

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store the row and return its new etag; on disk when this returns."""
        writer = self._writer(file_index(key))
        if expect is None:
            return await writer.submit(partial(insert, key, bytes(data), fence))
        return await writer.submit(partial(update, key, bytes(data), expect, fence))

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete the row."""
        await self._writer(file_index(key)).submit(partial(delete, key, expect, fence))

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Up to `limit` rows in key order. Costs up to `limit` rows of each file; no snapshot."""
        reading = self._reading()
        parts = [
            reading.submit(partial(_find_range, path, prefix, after, limit)) for path in self._paths
        ]
        merged = heapq.merge(*await asyncio.gather(*parts), key=lambda found: found[0])
        return list(islice(merged, max(limit, 0)))

    async def aclose(self) -> None:
        """Finish what was submitted, then close the files. A second call does nothing."""
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
    """The stored form of an etag; -1, which is never stored, for text that is none of ours."""
    number = int(etag) if etag.isdecimal() and len(etag) < 19 else -1
    return number if str(number) == etag else -1


def find(connection: sqlite3.Connection, key: str) -> Row | None:
    """The row of a key."""
    found = connection.execute(
        "SELECT data, etag, fence FROM rows WHERE key = ?", (key,)
    ).fetchone()
    return None if found is None else Row(found[0], str(found[1]), found[2])


def find_range(
    connection: sqlite3.Connection, prefix: str, after: str, limit: int
) -> list[tuple[str, Row]]:
    """Rows of a prefix after a key, in key order. Keys of one prefix lie side by side."""
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
    """Replace a row of the expected etag and no higher fence. Raises Conflict."""
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
    """Delete a row of the expected etag and no higher fence. Raises Conflict."""
    refuse_stale(key, find(connection, key), expect, fence)
    connection.execute("UPDATE floor SET etag = max(etag, ?)", (_number(expect),))
    connection.execute("DELETE FROM rows WHERE key = ?", (key,))
