"""The yield budget: work that never suspends must not block the event loop.

Invariants:

- A series of turns that keeps the loop busy yields after about `slice_s`.
- No task yields while the loop runs other callbacks anyway.
- A cancellation that arrives during a yield is raised at the next await, so the work that the task
  has just done is not lost.

The number of turns between two readings of the clock adapts to the cost of a turn.
"""

from __future__ import annotations

import asyncio

__all__ = ["Budget"]

TURNS_PER_LOOK_MAX = 64


class Budget:
    """A limit for work that never suspends, so that it does not starve the event loop.

    One silo has one budget, `services.budget`. Await `spend()` after each piece of work. It yields
    to the loop when pieces have run for about `RuntimeOptions.slice_s` without a pause.

    Attributes:
        left: Pieces until the next look at the clock. Fast code may decrement it, and await
            `pause()` at zero.
    """

    __slots__ = ("_began_at", "_is_waiting", "_looked_at", "_loop", "_size", "_slice_s", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop, slice_s: float) -> None:
        self._loop = loop
        self._slice_s = slice_s
        self._size = self.left = TURNS_PER_LOOK_MAX
        self._is_waiting = False  # for the next iteration of the loop

    async def spend(self) -> None:
        """Count one finished piece of work, and yield to the loop if a slice is over."""
        self.left -= 1
        if not self.left:
            await self.pause()

    async def pause(self) -> None:
        """Look at the clock, and yield to the loop if it has not run for a whole slice."""
        now = self._loop.time()
        if not self._is_waiting:  # the loop has made an iteration since the last look
            self._is_waiting = True
            self._began_at = self._looked_at = now
            self._loop.call_soon(self._end_wait)
            self.left = self._size
            return
        spent = max(now - self._looked_at, 1e-9)
        fit = int(self._slice_s * self._size / spent / 2)
        # grow in steps: a clock of whole milliseconds (uvloop) often reports that no time passed
        self.left = self._size = max(1, min(fit, 2 * self._size, TURNS_PER_LOOK_MAX))
        self._looked_at = now
        if now - self._began_at >= self._slice_s:
            await yield_once()

    def _end_wait(self) -> None:
        self._is_waiting = False


async def yield_once() -> None:
    """Let the event loop run one iteration.

    A cancellation that arrives meanwhile is raised at the task's next await. A cancellation that
    was requested before is raised here, so it ends a series of turns that never suspend.
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
