"""A thread that runs operations in the order of their submission.

`writer` defines transactions, and `reader` chooses connections.

Invariants:

- A future is used only on its own event loop, with one wake-up per loop and batch.
- Every submitted operation is answered, also if the worker stops or its thread fails.
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
        """Do the work. A MillstreamError becomes the outcome, and other errors are raised."""
        self.result, self.error = None, None
        # Reading a future's state in this thread is safe: at worst the work runs needlessly.
        if self.future.cancelled():
            return
        try:
            self.result = self.work(target)
        except MillstreamError as error:
            self.error = error

    def fail(self, name: str, cause: Exception) -> None:
        """Make `cause` the outcome. Errors of SQLite and the disk become StorageUnavailable."""
        if isinstance(cause, StorageUnavailable):
            self.error = StorageUnavailable(*cause.args)
        elif isinstance(cause, sqlite3.Error | OSError):
            self.error = StorageUnavailable(why_failed(name, cause))
        else:
            self.error = cause
            return
        # Each future needs its own error, because a shared one would collect their tracebacks.
        self.error.__cause__ = cause

    def settle(self) -> None:
        """Resolve the future. Call this only on its event loop."""
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
        # No task of a closed loop waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, operations)


def _settle_all(operations: Sequence[Operation[Any]]) -> None:
    for operation in operations:
        operation.settle()


# Moves the next waiting operation to the end of the batch. Returns False if none waits.
Take = Callable[[], bool]


class Worker(Generic[C]):
    """A thread with a queue of operations.

    `serve(batch, take)` runs in the thread. The batch has one operation at first, and `take` adds
    waiting ones. `serve` gives every operation of the batch an outcome. `finish()` is the last call
    in the thread.
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
        # Guards `_stopping` against callers on other loops: no operation may follow the final None.
        self._lock = threading.Lock()
        self._stopping = False
        self._batch: list[Operation[C]] = []
        self._drained = False
        self._last: Operation[C] | None = None
        self._thread = threading.Thread(target=self._main, name=f"sqlite {name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[C], T]) -> asyncio.Future[T]:
        """Queue the work, and return a future for its result.

        Raises StorageUnavailable at once, before the work runs, if `pending_max` operations wait or
        the worker is closed. Work that is cancelled before it starts does not run.
        """
        if self._queue.qsize() >= self._pending_max:
            raise StorageUnavailable(
                f"{self._name}: {self._queue.qsize()} operations wait,"
                f" pending_max is {self._pending_max}"
            )
        return self._put(Operation(work)).future

    async def flush(self) -> None:
        """Return once all operations that were submitted before are answered."""
        await self._put(Operation(lambda _: None)).future

    async def stop(self) -> None:
        """Answer the submitted operations, then end the thread. Repeatable."""
        last: Operation[C] = Operation(lambda _: None)
        with suppress(StorageUnavailable):
            self._put(last, last=True)
            await last.future
        # The thread resolved that future as its last step, so this does not block the event loop.
        self._thread.join()

    def _put(self, operation: Operation[C], *, last: bool = False) -> Operation[C]:
        with self._lock:
            # A thread does not survive a fork. Without this check the caller would wait forever.
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
        """Fail the operations that are left if `serve` raised, then wake `stop`."""
        with self._lock:
            self._stopping = True
        while self._take():
            pass
        for operation in self._batch:
            operation.fail(self._name, StorageUnavailable(f"{self._name}: its thread failed"))
        _deliver(self._batch if self._last is None else [*self._batch, self._last])
