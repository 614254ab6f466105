"""Group commit: the one connection of this process that writes to a file.

The user of this package defines the statements.

Invariants:

- A result is delivered only after the COMMIT with its fsync, and only if the file is still the one
  on disk.
- An operation that refuses with a MillstreamError, before it has changed anything, fails alone.
- An operation that fails with another error is rolled back with its batch. The other operations
  then run again without it.
- A process has one writer per file, which all of its users share.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from millstream.runtime.env import Env
from millstream.runtime.errors import StorageUnavailable
from millstream.runtime.options import check_fields

from .database import Database, open_database
from .lock_wait import LockWait
from .schema import Schema
from .worker import Operation, Take, Worker

__all__ = ["Writer", "WriterOptions", "open_writer"]

T = TypeVar("T")

_Operation = Operation[sqlite3.Connection]


def _take_nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Limits of the writer or reader of one file.

    Numbers must be finite and positive; `batch_s` and `lock_wait_s` may be 0.

    Attributes:
        pending_max: the most operations that may wait.
        batch_max: the most operations in one transaction.
        batch_s: seconds of work in one transaction. Waiting operations are added until then.
        lock_wait_s: seconds to wait for the lock of other processes.

    Raises:
        ConfigError: a value has another type, or is out of range.
    """

    pending_max: int = 10_000
    batch_max: int = 1_000
    batch_s: float = field(default=0.05, metadata={"min": 0})
    lock_wait_s: float = field(default=10.0, metadata={"min": 0})

    def __post_init__(self) -> None:
        check_fields(self)


class Writer:
    """The writer of one file in this process. It runs operations in shared transactions.

    All operations that wait run in one transaction, up to `batch_max` operations or `batch_s`
    seconds of work, so they share one fsync. Get a writer from `open_writer`. The writer opens the
    file in its thread when the first operation runs.

    Attributes:
        path: the path of the file.
        users: the number of users that have not released the writer.
    """

    def __init__(self, path: Path, schema: Schema, env: Env, options: WriterOptions) -> None:
        self.path = path
        self.users = 0
        self._schema = schema
        self._env = env
        self._options = options
        self._lock_wait = LockWait(env, options.lock_wait_s)
        self._database: Database | None = None
        self._worker = Worker[sqlite3.Connection](
            str(path), options.pending_max, self._serve, self._disconnect
        )

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue work for a transaction.

        The work runs in the writer's thread, possibly more than once. It must raise a refusal,
        which is any MillstreamError, before it changes anything. Work that is cancelled before it
        starts does not run.

        Args:
            work: executes statements on the connection and returns the result. It must not begin or
                end a transaction.

        Returns:
            A future for the result, which resolves once the transaction is on disk. It raises the
                errors of `work`. It raises StorageUnavailable if the lock was not free in time, or
                if the disk failed. After a failure of the disk, the outcome is unknown.

        Raises:
            StorageUnavailable: `pending_max` operations wait, or the writer is closed. The work
                does not run.
        """
        return self._worker.submit(work)

    async def release(self) -> None:
        """End one use of the writer, after all submitted operations are on disk.

        The last release closes the connection and ends the thread.
        """
        with _open_lock:
            self.users -= 1
            is_last = self.users == 0
            if is_last and _open.get(self.path) is self:
                del _open[self.path]
        await (self._worker.stop() if is_last else self._worker.flush())

    def _serve(self, batch: list[_Operation], take: Take) -> None:
        try:
            connection = self._begin()
        except Exception as error:
            # Fail all waiting operations, or each of them would wait for the lock in turn.
            while take():
                pass
            self._fail_all(batch, error)
        else:
            self._transact(connection, batch, take)

    def _begin(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = open_database(self.path, self._schema, self._env, self._lock_wait)
        self._database.check()
        connection = self._database.connection
        try:
            self._lock_wait.run(str(self.path), lambda: connection.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error:
            self._disconnect()
            raise
        return connection

    def _transact(
        self, connection: sqlite3.Connection, batch: list[_Operation], take: Take
    ) -> None:
        try:
            self._fill(connection, batch, take)
        except Exception as error:
            self._roll_back()
            self._isolate(batch, error)
            return
        self._commit(connection, batch)

    def _fill(self, connection: sqlite3.Connection, batch: list[_Operation], take: Take) -> None:
        """Run the batch, and add waiting operations while the transaction has room."""
        options, end_s = self._options, self._env.wall_s() + self._options.batch_s
        for done, operation in enumerate(batch, 1):
            operation.run(connection)
            # If the wall clock is set back, `batch_max` still limits the batch.
            if done < options.batch_max and self._env.wall_s() < end_s:
                take()

    def _commit(self, connection: sqlite3.Connection, batch: list[_Operation]) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._disconnect()
            # Refusals fail too, because they may depend on the writes of this batch.
            self._fail_all(batch, error)
            return
        try:
            assert self._database is not None
            self._database.check()  # a commit into a file without a name is lost
        except StorageUnavailable as error:
            self._fail_all(batch, error)

    def _isolate(self, batch: list[_Operation], error: Exception) -> None:
        """Run each operation of a failed batch in a transaction of its own."""
        if len(batch) == 1:
            batch[0].fail(str(self.path), error)
            return
        for operation in batch:
            alone = [operation]
            try:
                connection = self._begin()
            except Exception as cause:
                operation.fail(str(self.path), cause)
            else:
                self._transact(connection, alone, _take_nothing)

    def _fail_all(self, batch: list[_Operation], cause: Exception) -> None:
        for operation in batch:
            operation.fail(str(self.path), cause)

    def _roll_back(self) -> None:
        database = self._database
        # After some errors SQLite has already rolled back.
        if database is None or not database.connection.in_transaction:
            return
        try:
            database.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()


_open: dict[Path, Writer] = {}
_open_lock = threading.Lock()


def open_writer(path: Path, schema: Schema, env: Env, options: WriterOptions) -> Writer:
    """Return this process's writer of a file, and create it if there is none.

    Each caller must call `release` once. The file itself is opened, and created if it does not
    exist, when the first operation runs.

    Args:
        path: the file, in a `DatabaseDirectory`. Use the same form of the path each time, because
            it identifies the writer.
        schema: creates the tables of a new file.
        env: supplies wall time, ids and random pauses.
        options: the limits. If the file has a writer already, the options of its first opener
            apply.

    Returns:
        The writer that all users of the file in this process share.
    """
    with _open_lock:
        writer = _open.get(path)
        if writer is None:
            writer = _open[path] = Writer(path, schema, env, options)
        writer.users += 1
        return writer


def _forget_writers() -> None:
    """Forget all writers in a forked child, because their threads exist only in the parent."""
    global _open_lock
    _open_lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writers)
