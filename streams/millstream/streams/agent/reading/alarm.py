"""One timer, for the earliest time that is wanted.

Owns: `Alarm`. Not: what is wanted when (`reader`). Invariant: it rings not later than the earliest
time that it was set to; where it rings too early, who hears it sets it again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from millstream.runtime.extending import Tasks

__all__ = ["Alarm"]


class Alarm:
    """Calls `ring` once for each time that it was set to, unless it was set to an earlier one."""

    __slots__ = ("_handle", "_ring", "_tasks", "_when_s")

    def __init__(self, tasks: Tasks, ring: Callable[[], None]) -> None:
        self._tasks = tasks
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when_s = math.inf

    def set(self, when_s: float) -> None:
        """Ring at this time of the loop's clock at the latest; infinite: not at all."""
        if self._handle is not None and self._when_s <= when_s:
            return
        self.cancel()
        if when_s < math.inf:
            self._when_s = when_s  # uvloop's handle of a time that has come does not tell it
            self._handle = self._tasks.call_at(when_s, self._rings)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self._ring()
