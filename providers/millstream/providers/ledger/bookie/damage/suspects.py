"""Entries of a bookie that may be damaged or missing, until the scrubber takes them.

Owns: `Suspects`. Invariants: an entry is listed once; the list has a limit, and past the limit it
says so, so that the caller reads the whole directory instead of losing an entry.
"""

from __future__ import annotations

__all__ = ["SUSPECTS_MAX", "Suspects"]

SUSPECTS_MAX = 65_536
"""Entries that one bookie lists."""


class Suspects:
    """Entries by ledger; `SUSPECTS_MAX` at most.

    Attributes: `has_overflowed`: an entry was not listed, because the list was full.
    """

    __slots__ = ("_by_ledger", "_count", "has_overflowed")

    def __init__(self) -> None:
        self._by_ledger: dict[int, set[int]] = {}
        self._count = 0
        self.has_overflowed = False

    def __len__(self) -> int:
        return self._count

    def put(self, ledger: int, entry: int) -> None:
        """List an entry; again is harmless."""
        if entry in self._by_ledger.get(ledger, ()):
            return
        if self._count >= SUSPECTS_MAX:
            self.has_overflowed = True
            return
        self._by_ledger.setdefault(ledger, set()).add(entry)
        self._count += 1

    def take(self) -> dict[int, set[int]]:
        """All listed entries, by ledger; the list is empty then."""
        taken, self._by_ledger, self._count = self._by_ledger, {}, 0
        return taken
