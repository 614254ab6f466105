"""Ending a ledger whose bookies are lost for good.

Owns: `what_is_left`, `end_behind`, `Left`. Not: recovery, which loses nothing (`recovery`).
Invariants: whoever writes or recovers the ledger is excluded, by a term that is stored and that
living bookies know, before anything is read; the end is behind the last entry before which none is
missing, whether it was confirmed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from millstream.providers.ledger.protocol.entry import NOTHING, Entry, unpack
from millstream.providers.ledger.protocol.errors import BookieError, EntryDamaged
from millstream.providers.ledger.protocol.record import LedgerRecord, closed, recovering

from .context import HandleContext, existing

__all__ = ["BEHIND_MAX", "Left", "end_behind", "what_is_left"]

BEHIND_MAX = 1_000
"""So many entries behind the first that is missing are looked for, to be counted."""


class Left(NamedTuple):
    """What can be read of a ledger.

    `record`: in the term in which it was read. `last`, `length`: its last entry and bytes, if it
    ends before the first that is missing. `confirmed`: the highest entry that a bookie which
    answered knows to be confirmed; more may be. `behind`: entries after the first missing one that
    can be read, and go too. `away`: bookies that did not answer.
    """

    record: LedgerRecord
    last: int
    length: int
    confirmed: int
    behind: int
    away: tuple[str, ...]

    @property
    def lost(self) -> int:
        """Entries that were confirmed, and are not before the end, as far as anybody knows."""
        return max(0, self.confirmed - self.last)


async def what_is_left(context: HandleContext, ledger: int) -> Left:
    """Fence the ledger, and read all of it. Raises LedgerClosed (it has its end), LedgerFenced
    (another one recovers it now), LedgerGone, StorageError."""
    record = await context.rows.update(ledger, lambda found: recovering(existing(ledger, found)))
    confirmed, away = NOTHING, list[str]()
    for bookie in sorted({name for one in record.fragments for name in one.bookies}):
        try:
            known = await context.bookies.fence(bookie, ledger, record.term)
        except BookieError:
            away.append(bookie)
        else:
            confirmed = max(confirmed, known)
    last, length = NOTHING, 0
    while page := await page_at(context, record, last + 1):
        last, length = last + len(page), page[-1].head.length
    behind = 0
    for entry in range(last + 2, min(confirmed, last + BEHIND_MAX) + 1):
        behind += bool(await page_at(context, record, entry))
    return Left(record, last, length, confirmed, behind, tuple(away))


async def page_at(context: HandleContext, record: LedgerRecord, first: int) -> Sequence[Entry]:
    """Entries that follow each other, of whichever bookie has them; [] if none has the first."""
    options, ledger = context.options, record.ledger
    ends = [fragment.first for fragment in record.fragments if fragment.first > first]
    count = min([options.page_entries, *(end - first for end in ends)])
    for bookie in record.holders(first):
        page: list[Entry] = []
        with suppress(BookieError, EntryDamaged):
            found = await context.bookies.read(
                bookie, ledger, first, count, options.page_bytes, record.term
            )
            for entry, packed in enumerate(found.entries, first):
                page.append(unpack(packed, ledger, entry))
        if page:
            return page
    return []


async def end_behind(context: HandleContext, left: Left) -> LedgerRecord:
    """Give the ledger its end there; what is behind is lost. Raises LedgerFenced, LedgerClosed
    (another one came first), StorageError."""
    record = left.record
    return await context.rows.update(
        record.ledger,
        lambda found: closed(existing(record.ledger, found), record.term, left.last, left.length),
    )
