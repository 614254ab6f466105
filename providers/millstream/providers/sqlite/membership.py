"""The membership table in a SQLite file, shared by the silos of one machine.

Owns: `SqliteMembershipTable`. The file is apart from grain state, so that a burst of state writes
never delays a vote. Invariants: those of `MembershipTable`; version and rows are read in one
statement, hence in one snapshot; a heartbeat touches its own column only.
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
    """The table in `membership.db` of a directory on a local disk.

    Every change costs one fsync, a heartbeat too. Raises ConfigError (a network mount, a file, no
    permission), StorageUnavailable (its file is gone or emptied); methods raise StorageUnavailable.
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
        """The secret of the silos that share this directory, in its file `millstream.secret`."""
        return secret_in_file(self._path.with_name(SECRET), fresh)

    def operator_secret(self, fresh: bytes, /) -> bytes:
        """The operator's secret of this cluster, in the directory's file `millstream.operator`."""
        return secret_in_file(self._path.with_name(OPERATOR), fresh)

    async def read(self) -> TableView:
        """A consistent snapshot."""
        reader, _ = self._open()
        return await reader.submit(lambda connect: _view(connect(self._path)))

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace one row and raise the version by one; False if the version differs."""
        _, writer = self._open()
        return await writer.submit(partial(_replace, row, _encode(row), expect_version))

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store the stamp; no version change; no effect on a silo that is not in the table."""
        _, writer = self._open()
        await writer.submit(partial(_stamp, silo, alive_s))

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a dead silo and raise the version by one; False if it differs."""
        _, writer = self._open()
        return await writer.submit(partial(_delete, silo, expect_version))

    async def identity(self) -> str:
        """The directory and the file in it, by id, device and inode: a copy has other inodes.

        A hard link to the file has its inode, and is in another directory.
        """
        reader, _ = self._open()
        return await reader.submit(self._identify)

    def _identify(self, connect: Connect) -> str:
        connect(self._path)  # it exists from now on, and is open, so its inode is not given away
        return f"{self._folder.identity}, file {device_and_inode(self._path)}"

    async def aclose(self) -> None:
        """Finish what was submitted, then close the file. A second call does nothing."""
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
