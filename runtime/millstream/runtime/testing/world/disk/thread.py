"""Disk work in virtual time.

This module owns `SimThread`. Like a real thread it does one job after the other. Time passes
between the write and the sync of a flush, so a crash can find the bytes unsynced. It is a task on
the host that started it, and ends with the host.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from millstream.runtime.disk.seam import Buffer, DiskFile
from millstream.runtime.disk.thread import refuse, settle
from millstream.runtime.testing.world.host import current_host

from .medium import Medium

__all__ = ["SimThread"]

P = ParamSpec("P")
T = TypeVar("T")


class SimThread:
    """A `DiskThread` that is a task."""

    def __init__(self, name: str, medium: Medium) -> None:
        self._name = name
        self._medium = medium
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[Callable[[], Coroutine[Any, Any, Any]], Future[Any]]]
        self._jobs = deque()
        self._is_closed = False
        self._worker: asyncio.Task[None] | None = None

    def flush(self, file: DiskFile, offset: int, parts: Sequence[Buffer], /) -> Future[None]:
        return self._add(lambda: self._flush(file, offset, parts))

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._add(lambda: self._run(lambda: fn(*args, **kwargs)))

    def close(self) -> None:
        self._is_closed = True

    def _add(self, job: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        refuse(self._name, self._is_closed, len(self._jobs))
        future: Future[T] = self._loop.create_future()
        self._jobs.append((job, future))
        if self._worker is None:
            host = current_host()
            context = Context() if host is None else host.context()
            self._worker = self._loop.create_task(self._work(), name=self._name, context=context)
        return future

    async def _work(self) -> None:
        while self._jobs:
            job, future = self._jobs[0]
            try:
                result = await job()
            except Exception as error:
                settle(future, None, error)
            else:
                settle(future, result, None)
            self._jobs.popleft()
        self._worker = None

    async def _flush(self, file: DiskFile, offset: int, parts: Sequence[Buffer]) -> None:
        file.write_at(offset, *parts)
        await asyncio.sleep(self._medium.sync_s())
        try:
            file.datasync()
        finally:
            self._medium.take_owed_s()  # the wait above has paid it

    async def _run(self, fn: Callable[[], T]) -> T:
        await asyncio.sleep(0)  # the caller continues first, as beside a thread
        self._medium.take_owed_s()
        try:
            return fn()
        finally:
            await asyncio.sleep(self._medium.take_owed_s())
