"""One thread that serves operations in the order in which they were submitted.

Owns: `Operation`, `Worker`. Not: what an operation does, transactions (`writer`), or
which connection it uses (`reader`).
Invariants: futures are touched only on their own event loop, with one wake-up per loop and batch;
every submitted operation is answered, also when the worker stops or its thread fails.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from millstream.runtime.errors import MillstreamError, StorageUnavailable

from .database import why_failed

__all__ = ["Operation", "Take", "Worker"]

C = TypeVar("C")
T = TypeVar("T")


class Operation(Generic[C]):
    """A piece of work, its outcome, and the future that waits for it."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Callable[[C], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None

    def run(self, target: C) -> None:
        """Do the work. A MillstreamError becomes the outcome; anything else is raised."""
        self.result, self.error = None, None
        # Reading the state of a future of another thread is safe; the worst is one needless run.
        if self.future.cancelled():
            return
        try:
            self.result = self.work(target)
        except MillstreamError as error:
            self.error = error

    def fail(self, name: str, cause: Exception) -> None:
        """Make `cause` the outcome; failures of SQLite and the disk become StorageUnavailable."""
        if isinstance(cause, StorageUnavailable):
            self.error = StorageUnavailable(*cause.args)
        elif isinstance(cause, sqlite3.Error | OSError):
            self.error = StorageUnavailable(why_failed(name, cause))
        else:
            self.error = cause
            return
        # An error of its own for each future, or they would share one traceback.
        self.error.__cause__ = cause

    def settle(self) -> None:
        """Resolve the future; only on its event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


def _deliver(batch: Sequence[Operation[Any]]) -> None:
    """Resolve the futures of a batch, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation[Any]]] = {}
    for operation in batch:
        by_loop.setdefault(operation.loop, []).append(operation)
    for loop, operations in by_loop.items():
        # A closed loop has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, operations)


def _settle_all(operations: Sequence[Operation[Any]]) -> None:
    for operation in operations:
        operation.settle()


# Moves the next waiting operation to the end of the batch; False if none waits.
Take = Callable[[], bool]


class Worker(Generic[C]):
    """The thread and its queue.

    `serve(batch, take)` runs in the thread and gives an outcome to each operation of the batch, at
    first one, and to those that it takes in addition. `finish()` runs there last.
    """

    def __init__(
        self,
        name: str,
        pending_max: int,
        serve: Callable[[list[Operation[C]], Take], None],
        finish: Callable[[], None],
    ) -> None:
        self._name = name
        self._pending_max = pending_max
        self._serve = serve
        self._finish = finish
        self._queue: queue.SimpleQueue[Operation[C] | None] = queue.SimpleQueue()
        # Guards `_stopping` against submitters on other loops: nothing may follow the last None.
        self._lock = threading.Lock()
        self._stopping = False
        self._batch: list[Operation[C]] = []
        self._drained = False
        self._last: Operation[C] | None = None
        self._thread = threading.Thread(target=self._main, name=f"sqlite {name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[C], T]) -> asyncio.Future[T]:
        """Queue the work; the future gives its result.

        Raises StorageUnavailable at once, surely not executed, if `pending_max` operations wait
        or the worker is closed. Work that is cancelled before it starts does not run.
        """
        if self._queue.qsize() >= self._pending_max:
            raise StorageUnavailable(
                f"{self._name}: {self._queue.qsize()} operations wait,"
                f" pending_max is {self._pending_max}"
            )
        return self._put(Operation(work)).future

    async def flush(self) -> None:
        """Return when all that was submitted before has been answered."""
        await self._put(Operation(lambda _: None)).future

    async def stop(self) -> None:
        """Answer what was submitted, then end the thread; nothing to do if it has ended."""
        last: Operation[C] = Operation(lambda _: None)
        with suppress(StorageUnavailable):
            self._put(last, last=True)
            await last.future
        # Resolving that future was the thread's last act, so this does not block the loop.
        self._thread.join()

    def _put(self, operation: Operation[C], *, last: bool = False) -> Operation[C]:
        with self._lock:
            # A thread does not survive a fork: without this the caller would wait for ever.
            if self._stopping or not self._thread.is_alive():
                raise StorageUnavailable(f"{self._name} is closed")
            self._stopping = last
            self._last = operation if last else None
            self._queue.put(None if last else operation)
        return operation

    def _take(self) -> bool:
        try:
            operation = self._queue.get_nowait()
        except queue.Empty:
            return False
        return self._accept(operation)

    def _accept(self, operation: Operation[C] | None) -> bool:
        if operation is None:
            self._drained = True
            return False
        self._batch.append(operation)
        return True

    def _main(self) -> None:
        try:
            while not self._drained and self._accept(self._queue.get()):
                self._serve(self._batch, self._take)
                batch, self._batch = self._batch, []
                _deliver(batch)
        finally:
            self._finish()
            self._answer_rest()

    def _answer_rest(self) -> None:
        """Fail what was not answered, which there is only if `serve` raised; then wake `stop`."""
        with self._lock:
            self._stopping = True
        while self._take():
            pass
        for operation in self._batch:
            operation.fail(self._name, StorageUnavailable(f"{self._name}: its thread failed"))
        _deliver(self._batch if self._last is None else [*self._batch, self._last])
