"""The yield budget: a run of work that never suspends must not starve the loop.

Invariants: a run of turns in which the loop does not go round yields after about `slice_s`; while
the loop goes round by itself nobody yields; a cancellation that comes just as a task yields waits
for the next await: what the task has just done is not lost with it. The number of turns between
two looks at the clock adapts to what a turn costs (spec/hotpath.md rule 10).
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
        self._is_waiting = False  # for the loop to go round

    async def spend(self) -> None:
        """Count one finished piece of work, and yield to the loop if a slice is over."""
        self.left -= 1
        if not self.left:
            await self.pause()

    async def pause(self) -> None:
        """Look at the clock, and yield to the loop if it has not run for a whole slice."""
        now = self._loop.time()
        if not self._is_waiting:  # it has, since the last look
            self._is_waiting = True
            self._began_at = self._looked_at = now
            self._loop.call_soon(self._end_wait)
            self.left = self._size
            return
        spent = max(now - self._looked_at, 1e-9)
        fit = int(self._slice_s * self._size / spent / 2)
        # Grow step by step: a clock of whole milliseconds (uvloop) often tells that no time passed.
        self.left = self._size = max(1, min(fit, 2 * self._size, TURNS_PER_LOOK_MAX))
        self._looked_at = now
        if now - self._began_at >= self._slice_s:
            await yield_once()

    def _end_wait(self) -> None:
        self._is_waiting = False


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
