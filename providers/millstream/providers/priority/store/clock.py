"""The time of one owned queue, computed from the two clocks of the owner's machine.

Leases, delays and retention are durations. Therefore the queue's time must advance at the rate of
real time, even if the wall clock jumps.

Owns `QueueClock`. It is pure: both clocks are arguments.

Invariants:

- The queue's time never goes back.
- It follows the wall clock as long as both agree.
- It never stands still for longer than `TOLERANCE_MS`. If a wrong wall clock is set back, the
  queue's time advances with the monotonic clock.
- The difference of both clocks is stored, so that time without an owner counts, too.
- The queue's time does not follow a forward step of the wall clock of more than `step_max_ms`.
"""

from __future__ import annotations

__all__ = ["TOLERANCE_MS", "QueueClock"]

TOLERANCE_MS = 1_000
"""The queue's time waits for a wall clock that is at most this far behind it."""


class QueueClock:
    """The clock of one owned queue.

    Args:
        stored_ms: The latest time that the queue has seen, in Unix milliseconds; 0 for a new queue.
        ahead_ms: How far the queue's time was ahead of the wall clock when it was stored.
        wall_ms: The machine's wall clock, in Unix milliseconds.
        monotonic_ms: The machine's monotonic clock, with any origin.
        step_max_ms: A larger forward step of the wall clock is ignored.

    Attributes:
        apart_ms: How far the queue's time is ahead of the wall clock (negative: behind); 0 while
            both agree.
        step_ms: The forward step of the wall clock that the latest reading followed.
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
        """The queue's time, in Unix milliseconds: O(1)."""
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
        """Set the queue's time, also backwards."""
        self._now_ms, self._monotonic_ms, self.apart_ms = now_ms, monotonic_ms, 0
