"""The number of events that a rate allows now, as a pure calculation.

This module owns `EventRate`, and `adapter` does the waiting. Event i, from 0, is due at start + (i
+ 1) / rate, and never earlier. Events are released in ticks of `TICK_S`, not one by one. After a
pause, a reader catches up by at most `BURST_S`. All times are the loop's clock.
"""

from __future__ import annotations

import math

__all__ = ["BURST_S", "TICK_S", "EventRate"]

TICK_S = 0.01
BURST_S = 1.0


class EventRate:
    """The rate of one receiver; None means no limit."""

    __slots__ = ("_given", "_last_s", "_rate", "_start_s")

    def __init__(self, events_per_s: float | None, now_s: float) -> None:
        self._rate = events_per_s
        self._start_s = now_s
        self._given = 0
        self._last_s = -math.inf

    def due(self, now_s: float, wanted: int) -> int:
        """Return how many of `wanted` events are due; within a tick, only if all of them are."""
        if self._rate is None:
            return wanted
        self._start_s += max(0.0, now_s - BURST_S - self._due_s(self._given))
        ready = self._ready(now_s)
        return 0 if ready < wanted and now_s < self._last_s + TICK_S else min(ready, wanted)

    def _ready(self, now_s: float) -> int:
        assert self._rate is not None
        upto = int((now_s - self._start_s) * self._rate)
        # the division above and the reader's waiting time may round differently
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
        """The time from which `due` returns events."""
        if self._rate is None:
            return -math.inf
        return max(self._due_s(self._given), self._last_s + TICK_S)

    def gave(self, count: int, now_s: float) -> None:
        """Record that `count` events were read."""
        self._given += count
        self._last_s = now_s
