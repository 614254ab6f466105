"""Readers of one queue that wait for the next message, each for its own time.

Owns: `Arrivals`. Invariants: a wait ends at the next `wake`, or when its time is over, never by an
error; one timer serves all waits, so a wait that is woken costs none.
"""

from __future__ import annotations

import asyncio

__all__ = ["Arrivals"]


class Arrivals:
    """Waits of the tasks of one event loop: `waits`, and until when; nobody else changes them."""

    def __init__(self) -> None:
        self.waits: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._is_closed = False

    async def wait(self, seconds: float) -> None:
        """Until something arrives, or the time is over."""
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        due_s = self.waits[wait] = loop.time() + seconds
        if self._timer is None or self._timer_s > due_s:
            self._arm(loop, due_s)
        try:
            await wait
        finally:
            self.waits.pop(wait, None)

    def wake(self) -> None:
        """End every wait."""
        for wait in self.waits:
            if not wait.done():
                wait.set_result(None)
        self.waits.clear()

    def close(self) -> None:
        """End every wait, those to come, and the timer."""
        self._is_closed = True
        self.wake()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s  # what uvloop gives for a time that has come cannot tell
        self._timer = loop.call_at(due_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now_s = None, loop.time()
        for wait, due_s in list(self.waits.items()):
            if due_s <= now_s and not wait.done():
                wait.set_result(None)
                del self.waits[wait]
        if self.waits:
            self._arm(loop, min(self.waits.values()))
