"""`EmbeddedStore`: durable priority queues in SQLite files, for the silos of one machine.

Owns `EmbeddedStore` and `Owners`. Group commit is in `committing`, the SQL statements are in
`rows`, and SQLite itself is in `millstream.runtime.database`.

A frozen hash of its name assigns each queue to one of eight files, so that eight transactions can
run at the same time. Queues of one file share transactions.

Invariants: the contract of stores holds. A commit is one transaction that checks the owner's epoch,
and it is on disk before its answers leave.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.core.changes import Changes
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.settings import QueueSettings
from millstream.runtime import ConfigError, Env, Overloaded, StorageUnavailable
from millstream.runtime.database import (
    Connect,
    DatabaseDirectory,
    Reader,
    Writer,
    WriterOptions,
    open_writer,
)

from . import rows
from .committing import CommittingQueue
from .contract import StoredEvent
from .hold import Hold
from .limits import StoreLimits
from .rows import Acquired
from .schema import FILES, OURS, PRIORITY, file_index

__all__ = ["EmbeddedStore", "Owners"]

log = logging.getLogger("millstream.priority")
T = TypeVar("T")
SLOW_S = 0.1
"""An opening that takes at least this long is logged at level INFO, a shorter one at DEBUG."""
WIDTH_BYTES = 8


class PriorityFile:
    """One file that this store has opened."""

    def __init__(self, path: Path, env: Env, options: WriterOptions) -> None:
        self.path = path
        self.writer: Writer = open_writer(path, PRIORITY, env, options)
        self.owners = Owners(path.with_suffix(".owners"))
        self.events = 0  # events in its outbox at the last look
        self.dropping: asyncio.Task[None] | None = None
        self.counting: asyncio.Task[None] | None = None

    def acquire(
        self,
        queue: str,
        create: QueueSettings | None,
        now_ms: int,
        connection: sqlite3.Connection,
    ) -> Acquired:
        """Raise the epoch, and show it to all processes before the transaction ends.

        From then on the former owner has lost the queue, even if this transaction fails.
        """
        acquired = rows.acquire(queue, create, now_ms, connection)
        self.owners.set(*acquired)
        self.events = rows.events_stored(connection)
        return acquired

    async def aclose(self) -> None:
        tasks = [task for task in (self.dropping, self.counting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.writer.release()
        self.owners.close()


class EmbeddedHold:
    """The ownership of a queue of a file by one owner."""

    def __init__(
        self, store: EmbeddedStore, file: PriorityFile, queue: str, acquired: Acquired
    ) -> None:
        self.queue = queue
        self.epoch = acquired.epoch
        self._store = store
        self._file = file
        self._acquired = acquired

    def is_held(self) -> bool:
        return self._file.owners.is_owner(*self._acquired)

    def check_room(self) -> None:
        self._store.check_room(self._file, self.queue)

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        work = partial(rows.commit, self.queue, self._acquired, changes, next_due_ms)
        await self._file.writer.submit(work)
        if changes is not None:
            self._file.events += len(changes.events)

    async def delete(self) -> None:
        await self._file.writer.submit(partial(rows.delete, self.queue, self._acquired))
        self._store.drop_rows(self._file)


class EmbeddedStore:
    """A durable store in SQLite files, for the silos of one machine.

    The files are `priority-0.db` to `priority-7.db`. The name of a queue decides its file.

    Silos of several processes may share the directory, and silos of one process may share the
    object. Everything that was answered survives the end of every process, and a power cut. A
    commit costs one fsync, which all queues of a file share.

    The directory must be on a local disk. The store needs POSIX (`os.pread`), so it does not run on
    Windows. Open it after a fork.

    Args:
        directory: The directory; created if it is missing.
        env: The environment that supplies the clock; None uses the real one.
        limits: Limits of waiting work.
        events: Whether every change of a message is written to the outbox.
            `PriorityQueues(changes=...)` relays the events. Without it, read `events` and call
            `forget_events`, or the outbox fills up to `events_max` and queues refuse work.
        writer: Limits of the writer of one file.

    Raises:
        ConfigError: The directory is on a network mount, is a file, or cannot be written.
        StorageUnavailable: A file is missing, empty or another one, at the start or while it is
            open.
    """

    outboxes = FILES
    is_durable = True

    def __init__(
        self,
        directory: str | Path,
        env: Env | None = None,
        limits: StoreLimits | None = None,
        *,
        events: bool = False,
        writer: WriterOptions | None = None,
    ) -> None:
        self.limits = limits or StoreLimits()
        self.keeps_events = events
        self._env = env or Env()
        folder = DatabaseDirectory(directory, self._env, OURS)
        self._paths = [folder.path / f"priority-{index}.db" for index in range(FILES)]
        folder.check(path.name for path in self._paths)
        self._id = folder.id  # changes if the directory is created again
        self.place = str(folder.path)  # silos of one cluster must agree on it
        self._options = writer or WriterOptions()
        self._users = 0
        self._files: dict[int, PriorityFile] = {}
        self._readers: dict[str, Reader] = {}
        self._owned: dict[CommittingQueue, None] = {}

    async def open(self) -> None:
        """Open the store for one more user."""
        self._users += 1
        for index, path in enumerate(self._paths):
            if path.exists():
                self.drop_rows(self._file(index))

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> CommittingQueue:
        """Acquire the ownership of a queue: see `PriorityStore`."""
        check_request_text(queue, "queue", queue)
        file = self._file(file_index(queue))
        begun_s, now_ms = self._env.wall_s(), int(self._env.wall_s() * 1000)
        acquired = await file.writer.submit(partial(file.acquire, queue, create, now_ms))
        opening = partial(self._open, file.path, queue, acquired)
        core, due_ms = await self._reader("priority opener").submit(opening)
        took_s, count = self._env.wall_s() - begun_s, sum(core.read.depth().values())
        level = logging.INFO if took_s >= SLOW_S else logging.DEBUG
        log.log(level, "queue %r: opened with %d messages in %.3f s", queue, count, took_s)
        hold = self._hold(file, queue, acquired)
        owned = CommittingQueue(core, due_ms, hold, self._env, self.limits, self._forget)
        self._refuse_closed()
        self._owned[owned] = None
        return owned

    def _hold(self, file: PriorityFile, queue: str, acquired: Acquired) -> Hold:
        return EmbeddedHold(self, file, queue, acquired)

    def _open(
        self, path: Path, queue: str, acquired: Acquired, connect: Connect
    ) -> tuple[PriorityCore, int | None]:
        """The core, built in the reader's thread from one snapshot of its rows."""
        connection = connect(path)
        connection.execute("BEGIN")
        try:
            loaded = rows.load(queue, acquired, connection)
            core = PriorityCore(queue, loaded.rows, keeps_events=self.keeps_events)
            return core, loaded.next_due_ms
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _forget(self, owned: CommittingQueue) -> None:
        self._owned.pop(owned, None)

    def check_room(self, file: PriorityFile, queue: str) -> None:
        """Raise Overloaded if the outbox of a file is full, as far as this store knows."""
        if self.keeps_events and file.events >= self.limits.events_max:
            self._start_counting(file)
            what = f"queue {queue!r}: the outbox of {file.path.name} has too many events to relay"
            raise Overloaded(what, "events_max", self.limits.events_max)

    def _start_counting(self, file: PriorityFile) -> None:
        """Count the events again, because another process may have forgotten some."""
        if file.counting is None or file.counting.done():
            loop, context = asyncio.get_running_loop(), self._env.new_context()
            file.counting = loop.create_task(self._count(file), context=context)

    async def _count(self, file: PriorityFile) -> None:
        with suppress(StorageUnavailable):
            file.events = await self._read(file.path, rows.events_stored)

    # -- rows of deleted queues

    def drop_rows(self, file: PriorityFile) -> None:
        """Delete the rows of deleted queues, in steps between which other work runs."""
        if file.dropping is None or file.dropping.done():
            loop, context = asyncio.get_running_loop(), self._env.new_context()
            file.dropping = loop.create_task(self._drop(file), context=context)

    async def _drop(self, file: PriorityFile) -> None:
        try:
            while await file.writer.submit(rows.drop):
                pass
        except StorageUnavailable as error:
            text = "%s: rows of deleted queues stay in the file until it is opened again: %s"
            log.warning(text, file.path, error)

    # -- lists of queues

    async def due(self, until_ms: int, after: str, limit: int, /) -> list[str]:
        """Names of queues with work that is due by a time: see `PriorityStore`."""
        return await self._merge(partial(rows.due, until_ms, after, limit), limit)

    async def queues(self, prefix: str, after: str, limit: int, /) -> list[str]:
        """Names of queues with a prefix: see `PriorityStore`."""
        return await self._merge(partial(rows.names, prefix, after, limit), limit)

    async def _merge(
        self, work: Callable[[sqlite3.Connection], list[str]], limit: int
    ) -> list[str]:
        self._refuse_closed()
        parts = [self._read(path, work) for path in self._paths if path.exists()]
        return list(islice(heapq.merge(*await asyncio.gather(*parts)), limit))

    async def _read(self, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
        reader = self._reader("priority reader")
        return await reader.submit(lambda connect: work(connect(path)))

    # -- the outboxes

    async def events(self, outbox: int, after: int, limit: int, /) -> list[StoredEvent]:
        """Return events of an outbox after a position. See `PriorityStore`."""
        self._refuse_closed()
        path = self._paths[self._check(outbox)]
        if not path.exists():  # the file has no queue yet
            return []
        return await self._read(path, partial(rows.events, after, limit))

    async def outbox_name(self, outbox: int, /) -> str:
        """The unique name of an outbox: see `PriorityStore`."""
        return f"{self._id}-{self._check(outbox)}"

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete the events of an outbox up to and including a position."""
        file = self._file(self._check(outbox))
        file.events = await file.writer.submit(partial(rows.forget_events, through))

    def _check(self, outbox: int) -> int:
        if not 0 <= outbox < FILES:
            raise ConfigError(f"outbox is {outbox}, not 0 to {FILES - 1}")
        return outbox

    # -- files

    def _file(self, index: int) -> PriorityFile:
        self._refuse_closed()
        file = self._files.get(index)
        if file is None:
            file = PriorityFile(self._paths[index], self._env, self._options)
            self._files[index] = file
        return file

    def _reader(self, name: str) -> Reader:
        self._refuse_closed()
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = Reader(name, PRIORITY, self._env, self._options)
        return reader

    def _refuse_closed(self) -> None:
        if not self._users:
            raise StorageUnavailable(f"{self.place}: this priority store is not open")

    async def aclose(self) -> None:
        """Close the store for one user; the last one releases all queues."""
        self._users = max(self._users - 1, 0)
        if self._users:
            return
        owned, files, readers = list(self._owned), self._files, self._readers
        self._files, self._readers = {}, {}
        await asyncio.gather(*(one.release() for one in owned))
        await asyncio.gather(*(reader.stop() for reader in readers.values()))
        await asyncio.gather(*(file.aclose() for file in files.values()))


class Owners:
    """The epochs of the owners of one file's queues, in a small file that all processes share.

    An owner checks it before each answer that needs no commit. Otherwise an owner that lost its
    queue to another process could answer from its memory. The check reads the kernel's page cache,
    which all processes see at once. The file is never synced, because its content has no meaning
    after a restart of the machine.

    Invariants: the epoch of a new owner is written before that owner answers anything, inside the
    transaction that raises the epoch and under the write lock of the file. In a forked child, no
    queue is owned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_open = False
        self._reading = self._writing = -1
        _all.add(self)

    def _open(self) -> None:
        self._reading = os.open(self._path, os.O_RDONLY | os.O_CREAT, 0o600)
        # this descriptor has a position, and only one thread uses it
        self._writing = os.open(self._path, os.O_WRONLY)
        self._is_open = True

    def set(self, number: int, epoch: int) -> None:
        """Record the owner of a queue, in the thread that has the file's write lock.

        Raises OSError.
        """
        if not self._is_open:
            self._open()
        here, named = os.fstat(self._writing), os.stat(self._path)
        if (here.st_dev, here.st_ino) != (named.st_dev, named.st_ino):
            raise FileNotFoundError(2, "was replaced while it is in use", str(self._path))
        os.lseek(self._writing, number * WIDTH_BYTES, os.SEEK_SET)
        os.write(self._writing, epoch.to_bytes(WIDTH_BYTES, "little"))

    def is_owner(self, number: int, epoch: int) -> bool:
        """Whether the owner of this epoch is still the last owner of the queue."""
        if not self._is_open:
            return False
        found = os.pread(self._reading, WIDTH_BYTES, number * WIDTH_BYTES)
        return int.from_bytes(found, "little") == epoch

    def close(self) -> None:
        """End this process's ownerships of the queues in this file."""
        if self._is_open:
            self._is_open = False
            os.close(self._reading)
            os.close(self._writing)

    def disown(self) -> None:
        """In a forked child, drop the ownerships of the parent."""
        self._is_open = False


_all: WeakSet[Owners] = WeakSet()


def _disown_all() -> None:
    for owners in _all:
        owners.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
