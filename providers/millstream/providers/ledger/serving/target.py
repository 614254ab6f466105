"""A bookie for calls of other silos: the system target `$bookie/<uuid>`.

Owns: `BookieTarget`, which is never open to clients. Invariants: a call carries the boot number
that the caller has read. If the bookie was restarted since, it refuses the call. A refusal of the
bookie is an answer, not an error of the call.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime.extending import SystemTarget

from .answers import ErrorKind, Refusal, refusal_of

__all__ = ["BookieTarget", "FoundAnswer", "NumberAnswer"]


class NumberAnswer(msgspec.Struct, frozen=True):
    """A number, or why there is none."""

    number: int = 0
    refusal: Refusal | None = None


class FoundAnswer(msgspec.Struct, frozen=True):
    """The result of a read, or why there was no read."""

    entries: list[bytes] = msgspec.field(default_factory=list)
    missing: Missing = Missing.LIMIT
    confirmed: int = -1
    fault: str = ""
    refusal: Refusal | None = None

    def found(self) -> Found:
        return Found(tuple(self.entries), self.missing, self.confirmed, self.fault)


class BookieTarget(SystemTarget):
    """Answers for one bookie of this silo."""

    target_name = "$bookie"

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def _other(self, boot: int) -> Refusal | None:
        if boot == self._bookie.boot:
            return None
        text = f"bookie {self._bookie.name} has boot number {self._bookie.boot}, not {boot}"
        return Refusal(ErrorKind.AWAY, text)

    async def add(self, boot: int, term: int, entries: list[bytes]) -> Refusal | None:
        """Store entries. None means that they are on disk."""
        try:
            if (refusal := self._other(boot)) is None:
                await self._bookie.add(term, entries)
            return refusal
        except LedgerError as error:
            return refusal_of(error)

    async def fence(self, boot: int, ledger: int, term: int) -> NumberAnswer:
        """Refuse lower terms from now on; return the last entry that is known to be confirmed."""
        try:
            if (refusal := self._other(boot)) is not None:
                return NumberAnswer(refusal=refusal)
            return NumberAnswer(await self._bookie.fence(ledger, term))
        except LedgerError as error:
            return NumberAnswer(refusal=refusal_of(error))

    async def read(
        self, boot: int, ledger: int, first: int, entries_max: int, bytes_max: int, term: int
    ) -> FoundAnswer:
        """Return entries from `first` on."""
        try:
            if (refusal := self._other(boot)) is not None:
                return FoundAnswer(refusal=refusal)
            found = await self._bookie.read(ledger, first, entries_max, bytes_max, term)
            return FoundAnswer(list(found.entries), found.missing, found.confirmed, found.fault)
        except LedgerError as error:
            return FoundAnswer(refusal=refusal_of(error))

    async def suspect(self, boot: int, ledger: int, entry: int) -> Refusal | None:
        """Report that the replica of an entry is damaged or missing. Returns a refusal, or None."""
        try:
            if (refusal := self._other(boot)) is None:
                self._bookie.suspect(ledger, entry)
            return refusal
        except LedgerError as error:
            return refusal_of(error)

    async def watch(self, boot: int, ledger: int, confirmed: int, wait_s: float) -> NumberAnswer:
        """Return the last confirmed entry, once it is above `confirmed`."""
        try:
            if (refusal := self._other(boot)) is not None:
                return NumberAnswer(refusal=refusal)
            return NumberAnswer(await self._bookie.watch(ledger, confirmed, wait_s))
        except LedgerError as error:
            return NumberAnswer(refusal=refusal_of(error))

    async def tell(self, boot: int, ledger: int, term: int, confirmed: int) -> Refusal | None:
        """Tell the bookie the last confirmed entry. Returns a refusal, or None."""
        try:
            if (refusal := self._other(boot)) is None:
                await self._bookie.tell(ledger, term, confirmed)
            return refusal
        except LedgerError as error:
            return refusal_of(error)
