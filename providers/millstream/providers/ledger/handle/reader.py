"""Reading one ledger without disturbing its writer.

Owns: `LedgerReader`. Invariants: an entry that is not confirmed is never given out, since a
recovery may remove it. Every entry that is given out has passed its check. The record of a closed
ledger, and not the bookies, says where it ends and which entries were given up. If no replica is
found, the record is read again before the read fails, since entries may have been moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from millstream.providers.ledger.protocol.entry import NOTHING, Entry, unpack
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    EntriesGivenUp,
    EntryDamaged,
    NoCopyLeft,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState

from .context import HandleContext, existing
from .hedging import HEDGE_S, first_answer

__all__ = ["LedgerReader"]


class LedgerReader:
    """Reads one ledger. Implements `topic.ledgers.TopicLedgerReader`.

    Args:
        record: a stored version of the record.
        confirmed_here: returns the last confirmed entry that a writer in this process knows; else
            -1.
    """

    def __init__(
        self, context: HandleContext, record: LedgerRecord, confirmed_here: Callable[[], int]
    ) -> None:
        self._context = context
        self._record = record
        self._confirmed_here = confirmed_here
        self._confirmed = NOTHING
        self._refusals: list[str] = []  # why the last read found nothing
        self._faulty: list[str] = []  # bookies that answered it without a good replica

    @property
    def record(self) -> LedgerRecord:
        return self._record

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self._record.state is LedgerState.CLOSED

    async def read(self, first: int, entries_max: int, bytes_max: int, /) -> Sequence[Entry]:
        last = await self._readable(first)
        if first > last:
            return []
        count = min(entries_max, last - first + 1)
        self._refuse_lost(first)
        found = await self._from_bookies(first, count, bytes_max)
        if not found:
            await self._read_record()
            self._refuse_lost(first)
            found = await self._from_bookies(first, count, bytes_max)
        if found:
            return found
        if len(self._faulty) == len(self._record.holders(first)):
            raise NoCopyLeft(self._record.ledger, first, self._refusals)
        text = f"ledger {self._record.ledger}: no bookie returned entry {first}, which is confirmed"
        raise NotRecoverable(f"{text}: {'; '.join(self._refusals)}")

    def _refuse_lost(self, entry: int) -> None:
        lost = self._record.find_lost(entry)
        if lost is not None:
            raise EntriesGivenUp(self._record.ledger, *lost)

    async def wait(self, confirmed: int, wait_s: float, /) -> int:
        if not wait_s:
            return await self._last()
        if self._find_known() <= confirmed and not self.is_closed:
            await self._ask_all(confirmed, wait_s)
            if self._find_known() <= confirmed:
                await self._read_record()  # it may be closed, or have other bookies, by now
        return self._find_known()

    async def _last(self) -> int:
        """Return the last confirmed entry of now. All bookies of the current record are asked,
        since a bookie that was away knows less than the others."""
        if not self.is_closed:
            await self._read_record()
        if not self.is_closed:
            await self._ask_all(None, 0.0)
        return self._find_known()

    async def _ask_all(self, confirmed: int | None, wait_s: float) -> None:
        """Ask the bookies for the last confirmed entry.

        With `confirmed`, the first answer of any bookie suffices. It comes when something happens
        to the ledger, or when the time is over. Without `confirmed`, the first answer counts, and
        so do all others that come within `HEDGE_S` of the question.
        """
        known = NOTHING if confirmed is None else confirmed
        tasks = [
            self._context.tasks.start(self._watch(bookie, known, wait_s))
            for bookie in self._record.fragments[-1].bookies
        ]
        waiting = set(tasks)
        until_s, limit_s = self._context.clock.now() + wait_s + HEDGE_S, None
        try:
            if confirmed is not None:
                await self._read_record()  # it may have been closed before the bookies were asked
            while waiting and not self.is_closed:
                done, waiting = await asyncio.wait(
                    waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    return
                answers = [found for task in done if (found := task.result()) is not None]
                self._confirmed = max(self._confirmed, *answers, NOTHING)
                if answers and confirmed is not None:
                    return
                if answers or limit_s is not None:
                    limit_s = max(0.0, until_s - self._context.clock.now())
        finally:
            for task in tasks:  # in order, so that a simulated run repeats
                task.cancel()

    async def aclose(self) -> None:
        """Nothing to close: a reader holds no resources."""

    # --- the readable part ---

    def _find_known(self) -> int:
        if self.is_closed:
            return self._record.last
        return max(self._confirmed, self._confirmed_here())

    async def _readable(self, entry: int) -> int:
        """Return the last readable entry; ask the bookies again before `entry` counts as
        unreadable."""
        if entry > self._find_known() and not self.is_closed:
            await self._last()
        return self._find_known()

    async def _read_record(self) -> None:
        ledger = self._record.ledger
        self._record = existing(ledger, await self._context.rows.read(ledger))

    async def _watch(self, bookie: str, confirmed: int, wait_s: float) -> int | None:
        with suppress(BookieError):
            return await self._context.bookies.watch(bookie, self._record.ledger, confirmed, wait_s)
        return None

    # --- entries ---

    async def _from_bookies(self, first: int, count: int, bytes_max: int) -> list[Entry]:
        """Read from the first bookie of the write set that has the entry, and from the next one if
        that bookie fails or is slow."""
        ends = [fragment.first for fragment in self._record.fragments if fragment.first > first]
        ends += [lost for lost, _ in self._record.lost if lost > first]
        count = min([count, *(end - first for end in ends)])
        refusals = self._refusals = list[str]()
        faulty = self._faulty = list[str]()

        async def ask(bookie: str) -> list[Entry] | None:
            try:
                found = await self._context.bookies.read(
                    bookie, self._record.ledger, first, count, bytes_max, 0
                )
            except BookieError as error:
                refusals.append(str(error))
                return None
            self._confirmed = max(self._confirmed, found.confirmed)
            entries = self._check(first, found.entries)
            if not entries:
                faulty.append(bookie)
                why = found.fault or f"entry {first} is missing or damaged"
                refusals.append(f"bookie {bookie}: {why}")
            return entries or None

        holders = self._context.bookies.likeliest(self._record.holders(first))
        entries = await first_answer(self._context.tasks, holders, ask) or []
        if entries and faulty and self._record.is_ended_at(first):
            self._context.tasks.start(self._tell(faulty, first))
        return entries

    async def _tell(self, bookies: Sequence[str], entry: int) -> None:
        """Tell bookies that they lack an entry that another bookie has, so that they repair it."""
        for bookie in bookies:
            with suppress(BookieError):
                await self._context.bookies.suspect(bookie, self._record.ledger, entry)

    def _check(self, first: int, packed: Sequence[bytes]) -> list[Entry]:
        """Return the entries before the first damaged one."""
        entries: list[Entry] = []
        with suppress(EntryDamaged):
            for entry, one in enumerate(packed, first):
                entries.append(unpack(one, self._record.ledger, entry))
        return entries
