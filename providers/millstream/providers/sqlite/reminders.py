"""The table of reminders in a SQLite file, shared by the silos of one machine.

This module owns `SqliteReminderTable`. The table keeps the invariants of `ReminderTable`. One
counter gives the etags of all rows, so none is used twice. A change is on disk before it is
acknowledged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from millstream.runtime import (
    Conflict,
    Env,
    Etag,
    ReminderPosition,
    ReminderRow,
    StorageUnavailable,
)
from millstream.runtime.database import (
    Connect,
    DatabaseDirectory,
    Reader,
    Writer,
    WriterOptions,
    open_writer,
)
from millstream.runtime.extending import show_text

from .schema import OURS, REMINDERS

__all__ = ["SqliteReminderTable"]

COLUMNS = "grain, name, bucket, due_ms, data, etag"
FIRST = (-(2**63), "", "")  # before every row


class SqliteReminderTable:
    """A reminder table in `reminders.db` of a local directory.

    `reminders="sqlite:directory"` creates it by name. Several processes may share the directory,
    also with state and membership. The file uses WAL and `synchronous=FULL`. Each change costs one
    fsync; changes that wait at the same time share one. The notes at `SqliteStateStore` on
    permissions, missing files, forks and closing apply here, too.

    Every method raises `StorageUnavailable` if the file cannot be used, if the table is closed, or
    if a limit of `options` is reached.

    Args:
        directory: The directory. It is created if it is missing.
        env: The clock and the source of random numbers. Default: those of the machine.
        options: Limits of the file. Default: `WriterOptions()`. If a process opens one file several
            times, the options of the first opener apply.

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
        self._path = folder.path / "reminders.db"
        folder.check([self._path.name])
        self.place = str(folder.path)
        self.identity = folder.identity
        self._options = options or WriterOptions()
        self._files: tuple[Reader, Writer] | None = None
        self._closed = False

    async def read(self, grain: str, /) -> Sequence[ReminderRow]:
        """Return all rows of a grain, sorted by name.

        Args:
            grain: The grain, `Type/key`.
        """
        reader, _ = self._open()
        return await reader.submit(partial(_find, self._path, grain))

    async def upsert(self, row: ReminderRow, expect: Etag | None, /) -> Etag:
        """Store a row; it is on disk when this method returns.

        Args:
            row: The row. Its own etag is ignored.
            expect: The etag that the stored row must have. None: there must be no row.

        Returns:
            The new etag.

        Raises:
            Conflict: The stored row is another one.
        """
        _, writer = self._open()
        return await writer.submit(partial(put, row, expect))

    async def remove(self, grain: str, name: str, expect: Etag, /) -> None:
        """Delete a row; the deletion is on disk when this method returns.

        Args:
            grain: The grain of the row.
            name: The name of the row.
            expect: The etag that the stored row must have.

        Raises:
            Conflict: The stored row is another one, or there is none.
        """
        _, writer = self._open()
        await writer.submit(partial(drop, grain, name, expect))

    async def due(
        self,
        buckets: Sequence[tuple[int, int]],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
        /,
    ) -> Sequence[ReminderRow]:
        """Return rows with an occurrence, in the order of due time, grain and name.

        Args:
            buckets: Only rows in one of these ranges.
            after: Only rows after this position. None: from the first.
            before_ms: Only rows whose time is lower than this.
            limit: The most rows to return.
        """
        reader, _ = self._open()
        return await reader.submit(partial(_find_due, self._path, buckets, after, before_ms, limit))

    async def aclose(self) -> None:
        """Finish the submitted operations, then close the file. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._files is not None:
            reader, writer = self._files
            await reader.stop()
            await writer.release()

    def _open(self) -> tuple[Reader, Writer]:
        if self._closed:
            raise StorageUnavailable(f"{self._path}: this reminder table is closed")
        if self._files is None:
            self._files = (
                Reader("reminder reader", REMINDERS, self._env, self._options),
                open_writer(self._path, REMINDERS, self._env, self._options),
            )
        return self._files


def _row(columns: tuple[str, str, int, int | None, bytes, int]) -> ReminderRow:
    grain, name, bucket, due_ms, data, etag = columns
    return ReminderRow(grain, name, bucket, due_ms, data, str(etag))


def _find(path: Path, grain: str, connect: Connect) -> list[ReminderRow]:
    found = connect(path).execute(
        f"SELECT {COLUMNS} FROM reminders WHERE grain = ? ORDER BY name", (grain,)
    )
    return [_row(columns) for columns in found.fetchall()]


def _find_due(
    path: Path,
    buckets: Sequence[tuple[int, int]],
    after: ReminderPosition | None,
    before_ms: int,
    limit: int,
    connect: Connect,
) -> list[ReminderRow]:
    numbers = ",".join(str(int(one)) for low, high in buckets for one in range(low, high + 1))
    found = connect(path).execute(
        f"SELECT {COLUMNS} FROM reminders WHERE due_ms IS NOT NULL AND due_ms < ?"
        f" AND (due_ms, grain, name) > (?, ?, ?) AND bucket IN ({numbers})"
        " ORDER BY due_ms, grain, name LIMIT ?",
        (before_ms, *(FIRST if after is None else after), max(limit, 0)),
    )
    return [_row(columns) for columns in found.fetchall()]


def _check(connection: sqlite3.Connection, grain: str, name: str, expect: Etag | None) -> None:
    """Raise Conflict unless the stored row has the expected etag."""
    stored = connection.execute(
        "SELECT etag FROM reminders WHERE grain = ? AND name = ?", (grain, name)
    ).fetchone()
    found = None if stored is None else str(stored[0])
    if found != expect:
        what = show_text(f"reminder {name} of {grain}")
        raise Conflict(f"{what}: etag is {found}, the writer expected {expect}")


def put(row: ReminderRow, expect: Etag | None, connection: sqlite3.Connection) -> Etag:
    """Store a row in place of the expected one. Raises Conflict."""
    _check(connection, row.grain, row.name, expect)
    (etag,) = connection.execute("UPDATE counter SET etag = etag + 1 RETURNING etag").fetchone()
    connection.execute(
        f"INSERT OR REPLACE INTO reminders ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (row.grain, row.name, row.bucket, row.due_ms, bytes(row.data), etag),
    )
    return str(etag)


def drop(grain: str, name: str, expect: Etag, connection: sqlite3.Connection) -> None:
    """Delete the expected row. Raises Conflict."""
    _check(connection, grain, name, expect)
    connection.execute("DELETE FROM reminders WHERE grain = ? AND name = ?", (grain, name))
