"""The rows of ledgers, and the numbers of new ones.

Owns: `ledger_rows`, `LedgerIds`. Not: how a record changes (`protocol.record`). Invariants: no
number is given out twice. So a ledger without a row was deleted, or its creation never ended, and a
read of that row proves that nobody needs its entries. No ledger is made below `closed`, and below
`gone` there is none. A process that makes a ledger reads `closed` after it has stored the row. A
process that proves ledgers gone writes `closed` before it looks.
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
"""The least amount of numbers that a process takes at once. Unused ones are lost."""
LEDGER_ID_BLOCK_MAX = 4_096
"""The largest amount of numbers that a process takes at once, if so many callers wait."""
FIRST_LEDGER = 1
PROVED_MAX = 256
"""How many numbers one collection proves to be without a ledger."""


def ledger_rows(metadata: Metadata) -> RecordRows[int, LedgerRecord]:
    """Return the records of ledgers, by number. A `scan` yields them in the order of numbers."""
    return RecordRows(metadata, "ledgers/", LedgerRecord, "{:019d}".format, is_witnessed=True)


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """The first free number. No ledger is made below `closed` any more, and there is none below
    `gone`."""

    free: int
    operation: str = ""
    closed: int = FIRST_LEDGER
    gone: int = FIRST_LEDGER


class LedgerIds:
    """Numbers for new ledgers, taken from one row in blocks. They rise within a process.

    A block has a number for each waiting caller, so many ledgers that are made at the same time
    share one write.
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
        """Return a number that no ledger has or had. Raises StorageError."""
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
        """Take the next numbers. If the outcome of a write is unknown, a second block is taken and
        one is lost."""

        def advance(found: Counter | None) -> Counter:
            known = found or Counter(FIRST_LEDGER)
            return msgspec.structs.replace(known, free=known.free + count)

        taken = await self._counter.update("counter", advance)
        self._next, self._end = taken.free - count, taken.free

    async def is_late(self, number: int) -> bool:
        """Whether others may treat the ledger that was just stored under this number as gone. Then
        it must not be used, and the next number is not late. Raises StorageError."""
        found = await self._read()
        if number >= found.closed:
            return False
        self._next = self._end
        return True

    async def free(self) -> int:
        """Return a number that no ledger has or had until now. Raises StorageError."""
        return (await self._read()).free

    async def avoid(self, number: int) -> int | None:
        """Never give out the numbers up to this one, which some bookie knows.

        Returns None if the rows count them as used already. Otherwise returns the number that would
        have been given out next. Raises StorageError.

        Unused numbers that other processes hold are not used any more, either.
        """
        free = (await self._read()).free
        if number < free:
            return None

        await self._raise(free=number + 1, closed=number + 1)
        return free

    async def oldest(self, listed: int | None) -> int:
        """Return the number below which there is no ledger, and never will be. Raises StorageError.

        Args:
            listed: the lowest number that a recent scan has shown; None: the scan has shown none.
                0: the lowest number is unknown, and the result does not change.
        """
        found = await self._read()
        upto = min(found.free if listed is None else listed, found.gone + PROVED_MAX)
        await self._raise(closed=upto)  # no process makes a ledger below it any more, so look now
        for number in range(found.gone, upto):
            if await self._may_be_there(number):
                upto = number
                break
        return (await self._raise(gone=upto)).gone

    async def _may_be_there(self, ledger: int) -> bool:
        """Whether a ledger has a row, damaged or not."""
        try:
            return await self._rows.read(ledger) is not None
        except Corrupt as error:
            self._rows.tell(ledger, error)
            return True

    async def _raise(
        self, free: int = FIRST_LEDGER, closed: int = FIRST_LEDGER, gone: int = FIRST_LEDGER
    ) -> Counter:
        """Raise the stored values to at least these."""

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
