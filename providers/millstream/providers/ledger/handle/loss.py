"""Giving up lost entries of a ledger, which may be open or closed.

Owns: `what_is_left`, `give_up`, `Left`, `Gap`. Not: recovery, which loses nothing (`recovery`);
permission and messages (`serving.repair_target`). Invariants: before anything is read, the writer
and any recovery of the ledger are excluded by a term that is stored and known to living bookies.
Every entry that any bookie has and that belongs to the ledger is kept, also after missing ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from millstream.providers.ledger.protocol.entry import NOTHING, Entry, unpack
from millstream.providers.ledger.protocol.errors import BookieError, EntryDamaged
from millstream.providers.ledger.protocol.record import (
    ENDLESS,
    LedgerRecord,
    LedgerState,
    give_up_entries,
    recovering,
)

from .context import HandleContext, existing

__all__ = ["Gap", "Left", "give_up", "what_is_left"]

EDGE_BYTES = 64
"""Bytes of the payloads before and after a gap, which show the messages between them."""
MISSING_AT_ONCE = 1_000
"""Let other tasks run after so many missing entries."""


class Gap(NamedTuple):
    """Entries that no bookie gives, from `first` to `last`; `ENDLESS`: their number is unknown.

    `before`, `after`: the beginning of the payload of the entry before the gap, and of the entry
    after it; b"": there is no such entry.
    """

    first: int
    last: int
    before: bytes
    after: bytes


class Left(NamedTuple):
    """The part of a ledger that can be read.

    `record`: the ledger in the term in which it was read. `last`, `length`: the end that the ledger
    has or would get, and the bytes up to the last readable entry. `gaps`: the entries that would be
    given up in addition to those that were before. `away`: bookies that did not answer and may have
    some of these entries.
    """

    record: LedgerRecord
    last: int
    length: int
    gaps: tuple[Gap, ...]
    away: tuple[str, ...]

    @property
    def lost(self) -> int:
        """The number of entries in gaps, as far as it is known."""
        return sum(max(0, min(gap.last, self.last) - gap.first + 1) for gap in self.gaps)


async def what_is_left(context: HandleContext, ledger: int) -> Left:
    """Read all of a ledger. An open ledger is fenced first, and its end is determined.

    Raises LedgerFenced (a recovery is running now), LedgerGone, StorageError.
    """

    def exclude(found: LedgerRecord | None) -> LedgerRecord:
        record = existing(ledger, found)
        return record if record.state is LedgerState.CLOSED else recovering(record)

    survey = Survey(context, await context.rows.update(ledger, exclude))
    return await survey.run()


async def give_up(context: HandleContext, left: Left) -> LedgerRecord:
    """Give up the missing entries, and close the ledger. Raises LedgerFenced, LedgerClosed (another
    process came first), StorageError."""
    record = left.record
    lost = [(gap.first, gap.last) for gap in left.gaps]
    return await context.rows.update(
        record.ledger,
        lambda found: give_up_entries(
            existing(record.ledger, found), record.term, left.last, left.length, lost
        ),
    )


class Survey:
    """One look at all entries of a ledger, in order."""

    def __init__(self, context: HandleContext, record: LedgerRecord) -> None:
        self._context = context
        self._record = record
        self._is_closed = record.state is LedgerState.CLOSED
        self._away: set[str] = set()
        self._suspects: set[str] = set()  # those of them that may have missing entries
        self._at = 0  # the next entry to look for
        # the last entry that was found, its payload's beginning, and the bytes up to it
        self._found = NOTHING
        self._edge = b""
        self._length = 0
        self._gaps: list[Gap] = []

    async def run(self) -> Left:
        """Read all entries, and return which of them are missing.

        An open ledger is fenced first, and read beyond its last confirmed entry to the last entry
        that a bookie returns.
        """
        record = self._record
        last = record.last if self._is_closed else await self._fence()
        while self._at <= last:
            page = await self._page(last)
            self._take(page)
            if not page:
                await self._miss()
        if not self._is_closed:
            while page := await self._page(ENDLESS):
                self._take(page)
            last = max(last, self._found)
        self._end(last)
        length = record.length if self._is_closed else self._length
        return Left(record, last, length, tuple(self._gaps), tuple(sorted(self._suspects)))

    async def _fence(self) -> int:
        """Fence the ledger. Returns the highest entry that a bookie knows to be confirmed."""
        confirmed, record = NOTHING, self._record
        for bookie in sorted({name for one in record.fragments for name in one.bookies}):
            try:
                known = await self._context.bookies.fence(bookie, record.ledger, record.term)
            except BookieError:
                self._away.add(bookie)
            else:
                confirmed = max(confirmed, known)
        return confirmed

    async def _page(self, last: int) -> Sequence[Entry]:
        """Return consecutive entries of the first bookie that has the next one; [] if none has
        it."""
        options, record, first = self._context.options, self._record, self._at
        ends = [
            last + 1,
            *(one.first for one in record.fragments),
            *(one for one, _ in record.lost),
        ]
        count = min([options.page_entries, *(end - first for end in ends if end > first)])
        term = 0 if self._is_closed else record.term
        if record.find_lost(first) is not None:
            return []
        for bookie in record.holders(first):
            if bookie in self._away:
                continue
            page: list[Entry] = []
            try:
                found = await self._context.bookies.read(
                    bookie, record.ledger, first, count, options.page_bytes, term
                )
                for entry, packed in enumerate(found.entries, first):
                    page.append(unpack(packed, record.ledger, entry))
            except BookieError:
                self._away.add(bookie)
            except EntryDamaged:
                pass
            if page:
                return page
        return []

    def _take(self, page: Sequence[Entry]) -> None:
        if not page:
            return
        self._close_gap(self._at - 1, page[0].payload[:EDGE_BYTES])
        self._at += len(page)
        self._found, self._edge = self._at - 1, page[-1].payload[:EDGE_BYTES]
        self._length = page[-1].head.length

    async def _miss(self) -> None:
        if self._record.find_lost(self._at) is None:
            self._suspects |= self._away & set(self._record.holders(self._at))
        self._at += 1
        if self._at % MISSING_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _close_gap(self, last: int, after: bytes) -> None:
        """Add a gap after the last entry that was found, unless this gap was given up before."""
        first = self._found + 1
        if first <= last and (first, last) not in self._record.lost:
            self._gaps.append(Gap(first, last, self._edge, after))

    def _end(self, last: int) -> None:
        if self._is_closed:
            tail = self._record.find_lost(last)  # which may be endless
            self._close_gap(last if tail is None else tail[1], b"")
            return
        # bookies that do not answer may know further entries, which nobody can deny
        self._suspects |= self._away & set(self._record.fragments[-1].bookies)
        self._close_gap(ENDLESS, b"")
