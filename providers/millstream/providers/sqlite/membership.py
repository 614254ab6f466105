"""The membership table in a SQLite file, shared by the silos of one machine.

This module owns `SqliteMembershipTable`. The file is separate from grain state, so that a burst of
state writes never delays a vote. The table keeps the invariants of `MembershipTable`. One
statement reads version and rows, so both belong to one snapshot. A heartbeat changes only its own
column.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import msgspec

from millstream.runtime import Env, MemberRow, StorageUnavailable, TableView
from millstream.runtime.database import (
    Connect,
    DatabaseDirectory,
    Reader,
    Writer,
    WriterOptions,
    device_and_inode,
    open_writer,
)
from millstream.runtime.extending import SiloAddress, secret_in_file

from .schema import MEMBERSHIP, OPERATOR, OURS, SECRET

__all__ = ["SqliteMembershipTable"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(MemberRow).decode


def _view(connection: sqlite3.Connection) -> TableView:
    found = connection.execute(
        "SELECT version, row, members.alive_s FROM version LEFT JOIN members ORDER BY silo"
    ).fetchall()
    members = tuple(
        msgspec.structs.replace(_decode(row), alive_s=alive_s)
        for _, row, alive_s in found
        if row is not None
    )
    return TableView(found[0][0], members)


def _raise_version(connection: sqlite3.Connection, expect: int) -> bool:
    cursor = connection.execute(
        "UPDATE version SET version = version + 1 WHERE version = ?", (expect,)
    )
    return cursor.rowcount == 1


def _replace(row: MemberRow, encoded: bytes, expect: int, connection: sqlite3.Connection) -> bool:
    if not _raise_version(connection, expect):
        return False
    connection.execute(
        "INSERT OR REPLACE INTO members VALUES (?, ?, ?)", (row.silo, encoded, row.alive_s)
    )
    return True


def _stamp(silo: SiloAddress, alive_s: float, connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE members SET alive_s = ? WHERE silo = ?", (alive_s, silo))


def _delete(silo: SiloAddress, expect: int, connection: sqlite3.Connection) -> bool:
    if not _raise_version(connection, expect):
        return False
    connection.execute("DELETE FROM members WHERE silo = ?", (silo,))
    return True


class SqliteMembershipTable:
    """The membership table of a cluster on one machine, in `membership.db` of a local directory.

    `membership="sqlite:directory"` creates it by name. Several processes may share the directory.
    Each change costs one fsync, and so does a heartbeat. Changes that wait at the same time share
    one transaction and one fsync.

    - The file uses WAL and `synchronous=FULL`: an acknowledged write is on disk.
    - The file and the directory are private to the user, as for `SqliteStateStore`.
    - A file of another schema version raises `ConfigError` and is not changed.
    - If the file was listed in `millstream.manifest` and is missing, empty or another one,
      `StorageUnavailable` is raised, at the start and while the table is open. Then stop every silo
      of the directory, and restore the whole directory or start with a fresh one.
    - Open the table after any fork.
    - A silo closes a table that it created by name (`"sqlite:data"`). The program closes a table
      that it created itself.

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
        self._folder = folder = DatabaseDirectory(directory, self._env, OURS)
        self._path = folder.path / "membership.db"
        self.place = str(folder.path)
        folder.check([self._path.name])
        self._options = options or WriterOptions()
        self._files: tuple[Reader, Writer] | None = None
        self._closed = False

    def secret(self, fresh: bytes, /) -> bytes:
        """Return the secret of the silos that share this directory.

        The file `millstream.secret` of the directory has it.

        Args:
            fresh: The secret to store if there is none yet.
        """
        return secret_in_file(self._path.with_name(SECRET), fresh)

    def operator_secret(self, fresh: bytes, /) -> bytes:
        """Return the operator's secret of this cluster.

        The file `millstream.operator` of the directory has it.

        Args:
            fresh: The secret to store if there is none yet.
        """
        return secret_in_file(self._path.with_name(OPERATOR), fresh)

    async def read(self) -> TableView:
        """Return a consistent snapshot of the table."""
        reader, _ = self._open()
        return await reader.submit(lambda connect: _view(connect(self._path)))

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace one row, and raise the version by one.

        Args:
            row: The new row of a silo.
            expect_version: The version that the table must have.

        Returns:
            False, without a change, if the table has another version.
        """
        _, writer = self._open()
        return await writer.submit(partial(_replace, row, _encode(row), expect_version))

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store the heartbeat of a silo, without a change of the version.

        Args:
            silo: The silo. A silo without a row is ignored.
            alive_s: The time of the heartbeat, in seconds.
        """
        _, writer = self._open()
        await writer.submit(partial(_stamp, silo, alive_s))

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a dead silo, and raise the version by one.

        Args:
            silo: The silo whose row to delete.
            expect_version: The version that the table must have.

        Returns:
            False, without a change, if the table has another version.
        """
        _, writer = self._open()
        return await writer.submit(partial(_delete, silo, expect_version))

    async def identity(self) -> str:
        """Return the identity of the directory and of the file in it, by id, device and inode.

        A copy has other inodes. A hard link to the file has the same inode, but is in another
        directory.
        """
        reader, _ = self._open()
        return await reader.submit(self._identify)

    def _identify(self, connect: Connect) -> str:
        connect(self._path)  # creates and opens the file, so that its inode is not reused
        return f"{self._folder.identity}, file {device_and_inode(self._path)}"

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
            raise StorageUnavailable(f"{self._path}: this membership table is closed")
        if self._files is None:
            self._files = (
                Reader("membership reader", MEMBERSHIP, self._env, self._options),
                open_writer(self._path, MEMBERSHIP, self._env, self._options),
            )
        return self._files
