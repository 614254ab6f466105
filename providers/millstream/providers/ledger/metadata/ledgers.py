"""The rows of ledgers, and the numbers of new ones.

Owns: `ledger_rows`, `LedgerIds`. Not: how a record changes (`protocol.record`). Invariants: no
number is given twice, so a ledger without a row was deleted, or its creation never ended: a point
read proves that nobody needs its entries.
"""

from __future__ import annotations

import asyncio

import msgspec

from millstream.providers.ledger.protocol.record import LedgerRecord

from .metadata import Metadata
from .rows import Rows

__all__ = ["LEDGER_ID_BLOCK", "LedgerIds", "ledger_rows"]

LEDGER_ID_BLOCK = 16
"""Numbers that a process takes at once; those that it did not use are lost when it ends."""
FIRST_LEDGER = 1


def ledger_rows(metadata: Metadata) -> Rows[int, LedgerRecord]:
    """The records of ledgers, by number; `scan` gives them in the order of numbers."""
    return Rows(metadata, "ledgers/", LedgerRecord, lambda ledger: f"{ledger:019d}")


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """The first number that nobody has taken."""

    free: int
    operation: str = ""


class LedgerIds:
    """Numbers for new ledgers, taken from one row in blocks; they rise within a process."""

    __slots__ = ("_block", "_counter", "_end", "_next", "_taking")

    def __init__(self, metadata: Metadata, block: int = LEDGER_ID_BLOCK) -> None:
        self._counter: Rows[str, Counter] = Rows(metadata, "", Counter, lambda name: name)
        self._block = block
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """A number that no ledger has or had. Raises StorageError."""
        async with self._taking:
            if self._next == self._end:
                # in doubt a block is taken twice, and one is lost
                taken = await self._counter.update("counter", self._advanced)
                self._next, self._end = taken.free - self._block, taken.free
            self._next += 1
            return self._next - 1

    async def free(self) -> int:
        """A number that no ledger has, or had, by now. Raises StorageError."""
        taken = await self._counter.read("counter")
        return FIRST_LEDGER if taken is None else taken.free

    def _advanced(self, found: Counter | None) -> Counter:
        return Counter((FIRST_LEDGER if found is None else found.free) + self._block)
