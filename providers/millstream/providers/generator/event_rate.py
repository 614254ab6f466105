"""How many events may go now, so that a rate is kept. Pure.

Owns: `EventRate`. Not: waiting (`adapter`). Invariants: event i, from 0, is due at start + (i + 1)
/ rate, never earlier; events go in ticks of `TICK_S`, not one by one; a reader that was away makes
up for `BURST_S` at most. All times are the loop's clock.
"""

from __future__ import annotations

import math

__all__ = ["BURST_S", "TICK_S", "EventRate"]

TICK_S = 0.01
BURST_S = 1.0


class EventRate:
    """The rate of one receiver; `events_per_s` of None is no limit."""

    __slots__ = ("_given", "_last_s", "_rate", "_start_s")

    def __init__(self, events_per_s: float | None, now_s: float) -> None:
        self._rate = events_per_s
        self._start_s = now_s
        self._given = 0
        self._last_s = -math.inf

    def due(self, now_s: float, wanted: int) -> int:
        """How many of `wanted` events may go now; within a tick only if that is all of them."""
        if self._rate is None:
            return wanted
        self._start_s += max(0.0, now_s - BURST_S - self._due_s(self._given))
        ready = self._ready(now_s)
        return 0 if ready < wanted and now_s < self._last_s + TICK_S else min(ready, wanted)

    def _ready(self, now_s: float) -> int:
        assert self._rate is not None
        upto = int((now_s - self._start_s) * self._rate)
        # the division above may round otherwise than the time that a reader waited for
        while self._due_s(upto) <= now_s:
            upto += 1
        while upto > self._given and self._due_s(upto - 1) > now_s:
            upto -= 1
        return max(0, upto - self._given)

    def _due_s(self, event: int) -> float:
        assert self._rate is not None
        return self._start_s + (event + 1) / self._rate

    @property
    def next_s(self) -> float:
        """From when on `due` gives something."""
        if self._rate is None:
            return -math.inf
        return max(self._due_s(self._given), self._last_s + TICK_S)

    def gave(self, count: int, now_s: float) -> None:
        """So many events went."""
        self._given += count
        self._last_s = now_s
