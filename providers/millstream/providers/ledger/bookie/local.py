"""The bookies of this process, by name.

Owns: `LocalBookies`, which implements the contract `Bookies` of handles. Invariant: a bookie that
is not here, or has stopped, is away; nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.providers.ledger.protocol.found import Found

from .bookie import Bookie, BookieState

__all__ = ["LocalBookies"]


class LocalBookies:
    """Bookies by the name of their directory; the mapping may change."""

    __slots__ = ("_bookies",)

    def __init__(self, bookies: Mapping[str, Bookie]) -> None:
        self._bookies = bookies

    def _bookie(self, name: str) -> Bookie:
        bookie = self._bookies.get(name)
        if bookie is None:
            raise BookieAway(f"bookie {name} is not in this process")
        return bookie

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        await self._bookie(bookie).add(term, entries)

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        return await self._bookie(bookie).fence(ledger, term)

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        return await self._bookie(bookie).read(ledger, first, entries_max, bytes_max, term)

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        return await self._bookie(bookie).watch(ledger, confirmed, wait_s)

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        await self._bookie(bookie).tell(ledger, term, confirmed)

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        self._bookie(bookie).suspect(ledger, entry)

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        """Return the bookies in the same order, since all are here."""
        return bookies

    async def look(self) -> None:
        """Nothing to find: all bookies are known."""

    def unwilling(self) -> Mapping[str, str]:
        """Return the bookies that refuse entries, each with the reason."""
        return {name: why for name, one in self._bookies.items() if (why := one.why_read_only())}

    def writable(self) -> Mapping[str, float]:
        """Return the bookies that accept entries, each with its free bytes."""
        return {
            name: float(max(1, bookie.free_bytes))
            for name, bookie in self._bookies.items()
            if bookie.state is BookieState.WRITABLE
        }
