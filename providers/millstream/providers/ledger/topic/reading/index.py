"""Finding the entry of a message or of a time: the known entries, and where to look next.

Owns: `EntryIndex`. Pure. Invariant: numbers and times of entries never go back, so an entry between
two known ones is found by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

__all__ = ["EntryIndex"]

KNOWN_MAX = 65_536


class EntryIndex:
    """The entries of one ledger whose heads were seen. In the process of its writer, these are all
    entries."""

    __slots__ = ("_entries", "_firsts", "_times")

    def __init__(self) -> None:
        self._entries = array("q")
        self._firsts = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, entry: int, first: int, time_ms: int) -> None:
        """Record that an entry begins with message `first`, at a time."""
        at = bisect_left(self._entries, entry)
        if at < len(self._entries) and self._entries[at] == entry:
            return
        if at < len(self._entries) and len(self._entries) >= KNOWN_MAX:
            del self._entries[:], self._firsts[:], self._times[:]
        self._entries.insert(at, entry)
        self._firsts.insert(at, first)
        self._times.insert(at, time_ms)

    def around_number(self, number: int, end: int) -> tuple[int, int]:
        """Return low and high: the last entry that begins at or before a message is in low..high-1.
        `end` is the entry after the last one."""
        return self._around(bisect_right(self._firsts, number), end)

    def around_time(self, time_ms: int, end: int) -> tuple[int, int]:
        """Return bounds (low, high) of the last entry that begins before a time.

        That entry is in low..high-1. If low is -1, no known entry begins before the time.
        """
        at = bisect_left(self._times, time_ms)
        low = self._entries[at - 1] if at else -1
        return low, self._entries[at] if at < len(self._entries) else end

    def _around(self, at: int, end: int) -> tuple[int, int]:
        low = self._entries[at - 1] if at else 0
        return low, self._entries[at] if at < len(self._entries) else end
