"""What a writer or reader of a ledger needs of the bookies, wherever they are.

Owns: the contract `Bookies`. Implementations: `LocalBookies` (in this process); over system targets
in every silo. Invariants: an answer was given by the bookie of that name in its present start;
every call ends, within the time limit of whoever implements this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.providers.ledger.protocol.found import Found

__all__ = ["Bookies"]


class Bookies(Protocol):
    """Bookies by name (the UUID of their directory). Every method may raise BookieAway: what was
    asked may have been done, or may still be done later."""

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        """Store packed entries of one ledger; returns when all are on disk.

        The same entries again are harmless. Raises LedgerFenced: the bookie knows a higher term;
        BookieReadOnly, BookieOverloaded: nothing of it is stored.
        """
        ...

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        """From now on refuse what is added to the ledger in a lower term, for ever.

        Returns the highest entry that is known to be confirmed. Raises LedgerFenced: it knows a
        higher term.
        """
        ...

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        """Entries from `first` on, one after the other, up to the limits but one at least.

        With a term above 0 the bookie is fenced before it answers, also if it has nothing.
        """
        ...

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        """The highest entry known to be confirmed, as soon as it is above `confirmed`.

        After `wait_s` seconds, or when the ledger is fenced here, what is known then.
        """
        ...

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        """Say what is confirmed, while no entry follows that would say it; wakes who watches.

        Kept in memory: a bookie that starts anew knows what the heads of its entries say.
        A lower term than the bookie's fence changes nothing.
        """
        ...

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        """Tell a bookie that its copy of an entry is damaged or missing; the bookie repairs the
        copy from others."""
        ...

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        """The same, those first that will probably answer soonest."""
        ...

    async def look(self) -> None:
        """Find bookies that came since one looked last. Raises StorageError."""
        ...

    def unwilling(self) -> Mapping[str, str]:
        """Bookies that run and take no entries, each with the reason."""
        ...

    def writable(self) -> Mapping[str, float]:
        """Bookies that are there and have room, each with its weight: its free bytes."""
        ...
