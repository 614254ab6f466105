"""Reads of SQLite files, in a thread of their own so that no read waits for an fsync.

Owns: `Reader`. Invariants: a read sees every write that was acknowledged before it was submitted;
one operation is one snapshot only if it is one statement.
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

# A read's first waiter does not wait for more than this many others.
_BATCH_MAX = 64


class Connect(Protocol):
    """Gives the reader's connection to a file. Raises as `open_database`."""

    def __call__(self, path: Path, /) -> sqlite3.Connection: ...


class Reader:
    """One thread with one connection to each file that has been read."""

    def __init__(self, name: str, schema: Schema, env: Env, options: WriterOptions) -> None:
        self._name = name
        self._schema = schema
        self._env = env
        self._lock_wait = LockWait(env, options.lock_wait_s)
        self._databases: dict[Path, Database] = {}
        self._reading = name
        self._worker = Worker[Connect](name, options.pending_max, self._serve, self._disconnect)

    def submit(self, work: Callable[[Connect], T]) -> asyncio.Future[T]:
        """Queue a read; it gets a function from path to connection. Raises StorageUnavailable."""
        return self._worker.submit(work)

    async def stop(self) -> None:
        """Answer what was submitted and close the connections."""
        await self._worker.stop()

    def _serve(self, batch: list[Operation[Connect]], take: Take) -> None:
        for done, operation in enumerate(batch, 1):
            self._run(operation)
            if done < _BATCH_MAX:
                take()

    def _run(self, operation: Operation[Connect]) -> None:
        try:
            # Even a WAL reader meets a lock while another process recovers or removes the log.
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
