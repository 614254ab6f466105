"""The consistent hash ring of silos: the owner of each hash. Pure.

Invariants:

- Equal member lists give equal rings in every process. The hash is fixed: xxh3 of `silo#i`.
- Every hash has one owner.
- `find_gained` covers exactly the hashes whose owner became `me`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import xxhash

__all__ = ["HASH_MAX", "Ring", "Segment", "covers", "find_gained", "hash_of", "within"]

POINTS_PER_SILO = 30
HASH_MAX = 2**64 - 1
Segment = tuple[int, int]  # the hashes from low to high, both inclusive


def hash_of(text: str) -> int:
    """Return the point of a name on the ring, 0 to HASH_MAX."""
    return xxhash.xxh3_64_intdigest(text.encode())


class Ring:
    """The sorted points of silos. A hash belongs to the first point at or after it."""

    __slots__ = ("_hashes", "_owners", "silos")

    def __init__(self, silos: Sequence[str]) -> None:
        self.silos = tuple(sorted(silos))
        points = sorted(
            (hash_of(f"{silo}#{i}"), silo) for silo in self.silos for i in range(POINTS_PER_SILO)
        )
        self._hashes = [point for point, _ in points]
        self._owners = [silo for _, silo in points]

    def owner(self, point: int) -> str | None:
        """Return the owner of a hash, or None in an empty ring."""
        if not self._owners:
            return None
        return self._owners[bisect_left(self._hashes, point) % len(self._owners)]

    def successors(self, silo: str, count: int) -> list[str]:
        """Return up to `count` different other silos, one from each of several salted rings.

        The result is like a random graph in which several silos watch every silo. Source: the
        ClusterHealthMonitor of Orleans.
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
        """Return all points, sorted."""
        return self._hashes


def find_gained(old: Ring, new: Ring, me: str) -> list[Segment]:
    """Return the segments that `me` owns in `new` but not in `old`."""
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
    """Return True if a hash is in one of the sorted segments."""
    at = bisect_right(segments, point, key=first_of)
    return at > 0 and point <= segments[at - 1][1]


def within(segments: Sequence[Segment], bounds: Sequence[Segment]) -> list[Segment]:
    """Return the intersection of the segments and the bounds, both sorted."""
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
    """Return the lowest hash of a segment."""
    return segment[0]
