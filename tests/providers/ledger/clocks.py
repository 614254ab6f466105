"""The clock of tests: the loop's time, a wall clock beside it, and seeded chance."""

from __future__ import annotations

import asyncio
from random import Random

__all__ = ["LoopClock"]


class LoopClock:
    """A `Clock`. Its wall clock differs from others by `skew_s`."""

    def __init__(self, seed: int = 0, skew_s: float = 0.0) -> None:
        self._random = Random(seed)
        self.skew_s = skew_s

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self.now() + self.skew_s

    def uniform(self, low: float, high: float, /) -> float:
        return self._random.uniform(low, high)
