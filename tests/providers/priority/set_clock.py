"""A clock that tests of priority queues set."""

from __future__ import annotations

from millstream.runtime import Env


class Clock(Env):
    """A clock that tests set, also back."""

    def __init__(self, now_ms: int = 1_000) -> None:
        super().__init__(1)
        self.now_ms = now_ms

    def wall_s(self) -> float:
        return (self.now_ms + 0.5) / 1_000
