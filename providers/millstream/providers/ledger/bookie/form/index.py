"""The place of every entry of a bookie, and how much of each segment is still needed.

Owns: `Index`, `Use`. Invariants: the index uses 8 bytes for each entry, and no object. Of two
copies of an entry the later one counts. The number of entries of a segment is exact, so a segment
without entries can be removed. The number of its bytes is an estimate, for compaction.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from millstream.providers.ledger.protocol.entry import NOTHING

from .runs import Runs
from .segment import segment_of

__all__ = ["Index", "Placed", "Use"]


class Use:
    """The number of entries, and of their bytes."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self, entries: int = 0, size_bytes: int = 0) -> None:
        self.entries = entries
        self.size_bytes = size_bytes

    def take(self, entries: int, size_bytes: int) -> None:
        """Subtract entries and bytes. The sizes are estimates."""
        self.entries -= entries
        self.size_bytes = max(0, self.size_bytes - size_bytes)


class Placed:
    """The index of one ledger.

    `runs`: the places of its entries. `uses`: the entries and bytes that it has in each segment.
    `confirmed`: the highest entry that is known to be confirmed, from the heads of its entries or
    from `Index.tell`. `puts`: the number of calls of `Index.put`. A collection reads it twice to
    find out whether entries were added in between.
    """

    __slots__ = ("confirmed", "puts", "runs", "uses")

    def __init__(self) -> None:
        self.runs = Runs()
        self.uses: dict[int, Use] = {}
        self.confirmed = NOTHING
        self.puts = 0


class Index:
    """The places of entries, by ledger and number."""

    __slots__ = ("ledgers", "segments")

    def __init__(self) -> None:
        self.ledgers: dict[int, Placed] = {}
        self.segments: dict[int, Use] = {}

    def find(self, ledger: int, entry: int) -> int:
        """Return the place of an entry, or 0 if the entry is not here."""
        placed = self.ledgers.get(ledger)
        return 0 if placed is None else placed.runs.get(entry)

    def puts(self, ledger: int) -> int:
        """Return how often `put` was called for a ledger, or -1 if the ledger is unknown."""
        placed = self.ledgers.get(ledger)
        return -1 if placed is None else placed.puts

    def find_confirmed(self, ledger: int) -> int:
        """Return the highest entry that is known to be confirmed."""
        placed = self.ledgers.get(ledger)
        return NOTHING if placed is None else placed.confirmed

    def tell(self, ledger: int, confirmed: int) -> bool:
        """Store that an entry is confirmed, although no head of an entry says so yet.

        Return False if the ledger has no entries here, or if this entry or a later one was known to
        be confirmed.
        """
        placed = self.ledgers.get(ledger)
        if placed is None or placed.confirmed >= confirmed:
            return False
        placed.confirmed = confirmed
        return True

    def put(self, ledger: int, entry: int, place: int, size_bytes: int, confirmed: int) -> None:
        """Set the place of an entry, which may have had another one."""
        placed = self.ledgers.get(ledger) or self._new(ledger)
        if confirmed > placed.confirmed:
            placed.confirmed = confirmed
        placed.puts += 1
        old = placed.runs.put(entry, place)
        if old:
            self._take(placed, segment_of(old), size_bytes)
        self._use(placed, segment_of(place), 1, size_bytes)

    def put_run(
        self, ledger: int, base: int, places: array[int], size_bytes: int, confirmed: int
    ) -> None:
        """Put each entry of a run in one segment; `size_bytes` is the size of all of them
        together."""
        placed = self.ledgers.get(ledger) or self._new(ledger)
        placed.confirmed = max(placed.confirmed, confirmed)
        entries = len(places) - places.count(0)
        if base > placed.runs.last:
            placed.runs.extend(base, places)
            self._use(placed, segment_of(next(filter(None, places))), entries, size_bytes)
            return
        for at, place in enumerate(places):
            if place:
                self.put(ledger, base + at, place, size_bytes // entries, confirmed)

    def _new(self, ledger: int) -> Placed:
        placed = self.ledgers[ledger] = Placed()
        return placed

    def _use(self, placed: Placed, segment: int, entries: int, size_bytes: int) -> None:
        for uses in (placed.uses, self.segments):
            use = uses.get(segment)
            if use is None:
                use = uses[segment] = Use()
            use.entries += entries
            use.size_bytes += size_bytes

    def _take(self, placed: Placed, segment: int, size_bytes: int) -> None:
        """Subtract an entry that has another place now from its old segment."""
        for uses in (placed.uses, self.segments):
            uses[segment].take(1, size_bytes)
        if not placed.uses[segment].entries:
            del placed.uses[segment]

    def drop(self, ledger: int) -> None:
        """Forget a ledger."""
        placed = self.ledgers.pop(ledger, None)
        if placed is not None:
            for segment, use in placed.uses.items():
                self.segments[segment].take(use.entries, use.size_bytes)

    def entries_in(self, segment: int) -> Iterator[tuple[int, int, int]]:
        """Yield ledger, entry and place of all entries of a segment. Do not change the index
        meanwhile."""
        for ledger, placed in self.ledgers.items():
            if segment not in placed.uses:
                continue
            for base, places in placed.runs:
                for at, place in enumerate(places):
                    if place and segment_of(place) == segment:
                        yield ledger, base + at, place
