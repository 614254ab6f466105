"""The places of the entries of one ledger: 8 bytes for each entry, and no object.

Owns: `Runs`. Invariants: runs are sorted by their first entry and do not overlap. A place is never
0, which marks a hole. The entries of a striped ledger leave holes. An entry with a distant number
begins a new run, so that large numbers take no extra memory.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["HOLE_MAX", "Runs", "places_bytes", "places_in"]

HOLE_MAX = 256
"""The largest number of consecutive missing entries within a run."""


class Runs:
    """The places of entries, by number."""

    __slots__ = ("_bases", "_places")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._places: list[array[int]] = []

    def __iter__(self) -> Iterator[tuple[int, array[int]]]:
        """Yield each run: its first entry, and the places from there on."""
        return iter(zip(self._bases, self._places, strict=True))

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(len(run) - run.count(0) for run in self._places)

    @property
    def last(self) -> int:
        """The highest entry, or -1 if there is none."""
        return self._bases[-1] + len(self._places[-1]) - 1 if self._bases else -1

    def get(self, entry: int) -> int:
        """Return the place of an entry, or 0 if the entry is not here."""
        at = bisect_right(self._bases, entry) - 1
        if at < 0:
            return 0
        run, index = self._places[at], entry - self._bases[at]
        return run[index] if index < len(run) else 0

    def put(self, entry: int, place: int) -> int:
        """Set a place; return the one that it replaces, or 0."""
        at = bisect_right(self._bases, entry) - 1
        if at >= 0:
            run, index = self._places[at], entry - self._bases[at]
            hole = index - len(run)
            if hole < 0:
                old, run[index] = run[index], place
                return old
            if hole <= HOLE_MAX:
                if hole:
                    run.extend((0,) * hole)
                run.append(place)
                return 0
        self._put_before(at + 1, entry, place)
        return 0

    def _put_before(self, at: int, entry: int, place: int) -> None:
        """Set a place that no run reaches, in front of run `at`."""
        if at < len(self._bases) and self._bases[at] - entry <= HOLE_MAX:
            hole = array("Q", (0,)) * (self._bases[at] - entry - 1)
            self._places[at] = array("Q", (place,)) + hole + self._places[at]
            self._bases[at] = entry
            return
        self._bases.insert(at, entry)
        self._places.insert(at, array("Q", (place,)))

    def extend(self, base: int, places: array[int]) -> None:
        """Add a run after all existing ones."""
        assert base > self.last, (base, self.last)
        hole = base - self.last - 1
        if self._bases and hole <= HOLE_MAX:
            self._places[-1].extend((0,) * hole)
            self._places[-1].extend(places)
            return
        self._bases.append(base)
        self._places.append(places[:])


def places_bytes(places: array[int]) -> bytes:
    """Return places in their stored form: u64, little-endian."""
    if sys.byteorder == "big":
        places = places[:]
        places.byteswap()
    return places.tobytes()


def places_in(data: bytes) -> array[int]:
    places = array("Q")
    places.frombytes(data)
    if sys.byteorder == "big":
        places.byteswap()
    return places
