"""Is there room for entries? Pure.

Owns: `Room`. Invariants: below the reserve entries are refused, so that fences and recoveries,
which may use the reserve, always find room; it takes twice the reserve to take entries again, so
that it does not go to and fro.
"""

from __future__ import annotations

__all__ = ["Room"]


class Room:
    """What is free on a disk, of which `reserve_bytes` are for what must not fail."""

    __slots__ = ("_reserve_bytes", "free_bytes", "is_full")

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self.free_bytes = -1
        self.is_full = False

    def see(self, free_bytes: int) -> bool:
        """So much is free; did that change whether entries are taken?"""
        was_full, self.free_bytes = self.is_full, free_bytes
        wanted = self._reserve_bytes * (2 if was_full else 1)
        self.is_full = free_bytes < wanted
        return self.is_full != was_full
