"""Copying entries of one ledger to one bookie, from any bookie that has them.

Owns: `Copier`, `EntriesLost`. Not: the choice of entries and bookies, the change afterwards
(`repairer`). Invariants: an entry is sent on only after it passed its check here. One page at a
time is in memory. Entries are written in the record's term, which is that of the highest fence, so
fenced bookies accept them. A copy is complete, or raises an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from millstream.providers.ledger.handle.bookies import Bookies
from millstream.providers.ledger.protocol.entry import unpack
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    BookieOverloaded,
    EntryDamaged,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime.extending import Backoff, Clock

from .bookie_standing import BookieStanding
from .copy_rate import CopyRate
from .options import RecoveryOptions

__all__ = ["Copied", "Copier", "EntriesLost"]

OVERLOADED_MAX = 8
"""How often an overloaded bookie is asked."""
BETWEEN_TRIES = Backoff(first_s=0.05, ceiling_s=2.0)


class EntriesLost(NotRecoverable):
    """No bookie that is left has these entries.

    Attributes: `ledger`; `first`, the first of them; `gone`, lost bookies that may have them.
    """

    ledger: int
    first: int
    gone: tuple[str, ...]

    def __init__(self, what: str, ledger: int, first: int, gone: tuple[str, ...]) -> None:
        self.ledger = ledger
        self.first = first
        self.gone = gone
        super().__init__(what)


@dataclass(slots=True)
class Copied:
    """The work since the start: places that got another bookie, copied entries and bytes, entries
    that were checked on their bookies, and ledgers that were closed."""

    places: int = 0
    entries: int = 0
    size_bytes: int = 0
    checked: int = 0
    ended: int = 0


class Copier:
    """Copies at the rate that all copies of this process share.

    Args:
        of: returns the standing of a bookie.
        copied: counts the work.
    """

    def __init__(
        self,
        bookies: Bookies,
        clock: Clock,
        options: RecoveryOptions,
        of: Callable[[str], BookieStanding],
        copied: Copied,
    ) -> None:
        self._bookies = bookies
        self._clock = clock
        self._options = options
        self._of = of
        self._copied = copied
        self._pace = CopyRate(options.copy_bytes_per_s)

    async def fill(
        self, record: LedgerRecord, runs: Iterable[range], bookie: str, has_most: bool = False
    ) -> None:
        """Make sure that a bookie has these entries, except for those that were given up.

        Args:
            has_most: first check which of them the bookie has.

        Raises EntriesLost (after a check of all of them), NotRecoverable (a bookie that may have an
        entry does not answer), BookieError and LedgerFenced of this bookie.
        """
        lost: list[range] = []
        for run in (part for entries in runs for part in record.iter_kept(entries)):
            at = run.start
            while at < run.stop:
                count = run.stop - at
                if has_most and (there := await self._there(record, bookie, at, count)):
                    at += there
                    continue
                packed = await self.page(record, at, count, but=bookie)
                if not packed:
                    add_to(lost, at)
                elif not lost:
                    await self._add(record, bookie, packed)
                at += len(packed) or 1
        if lost:
            raise self._make_lost_error(record, lost)

    async def page(
        self, record: LedgerRecord, first: int, count: int, but: str = ""
    ) -> Sequence[bytes]:
        """Return entries from `first` on that passed their check, at least one.

        An empty result means that no bookie has the entry `first`.

        Raises NotRecoverable if bookies that may have the entry do not answer.
        """
        silent: list[str] = []
        for bookie in record.holders(first):
            if bookie == but or self._of(bookie) is BookieStanding.LOST:
                continue
            try:
                packed = await self._read(record, bookie, first, count)
            except BookieError as error:
                silent.append(str(error))
                continue
            if packed:
                return packed
        if silent:
            text = f"ledger {record.ledger}: entry {first} is missing on the bookies that answered"
            raise NotRecoverable(f"{text}; no answer: {'; '.join(silent)}")
        return ()

    async def _read(
        self, record: LedgerRecord, bookie: str, first: int, count: int
    ) -> Sequence[bytes]:
        found = await self._bookies.read(
            bookie,
            record.ledger,
            first,
            min(count, self._options.page_entries),
            self._options.page_bytes,
            0,
        )
        packed = whole(record.ledger, first, found.entries)
        wait_s = self._pace.wait_s(self._clock.now(), sum(map(len, packed)))
        await asyncio.sleep(wait_s)
        return packed

    async def _there(self, record: LedgerRecord, bookie: str, first: int, count: int) -> int:
        """Return how many of the entries from `first` on a bookie has."""
        there = len(await self._read(record, bookie, first, count))
        self._copied.checked += there
        return there

    async def _add(self, record: LedgerRecord, bookie: str, packed: Sequence[bytes]) -> None:
        for attempt in range(1, OVERLOADED_MAX + 1):
            try:
                await self._bookies.add(bookie, record.term, packed)
                break
            except BookieOverloaded:
                if attempt == OVERLOADED_MAX:
                    raise
            await asyncio.sleep(BETWEEN_TRIES.delay_s(attempt, self._clock.uniform(0.0, 1.0)))
        self._copied.entries += len(packed)
        self._copied.size_bytes += sum(map(len, packed))

    def _make_lost_error(self, record: LedgerRecord, lost: Sequence[range]) -> EntriesLost:
        first = lost[0].start
        gone = tuple(one for one in record.holders(first) if self._of(one) is BookieStanding.LOST)
        entries = ", ".join(
            f"{one.start}" if len(one) == 1 else f"{one.start} to {one.stop - 1}"
            for one in lost[:SHOWN_MAX]
        )
        text = f"ledger {record.ledger} of {record.topic or 'no topic'}: no bookie has entry "
        text += f"{entries}{' and more' if len(lost) > SHOWN_MAX else ''}"
        return EntriesLost(
            f"{text}; {advice(gone)}; if that is impossible, see `millstream ledger recover "
            f"{record.ledger} --accept-loss`",
            record.ledger,
            first,
            gone,
        )


SHOWN_MAX = 8
"""How many ranges of lost entries an error names."""


def advice(gone: Sequence[str]) -> str:
    """Return the remedy for an operator."""
    if gone:
        return f"restore the directory of bookie {' or '.join(gone)}; until then readers wait"
    return "all replicas are damaged: restore a directory from a backup; until then readers wait"


def add_to(lost: list[range], entry: int) -> None:
    """Add a lost entry."""
    if lost and lost[-1].stop == entry:
        lost[-1] = range(lost[-1].start, entry + 1)
    else:
        lost.append(range(entry, entry + 1))


def whole(ledger: int, first: int, packed: Sequence[bytes]) -> Sequence[bytes]:
    """Return the entries before the first one that fails its check."""
    for at, one in enumerate(packed):
        try:
            unpack(one, ledger, first + at)
        except EntryDamaged:
            return packed[:at]
    return packed
