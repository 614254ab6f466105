"""The time of one queue while somebody owns it, from the two clocks of the owner's machine.

Leases, delays and retention are durations, so the queue's time must run at the rate of real time,
whatever happens to the wall clock. Owns: `QueueClock`. Pure: both clocks are arguments.
Invariants:
- the queue's time never goes back;
- the queue's time follows the wall clock as long as both agree;
- the queue's time never stands still for longer than `TOLERANCE_MS`: when the wall clock is behind
  the queue's time (somebody corrected a wrong clock), the queue's time advances with the monotonic
  clock;
- how far both are apart is stored, so that the time without an owner counts, too;
- the queue's time does not follow the wall clock over a forward step of more than `step_max_ms`.
"""

from __future__ import annotations

__all__ = ["TOLERANCE_MS", "QueueClock"]

TOLERANCE_MS = 1_000
"""A wall clock that is behind the queue's time by no more than this is waited for."""


class QueueClock:
    """The clock of one owned queue.

    Args:
        stored_ms: the latest time that the queue has seen, Unix milliseconds; 0 for a new queue.
        ahead_ms: how far the queue's time was ahead of the wall clock, as it was stored.
        wall_ms, monotonic_ms: the clocks of the machine now; the latter from any origin.
        step_max_ms: a larger forward step of the wall clock is not followed.
    Attributes:
        apart_ms: how far the queue's time is ahead of the wall clock (negative: behind); 0 while
            both agree.
        step_ms: how far the latest reading followed a step of the wall clock forward.
    """

    __slots__ = ("_monotonic_ms", "_now_ms", "apart_ms", "step_max_ms", "step_ms")

    def __init__(
        self, stored_ms: int, ahead_ms: int, wall_ms: int, monotonic_ms: int, step_max_ms: int
    ) -> None:
        continued_ms = wall_ms + ahead_ms
        is_plausible = ahead_ms and continued_ms - stored_ms <= step_max_ms
        self._now_ms = max(stored_ms, continued_ms) if is_plausible else stored_ms
        self._monotonic_ms = monotonic_ms
        self.step_max_ms = step_max_ms
        self.read(wall_ms, monotonic_ms)

    def read(self, wall_ms: int, monotonic_ms: int) -> int:
        """The queue's time now, Unix milliseconds: O(1)."""
        expected_ms = self._now_ms + max(monotonic_ms - self._monotonic_ms, 0)
        ahead_ms = expected_ms - wall_ms
        is_refused = ahead_ms < -self.step_max_ms and self._now_ms > 0  # a new queue has no time
        if is_refused or ahead_ms > TOLERANCE_MS:
            self.apart_ms, self.step_ms = ahead_ms, 0
            now_ms = expected_ms
        else:
            self.apart_ms, self.step_ms = 0, max(-ahead_ms, 0)
            now_ms = max(self._now_ms, wall_ms)
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms
        return now_ms

    def reset(self, now_ms: int, monotonic_ms: int) -> None:
        """Set the queue's time, also back."""
        self._now_ms, self._monotonic_ms, self.apart_ms = now_ms, monotonic_ms, 0
