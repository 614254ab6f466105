"""A thread for disk work.

Invariants:

- Jobs run in order, one at a time. Each ends with one wake-up of the event loop.
- If the loop is closed meanwhile, it is not called.
- The thread ends with the process without finishing the queue. No caller was told that these jobs
  are durable.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from .seam import JOBS_MAX, Buffer, DiskFile

__all__ = ["RealThread"]

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple[Callable[[], Any], "Future[Any]"]


class RealThread:
    """A thread of the operating system as a `DiskThread`."""

    __slots__ = ("_is_closed", "_jobs", "_loop", "_name", "_waiting")

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting = 0
        self._is_closed = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def flush(self, file: DiskFile, offset: int, parts: Sequence[Buffer], /) -> Future[None]:
        return self.run(write_and_sync, file, offset, parts)

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        refuse(self._name, self._is_closed, self._waiting)
        future: Future[T] = self._loop.create_future()
        self._waiting += 1
        self._jobs.put((lambda: fn(*args, **kwargs), future))
        return future

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done = self._do(*job)
            del job
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(done)
            del done

    def _do(self, job: Callable[[], Any], future: Future[Any]) -> Callable[[], None]:
        """Run a job. Returns a function that the event loop must call."""
        try:
            result = job()
        except Exception as error:
            failure = error
            return lambda: self._settle(future, None, failure)
        return lambda: self._settle(future, result, None)

    def _settle(self, future: Future[Any], result: Any, error: Exception | None) -> None:
        self._waiting -= 1
        settle(future, result, error)


def write_and_sync(file: DiskFile, offset: int, parts: Sequence[Buffer]) -> None:
    file.write_at(offset, *parts)
    file.datasync()


def settle(future: Future[Any], result: Any, error: Exception | None) -> None:
    """Resolve a future, unless it is already done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def refuse(name: str, is_closed: bool, waiting: int) -> None:
    """Raise ValueError if the thread is closed, and BlockingIOError if too many jobs wait."""
    if is_closed:
        raise ValueError(f"disk thread {name!r} is closed")
    if waiting >= JOBS_MAX:
        reason = f"disk thread {name!r}: {waiting} jobs wait, JOBS_MAX is {JOBS_MAX}"
        raise BlockingIOError(errno.EAGAIN, reason)
