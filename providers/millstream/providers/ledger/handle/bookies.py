"""The contract between the handles of ledgers and a set of bookies.

Owns: the contract `Bookies`. Implementations: `LocalBookies` (in this process) and `ClusterBookies`
(in all silos). Invariants: an answer comes from the bookie of that name in its present start. Every
call ends within the time limit of the implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.providers.ledger.protocol.found import Found

__all__ = ["Bookies"]


class Bookies(Protocol):
    """Bookies by name (the UUID of their directory). Every method may raise BookieAway: the bookie
    may have done the request, or may still do it later."""

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        """Store packed entries of one ledger; return when all of them are on disk.

        It does no harm to add the same entries again. Raises LedgerFenced: the bookie knows a
        higher term; BookieReadOnly, BookieOverloaded: none of the entries is stored.
        """
        ...

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        """Refuse from now on, for ever, entries of the ledger that are added in a lower term.

        Returns the highest entry that is known to be confirmed. Raises LedgerFenced: the bookie
        knows a higher term.
        """
        ...

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        """Return consecutive entries from `first` on, up to the limits but at least one.

        With a term above 0 the bookie fences the ledger before it answers, even if it has no entry.
        """
        ...

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        """Return the highest entry known to be confirmed, as soon as it is above `confirmed`.

        It returns the present value after `wait_s` seconds, or when the ledger is fenced there.
        """
        ...

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        """Send the bookie the last confirmed entry, and wake the bookie's watchers.

        Writers call this while they have no later entry to send, which would name it.

        The bookie keeps this in memory. After a start it knows the values in the heads of its
        entries. A lower term than the bookie's fence changes nothing.
        """
        ...

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        """Tell a bookie that its replica of an entry is damaged or missing. The bookie repairs the
        replica from others."""
        ...

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        """Return the same bookies, with those first that will probably answer soonest."""
        ...

    async def look(self) -> None:
        """Find bookies that were started since the last look. Raises StorageError."""
        ...

    def unwilling(self) -> Mapping[str, str]:
        """Return the bookies that run and refuse entries, each with the reason."""
        ...

    def writable(self) -> Mapping[str, float]:
        """Return the bookies that run and have room, each with its free bytes as a weight."""
        ...
