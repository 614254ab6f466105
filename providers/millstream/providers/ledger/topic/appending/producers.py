"""The sequences of producers that are stored already.

Owns: `Producers`. Pure. Not: sequences in flight (`outbox`). As in Pulsar's deduplication, the
table of producers is stored in snapshots. Invariants: a producer's sequence never goes back while
it is remembered. The table has at most `count_max` producers, and its snapshot at most `bytes_max`
bytes. The producer that was silent longest is forgotten first, in every process alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.providers.ledger.topic.form import KnownProducer, TopicMessage, size_of

__all__ = ["Producers"]


class Producers:
    """Producers by name, in the order of their last use."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_known")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._known: dict[str, KnownProducer] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, producer: str) -> KnownProducer | None:
        """Return the highest sequence of a producer, or None if the producer is not known."""
        return self._known.get(producer)

    def accept(self, known: KnownProducer) -> None:
        """Remember a stored sequence."""
        old = self._known.pop(known.producer, None)
        if old is None:
            self._bytes += cost_of(known)
        elif old.seq >= known.seq:
            known = old
        self._known[known.producer] = known
        while len(self._known) > self._count_max or self._bytes > self._bytes_max:
            gone = next(iter(self._known.values()))
            del self._known[gone.producer]
            self._bytes -= cost_of(gone)

    def snapshot(self, newer: Iterable[KnownProducer] = ()) -> list[KnownProducer]:
        """Return all producers, updated with `newer`, in the order of their last use."""
        copy = Producers(self._count_max, self._bytes_max)
        copy._known, copy._bytes = dict(self._known), self._bytes
        for known in newer:
            copy.accept(known)
        return list(copy._known.values())


def cost_of(known: KnownProducer) -> int:
    """Return the bytes of a producer in a snapshot, at most."""
    return size_of(TopicMessage(b"", known.producer))
