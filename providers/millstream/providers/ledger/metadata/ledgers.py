"""The rows of ledgers, and the numbers of new ones.

Owns: `ledger_rows`, `LedgerIds`. Not: how a record changes (`protocol.record`). Invariants: no
number is given twice, so a ledger without a row was deleted, or its creation never ended: a point
read proves that nobody needs its entries. No ledger is made below `closed`, and below `gone` none
is there: who makes one looks at `closed` after its row is stored, who proves that they are gone
writes `closed` before it looks.
"""

from __future__ import annotations

import asyncio

import msgspec

from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime import Corrupt

from .metadata import Metadata
from .rows import RecordRows

__all__ = ["LEDGER_ID_BLOCK", "LEDGER_ID_BLOCK_MAX", "LedgerIds", "ledger_rows"]

LEDGER_ID_BLOCK = 16
"""Numbers that a process takes at once, at least; those that it does not use are lost."""
LEDGER_ID_BLOCK_MAX = 4_096
"""Numbers that a process takes at once, at most: as many as callers wait for."""
FIRST_LEDGER = 1
PROVED_MAX = 256
"""Numbers of which one collection proves that no ledger has them."""


def ledger_rows(metadata: Metadata) -> RecordRows[int, LedgerRecord]:
    """The records of ledgers, by number; `scan` gives them in the order of numbers."""
    return RecordRows(metadata, "ledgers/", LedgerRecord, "{:019d}".format, is_witnessed=True)


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """The first number that nobody has taken; below `closed` no ledger is made any more, below
    `gone` none is there."""

    free: int
    operation: str = ""
    closed: int = FIRST_LEDGER
    gone: int = FIRST_LEDGER


class LedgerIds:
    """Numbers for new ledgers, taken from one row in blocks; they rise within a process.

    A block has a number for each caller that waits for one, so many ledgers that are made at once
    cost one write together.
    """

    __slots__ = ("_block", "_counter", "_end", "_next", "_rows", "_taking", "_waiting")

    def __init__(self, metadata: Metadata, block: int = LEDGER_ID_BLOCK) -> None:
        self._counter: RecordRows[str, Counter] = RecordRows(
            metadata, "", Counter, str, is_witnessed=True
        )
        self._rows = ledger_rows(metadata)
        self._block = block
        self._next = self._end = self._waiting = 0
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """A number that no ledger has or had. Raises StorageError."""
        self._waiting += 1
        try:
            async with self._taking:
                if self._next == self._end:
                    await self._take(min(max(self._block, self._waiting), LEDGER_ID_BLOCK_MAX))
                self._next += 1
                return self._next - 1
        finally:
            self._waiting -= 1

    async def _take(self, count: int) -> None:
        """Take the next numbers. In doubt a block is taken twice, and one is lost."""

        def advance(found: Counter | None) -> Counter:
            known = found or Counter(FIRST_LEDGER)
            return msgspec.structs.replace(known, free=known.free + count)

        taken = await self._counter.update("counter", advance)
        self._next, self._end = taken.free - count, taken.free

    async def is_late(self, number: int) -> bool:
        """May others take a ledger for gone that was just stored under this number? Then it must
        not be used; the next one is not late. Raises StorageError."""
        found = await self._read()
        if number >= found.closed:
            return False
        self._next = self._end
        return True

    async def free(self) -> int:
        """A number that no ledger has, or had, by now. Raises StorageError."""
        return (await self._read()).free

    async def avoid(self, number: int) -> int | None:
        """Give out no number up to this one any more, which some bookie knows; the number that
        would have come next, if these rows did not know of it. Raises StorageError.

        Also numbers that other processes have taken and not used are not used any more.
        """
        free = (await self._read()).free
        if number < free:
            return None

        await self._raise(free=number + 1, closed=number + 1)
        return free

    async def oldest(self, listed: int | None) -> int:
        """Below this number no ledger is there, nor will be. Raises StorageError.

        Args:
            listed: the lowest number that a scan has shown, which may be a moment old; 0: nobody
                knows, and it is as it was.
        """
        found = await self._read()
        upto = min(found.free if listed is None else listed, found.gone + PROVED_MAX)
        await self._raise(closed=upto)  # nobody makes one below it any more, so look now
        for number in range(found.gone, upto):
            if await self._may_be_there(number):
                upto = number
                break
        return (await self._raise(gone=upto)).gone

    async def _may_be_there(self, ledger: int) -> bool:
        """Has it a row, or one that is damaged?"""
        try:
            return await self._rows.read(ledger) is not None
        except Corrupt as error:
            self._rows.tell(ledger, error)
            return True

    async def _raise(
        self, free: int = FIRST_LEDGER, closed: int = FIRST_LEDGER, gone: int = FIRST_LEDGER
    ) -> Counter:
        """Raise what is lower than that."""

        def raise_counter(found: Counter | None) -> Counter:
            known = found or Counter(FIRST_LEDGER)
            return msgspec.structs.replace(
                known,
                free=max(known.free, free),
                closed=max(known.closed, closed),
                gone=max(known.gone, gone),
            )

        return await self._counter.update("counter", raise_counter)

    async def _read(self) -> Counter:
        return await self._counter.read("counter") or Counter(FIRST_LEDGER)
