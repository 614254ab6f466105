"""Sets of numbers that are mostly neighbours.

Owns: `Intervals`. Invariant: intervals are sorted, and neither overlap nor touch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["Intervals"]


class Intervals:
    """Numbers as intervals [first, last]."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in pairs:
            self.add(first, last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self._firsts)

    def numbers(self) -> Iterator[int]:
        """Yield all numbers, sorted."""
        for first, last in self:
            yield from range(first, last + 1)

    def add(self, first: int, last: int | None = None) -> None:
        """Add the numbers from `first` to `last`, or `first` alone."""
        last = first if last is None else last
        assert first <= last, (first, last)
        start = bisect_right(self._firsts, first)
        if start and self._lasts[start - 1] >= first - 1:
            start -= 1
        stop = bisect_right(self._firsts, last + 1)
        if start < stop:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[stop - 1])
        self._firsts[start:stop] = [first]
        self._lasts[start:stop] = [last]

    def remove(self, number: int) -> None:
        """Remove a number, if it is present."""
        if number not in self:
            return
        at = bisect_right(self._firsts, number) - 1
        first, last = self._firsts[at], self._lasts[at]
        rest = [pair for pair in ((first, number - 1), (number + 1, last)) if pair[0] <= pair[1]]
        self._firsts[at : at + 1] = [pair[0] for pair in rest]
        self._lasts[at : at + 1] = [pair[1] for pair in rest]
