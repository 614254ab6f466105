"""Queues whose owner died while something of them fell due: one silo finds and wakes them.

Owns: `Waker`. Not: what is due (the store says), what is done about it (the queue's owner).
It wakes every queue that is due as stored, also those that have an owner: to these it is nothing.
Invariants: at most `wakes_max` queues are being woken at once, each once; one that does not answer
keeps no other from being woken, while fewer than that many are silent.
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
        is_mine: is this silo to look? Two may think so for a while.
        wake: calls the owner of a queue; bounded in time by the caller.
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
        self._after = ""  # where the last round ended, that had no room for all
        self._lines = LineBudget()

    def start(self) -> None:
        """Begin to look."""
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Look no more; what is being woken goes on elsewhere."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """End at once."""
        self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._options.wake_period_s)
            if self._is_mine():
                try:
                    await self._round()
                except MillstreamError as error:
                    self._warn(f"queues that are due are not found: {error}")

    async def _round(self) -> None:
        """Wake what is due, as far as there is room; the next round goes on behind."""
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
            self._warn(f"queue {queue!r} is due and was not woken: {type(error).__name__}: {error}")
        finally:
            self._waking.discard(queue)

    def _warn(self, text: str) -> None:
        left_out = self._lines.take(self._services.clock.now())
        if left_out is not None:
            log.warning("%s%s", text, left_out)
