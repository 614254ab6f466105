"""Waking of queues that have due work and may have lost their owner; one silo does it.

Owns `Waker`. The store says which queues have due work, and the queue's owner does the work. A
queue that has an owner is woken, too; for this owner it is no extra work.

Invariants: at most `wakes_max` queues are woken at the same time, each of them once. A queue that
does not answer delays no other while fewer than that many are silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.providers.priority.store.contract import PriorityStore
from millstream.runtime import MillstreamError
from millstream.runtime.extending import LineBudget, SiloServices

from .options import PriorityOptions

__all__ = ["Waker"]

log = logging.getLogger("millstream.priority")


class Waker:
    """Wakes the queues of one part.

    Args:
        services: The services of the silo.
        store: The store of the queues.
        options: The limits of waking.
        is_mine: Whether this silo wakes queues. For a while, two silos may do it.
        wake: Calls the owner of a queue, within a time limit.
    """

    def __init__(
        self,
        services: SiloServices,
        store: PriorityStore,
        options: PriorityOptions,
        is_mine: Callable[[], bool],
        wake: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._services = services
        self._store = store
        self._options = options
        self._is_mine = is_mine
        self._wake = wake
        self._tasks = services.new_tasks()
        self._waking: set[str] = set()
        self._after = ""  # the end of the last round, if it had no room for all queues
        self._lines = LineBudget()

    def start(self) -> None:
        """Start to look for due queues."""
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Stop; another silo continues."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """Stop at once."""
        self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._options.wake_period_s)
            if self._is_mine():
                try:
                    await self._round()
                except MillstreamError as error:
                    self._warn(f"the search for queues with due work failed: {error}")

    async def _round(self) -> None:
        """Wake due queues as far as there is room. The next round continues after the last one."""
        while (room := self._options.wakes_max - len(self._waking)) > 0:
            until_ms = int(self._services.clock.wall_s() * 1000)
            found = await self._store.due(until_ms, self._after, room)
            for queue in found:
                if queue not in self._waking:
                    self._waking.add(queue)
                    self._tasks.start(self._try(queue))
            if len(found) < room:
                self._after = ""
                return
            self._after = found[-1]

    async def _try(self, queue: str) -> None:
        try:
            await self._wake(queue)
        except MillstreamError as error:
            what = f"{type(error).__name__}: {error}"
            self._warn(f"queue {queue!r} has due work and was not opened: {what}")
        finally:
            self._waking.discard(queue)

    def _warn(self, text: str) -> None:
        left_out = self._lines.take(self._services.clock.now())
        if left_out is not None:
            log.warning("%s%s", text, left_out)
