"""The fate of records, counted from acknowledged and stored ones, as a pure calculation.

This module owns `Tally`. A record is identified by its producer and its number, which rises by one.
"""

from __future__ import annotations

__all__ = ["Tally"]


class Tally:
    """The records of all producers."""

    def __init__(self, producers: int) -> None:
        # number of acknowledged records of each producer, which are its first ones
        self.acknowledged = [0] * producers
        self.doubled = 0
        self.reordered = 0
        self._seen = [bytearray() for _ in range(producers)]
        self._highest = [-1] * producers

    def acknowledge(self, producer: int, count: int) -> None:
        """Record that the next `count` records of a producer are accepted."""
        self.acknowledged[producer] += count

    def found(self, producer: int, number: int) -> None:
        """Record that a record is stored, after those found before."""
        seen = self._seen[producer]
        if number >= len(seen):
            seen.extend(bytes(number + 1 - len(seen)))
        if seen[number]:
            self.doubled += 1
            return
        seen[number] = 1
        if number < self._highest[producer]:
            self.reordered += 1
        self._highest[producer] = max(number, self._highest[producer])

    @property
    def records(self) -> int:
        """Records that were acknowledged."""
        return sum(self.acknowledged)

    @property
    def stored(self) -> int:
        """Records that were found, each counted once."""
        return sum(sum(seen) for seen in self._seen)

    @property
    def lost(self) -> int:
        """Records that were acknowledged and not found."""
        pairs = zip(self.acknowledged, self._seen, strict=True)
        return sum(count - sum(seen[:count]) for count, seen in pairs)
