"""How often the reading of a queue stopped because its cache was full, and for how long.

Owns: `Stops`. Not: when it is full (`cache`), or what is done about it (`relief`). Pure.
"""

from __future__ import annotations

import math

__all__ = ["Stops"]


class Stops:
    """The stops of one reader. Attributes: `count`: also the stop that lasts still."""

    __slots__ = ("_since_s", "_total_s", "count", "is_stopped")

    def __init__(self) -> None:
        self.count = 0
        self._total_s = 0.0  # of those that are over
        self._since_s = math.inf  # finite while it is stopped
        self.is_stopped = False

    def at(self, now_s: float, *, is_full: bool) -> None:
        """It would be read now, and there is room or not; not full, too: it is not to be read."""
        if is_full and not self.is_stopped:
            self.count += 1
            self._since_s = now_s
        elif self.is_stopped and not is_full:
            self._total_s += now_s - self._since_s
            self._since_s = math.inf
        self.is_stopped = is_full

    def total_s(self, now_s: float) -> float:
        """Seconds of all stops, up to now."""
        return self._total_s + max(0.0, now_s - self._since_s)
