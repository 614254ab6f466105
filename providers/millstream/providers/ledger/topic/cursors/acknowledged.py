"""The messages that a named cursor has acknowledged.

Owns: `Acknowledged`. Pure. Invariants: all messages up to `mark` are acknowledged, as with Pulsar's
mark-delete position. The ranges above it are disjoint and in order. The mark never goes back,
except by `Cursor.seek`, which begins again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

__all__ = ["RANGES_KEPT_MAX", "Acknowledged"]

RANGES_KEPT_MAX = 100_000
"""The largest number of ranges in memory. Messages of the newest ranges above the limit are
redelivered."""


class Acknowledged:
    """Messages by number. Attributes: `mark`: all messages up to this one are acknowledged."""

    __slots__ = ("_ends", "_starts", "mark")

    def __init__(self, mark: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.mark = mark
        self._starts: list[int] = []
        self._ends: list[int] = []  # inclusive
        for first, last in ranges:
            self.add(first, last)

    def __contains__(self, number: int) -> bool:
        if number <= self.mark:
            return True
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number <= self._ends[at]

    def ranges(self, count_max: int) -> tuple[tuple[int, int], ...]:
        """Return the oldest ranges above the mark, with both ends included."""
        return tuple(zip(self._starts[:count_max], self._ends[:count_max], strict=True))

    def advance(self, upto: int) -> None:
        """Acknowledge every message up to and including this one."""
        if upto > self.mark:
            self.mark = upto
            self._close_gap()

    def add(self, first: int, last: int) -> None:
        """Acknowledge the messages from `first` to `last`, both included."""
        if last <= self.mark or first > last:
            return
        # the first range that touches it, or comes after it
        low = bisect_left(self._ends, first - 1)
        high = bisect_right(self._starts, last + 1)
        if low < high:
            first, last = min(first, self._starts[low]), max(last, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [last]
        self._close_gap()
        del self._starts[RANGES_KEPT_MAX:], self._ends[RANGES_KEPT_MAX:]

    def next_after(self, number: int) -> int:
        """Return the first message from `number` on that is not acknowledged."""
        number = max(number, self.mark + 1)
        at = bisect_right(self._starts, number) - 1
        return self._ends[at] + 1 if at >= 0 and number <= self._ends[at] else number

    def _close_gap(self) -> None:
        at = bisect_right(self._starts, self.mark + 1)
        if at:
            self.mark = max(self.mark, self._ends[at - 1])
            del self._starts[:at], self._ends[:at]
