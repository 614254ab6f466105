"""The consistent ring of silos: which silo owns a hash. Pure.

Invariants: equal member lists give equal rings everywhere (frozen hash, version 1: xxh3 of
`silo#i`); every hash has one owner; `find_gained` covers exactly the hashes whose owner became
`me`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import xxhash

__all__ = ["HASH_MAX", "Ring", "Segment", "covers", "find_gained", "hash_of", "within"]

POINTS_PER_SILO = 30
HASH_MAX = 2**64 - 1
Segment = tuple[int, int]  # hashes in low..high, both inclusive


def hash_of(text: str) -> int:
    """The point of a name on the ring, 0..HASH_MAX."""
    return xxhash.xxh3_64_intdigest(text.encode())


class Ring:
    """Points of silos, sorted; a hash belongs to the first point at or after it."""

    __slots__ = ("_hashes", "_owners", "silos")

    def __init__(self, silos: Sequence[str]) -> None:
        self.silos = tuple(sorted(silos))
        points = sorted(
            (hash_of(f"{silo}#{i}"), silo) for silo in self.silos for i in range(POINTS_PER_SILO)
        )
        self._hashes = [point for point, _ in points]
        self._owners = [silo for _, silo in points]

    def owner(self, point: int) -> str | None:
        """The owner of a hash; None in an empty ring."""
        if not self._owners:
            return None
        return self._owners[bisect_left(self._hashes, point) % len(self._owners)]

    def successors(self, silo: str, count: int) -> list[str]:
        """Up to `count` distinct other silos, spread over rings of different salt.

        Source: Orleans' ClusterHealthMonitor, one successor per salted ring: a random-like graph
        in which every silo is watched by several.
        """
        found: list[str] = []
        for salt in range(count):
            order = sorted(self.silos, key=lambda s: hash_of(f"{salt}/{s}"))
            at = order.index(silo)
            rotated = order[at + 1 :] + order[:at]
            fresh = next((other for other in rotated if other not in found), None)
            if fresh is not None:
                found.append(fresh)
        return found

    def points(self) -> list[int]:
        """All points, sorted."""
        return self._hashes


def find_gained(old: Ring, new: Ring, me: str) -> list[Segment]:
    """Segments that `me` owns in `new` but not in `old`."""
    bounds = sorted({*old.points(), *new.points(), HASH_MAX})
    segments: list[Segment] = []
    low = 0
    for high in bounds:
        if new.owner(high) == me and old.owner(high) != me:
            if segments and segments[-1][1] + 1 == low:
                segments[-1] = (segments[-1][0], high)
            else:
                segments.append((low, high))
        low = high + 1
    return segments


def covers(segments: Sequence[Segment], point: int) -> bool:
    """Is a hash in one of the segments (sorted)?"""
    at = bisect_right(segments, point, key=first_of)
    return at > 0 and point <= segments[at - 1][1]


def within(segments: Sequence[Segment], bounds: Sequence[Segment]) -> list[Segment]:
    """What the segments and the bounds (both sorted) have in common."""
    found: list[Segment] = []
    i = j = 0
    while i < len(segments) and j < len(bounds):
        low = max(segments[i][0], bounds[j][0])
        high = min(segments[i][1], bounds[j][1])
        if low <= high:
            found.append((low, high))
        if segments[i][1] < bounds[j][1]:
            i += 1
        else:
            j += 1
    return found


def first_of(segment: Segment) -> int:
    """The lowest hash of a segment."""
    return segment[0]
