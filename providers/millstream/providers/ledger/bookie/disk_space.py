"""The decision whether a disk has room for entries. Pure.

Owns: `DiskSpace`. Invariants: below the reserve entries are refused, so that fences and recoveries,
which may use the reserve, always find room. Entries are accepted again at twice the reserve, so
that the state does not alternate. If a write was refused in spite of free space, entries are
accepted again only after a while.
"""

from __future__ import annotations

__all__ = ["LOOKS_AFTER_REFUSAL", "DiskSpace"]

LOOKS_AFTER_REFUSAL = 60
"""Free space does not show a quota or a limit on the size of files. After a refusal, so many checks
must find room before a write is tried again."""


class DiskSpace:
    """The free space of a disk, of which `reserve_bytes` are kept for writes that must not fail."""

    __slots__ = ("_looks", "_reserve_bytes", "free_bytes", "is_full", "refusal")

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self.free_bytes = -1
        self.is_full = False
        self.refusal = ""  # why a write found no room, if free space does not show it
        self._looks = 0

    def see(self, free_bytes: int) -> bool:
        """Record the free bytes; return whether this changes the acceptance of entries."""
        was_full, self.free_bytes = self.is_full, free_bytes
        has_room = free_bytes >= self._reserve_bytes * (2 if was_full else 1)
        self._looks = self._looks - 1 if has_room and self._looks else 0
        if not self._looks:
            self.refusal = ""
        self.is_full = not has_room or self._looks > 0
        return self.is_full != was_full

    def refuse(self, why: str) -> bool:
        """Record that a write found no room; return whether this changes the acceptance of
        entries."""
        was_full, self.is_full = self.is_full, True
        self.refusal, self._looks = why, LOOKS_AFTER_REFUSAL
        return not was_full
