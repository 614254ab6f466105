"""The content of one segment, collected frame by frame until it is sealed.

Owns: `SegmentTail`. Invariant: it knows the frames up to `end`, and all entries in them, including
damaged ones.
"""

from __future__ import annotations

from .index import Index
from .sealed import LedgerPlaces, Sealed, ledger_places
from .segment import FRAMES_START

__all__ = ["SegmentTail"]


class SegmentTail:
    """One segment: its first and last frame (-1: none yet) and its entries."""

    __slots__ = ("check", "damaged", "end", "first", "index", "last", "previous", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.index = Index()
        self.first = self.last = -1
        self.previous = self.check = 0
        self.end = FRAMES_START
        self.damaged = 0

    def grow(self, sequence: int, previous: int, check: int, end: int) -> None:
        """Add a frame."""
        if self.first < 0:
            self.first, self.previous = sequence, previous
        assert sequence > self.last, (sequence, self.last)
        self.last, self.check, self.end = sequence, check, end

    def seal(self, directory: str, state: bytes) -> Sealed:
        """Return the content of the index file, with the state at its end."""
        return Sealed(
            directory=directory,
            segment=self.segment,
            first=self.first,
            previous=self.previous,
            last=self.last,
            check=self.check,
            end=self.end,
            ledgers=self._ledgers(),
            state=state,
            damaged=self.damaged,
        )

    def _ledgers(self) -> list[LedgerPlaces]:
        return [
            ledger_places(
                ledger, placed.uses[self.segment].size_bytes, placed.confirmed, placed.runs
            )
            for ledger, placed in self.index.ledgers.items()
        ]
