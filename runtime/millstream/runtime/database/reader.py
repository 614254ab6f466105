"""Reads of SQLite files, in a thread of their own, so that no read waits for an fsync.

Invariants:

- A read sees every write that was acknowledged before the read was submitted.
- The statements of one read may see different snapshots. One statement sees one snapshot.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from millstream.runtime.env import Env
from millstream.runtime.errors import StorageUnavailable

from .database import Database, open_database
from .lock_wait import LockWait
from .schema import Schema
from .worker import Operation, Take, Worker
from .writer import WriterOptions

__all__ = ["Connect", "Reader"]

T = TypeVar("T")

# The first read of a batch waits for at most this many others.
_BATCH_MAX = 64


class Connect(Protocol):
    """A function from the path of a file to the reader's connection to it.

    The reader opens the file on its first use, and creates it if it does not exist. The function
    raises the errors of `open_database`.
    """

    def __call__(self, path: Path, /) -> sqlite3.Connection: ...


class Reader:
    """A thread for reads, with one connection to each file that it has read.

    The thread starts with the object and ends with `stop`.

    Args:
        name: the name of the thread, also shown in errors.
        schema: the schema of all files that are read.
        env: supplies ids and random pauses.
        options: `pending_max` limits the waiting reads, and `lock_wait_s` the wait for locks.
    """

    def __init__(self, name: str, schema: Schema, env: Env, options: WriterOptions) -> None:
        self._name = name
        self._schema = schema
        self._env = env
        self._lock_wait = LockWait(env, options.lock_wait_s)
        self._databases: dict[Path, Database] = {}
        self._reading = name
        self._worker = Worker[Connect](name, options.pending_max, self._serve, self._disconnect)

    def submit(self, work: Callable[[Connect], T]) -> asyncio.Future[T]:
        """Queue a read.

        A read that is cancelled before it begins does not run. The function may run more than once,
        if another process locks the file meanwhile.

        Args:
            work: reads and returns the result. It runs in the reader's thread. Its argument is a
                `Connect`, which returns the connection to a file.

        Returns:
            A future for the result. It raises the errors of `work`. Errors of SQLite and of the
                disk become StorageUnavailable.

        Raises:
            StorageUnavailable: `pending_max` reads wait, or the reader has stopped.
        """
        return self._worker.submit(work)

    async def stop(self) -> None:
        """Finish the submitted reads, close the connections, and end the thread."""
        await self._worker.stop()

    def _serve(self, batch: list[Operation[Connect]], take: Take) -> None:
        for done, operation in enumerate(batch, 1):
            self._run(operation)
            if done < _BATCH_MAX:
                take()

    def _run(self, operation: Operation[Connect]) -> None:
        try:
            # Even in WAL mode the file is locked while another process recovers or removes the log.
            self._lock_wait.run(self._name, lambda: operation.run(self._connect))
        except Exception as error:
            if not isinstance(error, StorageUnavailable):
                self._disconnect()
            operation.fail(self._reading, error)

    def _connect(self, path: Path) -> sqlite3.Connection:
        self._reading = str(path)
        found = self._databases.get(path)
        if found is None:
            found = open_database(path, self._schema, self._env, self._lock_wait)
            self._databases[path] = found
        else:
            found.check()
        return found.connection

    def _disconnect(self) -> None:
        for database in self._databases.values():
            with suppress(sqlite3.Error):
                database.close()
        self._databases.clear()
