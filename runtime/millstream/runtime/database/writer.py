"""Group commit: the one connection of this process that writes to a file.

Owns: `WriterOptions`, `Writer`, `open_writer`. Not: the statements (who uses it).
Invariants: a result is delivered only after the COMMIT (and its fsync) that holds it, to the file
that is on disk; a refused operation (a MillstreamError, raised before it changed anything) fails
alone; an operation that fails otherwise is rolled back with its batch, and the others are run again
without it; a process has one writer per file, shared by all that open it.
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
    """Limits of one file: waiting operations, the size of a transaction, the wait for its lock.
    Raises ConfigError.
    """

    pending_max: int = 10_000
    batch_max: int = 1_000
    batch_s: float = field(default=0.05, metadata={"min": 0})
    lock_wait_s: float = field(default=10.0, metadata={"min": 0})

    def __post_init__(self) -> None:
        check_fields(self)


class Writer:
    """Runs operations on one file in transactions of up to `batch_s` of work."""

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
        """Queue work for a transaction; the future resolves once it is on disk.

        The work runs in the writer's thread, perhaps more than once, and must raise its refusals
        (any MillstreamError) before it changes anything. Raises StorageUnavailable: the queue is
        full, the lock was not had, or the disk failed; after the last the outcome is unknown.
        """
        return self._worker.submit(work)

    async def release(self) -> None:
        """Give up one use; all that was submitted is on disk afterwards."""
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
            # All that waits fails, or each would wait out the lock in turn.
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
        """Run the batch, and what else waits while there is room in this transaction."""
        options, end_s = self._options, self._env.wall_s() + self._options.batch_s
        for done, operation in enumerate(batch, 1):
            operation.run(connection)
            # The wall clock may be set back: `batch_max` bounds the batch then.
            if done < options.batch_max and self._env.wall_s() < end_s:
                take()

    def _commit(self, connection: sqlite3.Connection, batch: list[_Operation]) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._disconnect()
            # Refusals too: they may rest on what an earlier operation of this batch wrote.
            self._fail_all(batch, error)
            return
        try:
            assert self._database is not None
            self._database.check()  # what went into a file that has no name is not stored
        except StorageUnavailable as error:
            self._fail_all(batch, error)

    def _isolate(self, batch: list[_Operation], error: Exception) -> None:
        """After a failure in the middle: each operation in a transaction of its own."""
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
        # SQLite has rolled back by itself after some errors.
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
    """This process's writer of the file; `release` it once. The first opener's options hold."""
    with _open_lock:
        writer = _open.get(path)
        if writer is None:
            writer = _open[path] = Writer(path, schema, env, options)
        writer.users += 1
        return writer


def _forget_writers() -> None:
    """In a forked child: the threads stayed with the parent."""
    global _open_lock
    _open_lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writers)
