"""The yield budget: a run of work that never suspends must not starve the loop.

Invariants: after about `slice_s` the running task yields once, and a cancellation that comes just
then waits for the next await: what the task has just done is not lost with it. The number of turns
between two looks at the clock adapts to what a turn costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Budget"]

TURNS_PER_LOOK_MAX = 64


class Budget:
    """Counts turns of one process; the caller does `left -= 1` and awaits `pause()` at zero."""

    __slots__ = ("_looked_at", "_size", "_slice_s", "_time", "_yielded_at", "left")

    def __init__(self, time: Callable[[], float], slice_s: float) -> None:
        self._time = time
        self._slice_s = slice_s
        self._size = self.left = TURNS_PER_LOOK_MAX
        self._yielded_at = self._looked_at = time()

    async def spend(self) -> None:
        """One piece of work is done: `left -= 1`, and `pause()` at zero."""
        self.left -= 1
        if not self.left:
            await self.pause()

    async def pause(self) -> None:
        """Look at the clock; yield to the loop if the slice is used up."""
        now = self._time()
        spent = max(now - self._looked_at, 1e-9)
        fit = int(self._slice_s * self._size / spent / 2)
        self.left = self._size = min(TURNS_PER_LOOK_MAX, max(1, fit))
        self._looked_at = now
        if now - self._yielded_at >= self._slice_s:
            await yield_once()
            self._yielded_at = self._looked_at = self._time()


async def yield_once() -> None:
    """Let the loop go round; a cancellation meanwhile is raised where the task suspends next.

    One that was asked for before is raised here: a run of turns that never suspend ends by it.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if task.cancelling() <= before:
            raise
        task.uncancel()
        task.cancel()
