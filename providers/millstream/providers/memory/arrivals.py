"""Readers of one queue that wait for the next message, each with its own timeout.

This module owns `Arrivals`. A wait ends at the next `wake` or at its timeout, never by an error.
One timer serves all waits, so a woken wait costs no timer.
"""

from __future__ import annotations

import asyncio

__all__ = ["Arrivals"]


class Arrivals:
    """Waits of one event loop's tasks. `waits` has the end time of each; others only read it."""

    def __init__(self) -> None:
        self.waits: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._is_closed = False

    async def wait(self, seconds: float) -> None:
        """Wait until a message arrives, or until the time is over."""
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
        """End all waits, present and future, and the timer."""
        self._is_closed = True
        self.wake()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s  # uvloop's handle of a time in the past has no `when`
        self._timer = loop.call_at(due_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now_s = None, loop.time()
        for wait, due_s in list(self.waits.items()):
            if due_s <= now_s and not wait.done():
                wait.set_result(None)
                del self.waits[wait]
        if self.waits:
            self._arm(loop, min(self.waits.values()))
