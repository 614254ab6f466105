"""Entries of a bookie that may be damaged or missing, until the scrubber takes them.

Owns: `Suspects`. Invariants: an entry is listed once. The list has a limit. A list that has
overflowed says so, and its reader then checks the whole directory, so no entry is lost.
"""

from __future__ import annotations

__all__ = ["SUSPECTS_MAX", "Suspects"]

SUSPECTS_MAX = 65_536
"""The largest number of entries in the list of one bookie."""


class Suspects:
    """Entries by ledger, at most `SUSPECTS_MAX`.

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
        """List an entry; listing it twice does no harm."""
        if entry in self._by_ledger.get(ledger, ()):
            return
        if self._count >= SUSPECTS_MAX:
            self.has_overflowed = True
            return
        self._by_ledger.setdefault(ledger, set()).add(entry)
        self._count += 1

    def take(self) -> dict[int, set[int]]:
        """Return all listed entries, by ledger, and empty the list."""
        taken, self._by_ledger, self._count = self._by_ledger, {}, 0
        return taken
