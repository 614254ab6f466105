"""The readers of one provider that are kept between two pages.

Owns: `KeptReaders`. Not: the messages. Invariants: a reader serves one call at a time. A reader
whose call failed, was late or was cancelled is closed and not used again. At most `READERS_MAX`
readers are idle, none longer than `IDLE_S`. At most `READS_MAX` calls are under way, and others
wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millstream.runtime import SiloUnavailable
from millstream.runtime.extending import Tasks
from millstream.streams.contracts.answers import fault_of
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.queue import QueueReader

__all__ = ["IDLE_S", "READERS_MAX", "READS_MAX", "KeptReaders"]

log = logging.getLogger("millstream.streams")

READS_MAX = 16
READERS_MAX = 64
IDLE_S = 30.0


class KeptReaders:
    """Makes readers, and keeps the idle ones.

    `call_limit_s`: how long closing a reader may take.
    """

    def __init__(
        self, make: Callable[[QueueId], QueueReader], tasks: Tasks, call_limit_s: float
    ) -> None:
        self._make = make
        self._tasks = tasks
        self._call_limit_s = call_limit_s
        self._slots = asyncio.Semaphore(READS_MAX)
        self._idle: OrderedDict[QueueReader, tuple[QueueId, asyncio.TimerHandle]] = OrderedDict()
        self._closing: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def idle(self) -> int:
        """The number of idle readers."""
        return len(self._idle)

    @asynccontextmanager
    async def reader(self, queue: QueueId) -> AsyncIterator[QueueReader]:
        """Return a reader of a queue, for one call. Raises SiloUnavailable if this silo stops."""
        async with self._slots:
            if self._is_closed:
                raise SiloUnavailable("this silo shuts down", may_have_run=False)
            reader = self._take(queue)
            try:
                yield reader
            except BaseException:
                self._close(reader)
                raise
            self._keep(queue, reader)

    def _take(self, queue: QueueId) -> QueueReader:
        """The reader that was idle for the shortest time, or a new one."""
        found = next((one for one, (of, _) in reversed(self._idle.items()) if of == queue), None)
        if found is None:
            return self._make(queue)
        self._idle.pop(found)[1].cancel()
        return found

    def _keep(self, queue: QueueId, reader: QueueReader) -> None:
        if self._is_closed:
            self._close(reader)
            return
        timer = self._tasks.call_later(IDLE_S, lambda: self._expire(reader))
        self._idle[reader] = queue, timer
        if len(self._idle) > READERS_MAX:
            self._expire(next(iter(self._idle)))

    def _expire(self, reader: QueueReader) -> None:
        self._idle.pop(reader)[1].cancel()
        self._close(reader)

    def _close(self, reader: QueueReader) -> None:
        self._closing = [task for task in self._closing if not task.done()]
        self._closing.append(self._tasks.start(self._wait_closed(reader)))

    async def _wait_closed(self, reader: QueueReader) -> None:
        try:
            async with asyncio.timeout(self._call_limit_s):
                await reader.aclose()
        except Exception as error:
            log.warning("%s", fault_of(f"{type(reader).__name__}.aclose", error))

    async def aclose(self) -> None:
        """Close all readers; those in use when their calls end."""
        self._is_closed = True
        for reader in list(self._idle):
            self._expire(reader)
        if self._closing:
            await asyncio.wait(self._closing)
