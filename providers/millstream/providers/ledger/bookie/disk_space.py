"""Is there room for entries? Pure.

Owns: `DiskSpace`. Invariants: below the reserve entries are refused, so that fences and recoveries,
which may use the reserve, always find room; it takes twice the reserve to take entries again, and a
while where a write was refused though there was room, so that it does not go to and fro.
"""

from __future__ import annotations

__all__ = ["LOOKS_AFTER_REFUSAL", "DiskSpace"]

LOOKS_AFTER_REFUSAL = 60
"""A quota, or a limit on the size of files, is not seen in what is free: after so many looks that
find room it is tried again."""


class DiskSpace:
    """What is free on a disk, of which `reserve_bytes` are for what must not fail."""

    __slots__ = ("_looks", "_reserve_bytes", "free_bytes", "is_full", "refusal")

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self.free_bytes = -1
        self.is_full = False
        self.refusal = ""  # why a write found no room, if nothing else says that there is none
        self._looks = 0

    def see(self, free_bytes: int) -> bool:
        """So much is free; did that change whether entries are taken?"""
        was_full, self.free_bytes = self.is_full, free_bytes
        has_room = free_bytes >= self._reserve_bytes * (2 if was_full else 1)
        self._looks = self._looks - 1 if has_room and self._looks else 0
        if not self._looks:
            self.refusal = ""
        self.is_full = not has_room or self._looks > 0
        return self.is_full != was_full

    def refuse(self, why: str) -> bool:
        """A write found no room; did that change whether entries are taken?"""
        was_full, self.is_full = self.is_full, True
        self.refusal, self._looks = why, LOOKS_AFTER_REFUSAL
        return not was_full
