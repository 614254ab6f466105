"""Repairing one ledger: its missing replicas, and its open fragment.

Owns: `LedgerRepairer`. Not: the choice of ledger and time (`auditor`). Invariants: each place is
claimed, copied, and then stored in the record, in this order. So a crash in between leaves only
copies that nobody needs. If two processes repair one ledger, only one claim holds. The last
fragment of an open ledger is never copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from millstream.providers.ledger.handle.context import HandleContext, choose, existing
from millstream.providers.ledger.handle.recovery import recover
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    BookieReadOnly,
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState

from .bookie_standing import BookieStanding
from .changes import ClaimLost, claim, mark_checked, move, release, widen
from .copier import Copied, Copier, EntriesLost
from .needs import FragmentSpan, Vacancy, needs_of, short_by, spans_of, stripe, unsure_from
from .options import RecoveryOptions

__all__ = ["LedgerRepairer"]

log = logging.getLogger("millstream.ledger")

BOOKIES_TRIED_MAX = 3
"""How many bookies are tried for one place, one after the other."""


class LedgerRepairer:
    """Repairs ledgers, one at each call.

    Args:
        of: returns the standing of a bookie.
        new_token: returns a text that no other call, here or elsewhere, ever returns.
    """

    def __init__(
        self,
        context: HandleContext,
        options: RecoveryOptions,
        of: Callable[[str], BookieStanding],
        new_token: Callable[[], str],
    ) -> None:
        self.copied = Copied()
        self._context = context
        self._options = options
        self._of = of
        self._new_token = new_token
        self._copier = Copier(context.bookies, context.clock, options, of, self.copied)
        self._lost: dict[int, EntriesLost] = {}

    async def mend(self, ledger: int, may_end: bool) -> None:
        """Repair a ledger as far as that is possible now. Repeating it does no harm.

        Args:
            may_end: its writer had the time to replace a bookie, so the ledger may be closed.

        Raises LedgerError, StorageError: some repairs are left for later.
        """
        record = await self._context.rows.read(ledger)
        if record is None:
            self._lost.pop(ledger, None)
            await self._context.rows.end_deletion(ledger)
            return
        left = record.claim
        try:
            await self._mend(record, may_end)
        except EntriesLost as error:
            self._lost[ledger] = error
            raise
        if left is not None:  # left by a process that has crashed, unless another claim replaced it
            await self._update(ledger, lambda found: release(found, left.token))

    async def _mend(self, record: LedgerRecord, may_end: bool) -> None:
        needs = needs_of(record, self._of, len(self._free()))
        if needs.is_to_end and may_end:
            record = await self._end(record)
        await self._check_lost(record)
        record = await self._fill(record)
        if record.state is LedgerState.CLOSED:
            record = await self._widen(record)
            await self._check(record)

    def _free(self) -> Mapping[str, float]:
        """Return the bookies that accept entries, with their weights."""
        return self._context.bookies.writable()

    async def _end(self, record: LedgerRecord) -> LedgerRecord:
        """Close the ledger. If its writer still runs, it is fenced and begins another ledger."""
        ended = await recover(self._context, record.ledger)
        self.copied.ended += 1
        log.info(
            "ledger %d of %s was closed at entry %d, because it cannot stay on bookies %s",
            record.ledger,
            record.topic,
            ended.last,
            ", ".join(record.fragments[-1].bookies),
        )
        return ended

    async def _check_lost(self, record: LedgerRecord) -> None:
        """Of a ledger with lost entries, look for one of them before all others are copied. Raises
        EntriesLost."""
        known = self._lost.get(record.ledger)
        if known is None:
            return
        is_given_up = record.find_lost(known.first) is not None
        if not is_given_up and not await self._copier.page(record, known.first, 1):
            raise EntriesLost(str(known), known.ledger, known.first, known.gone)
        del self._lost[record.ledger]

    # --- places that need another bookie

    async def _fill(self, record: LedgerRecord) -> LedgerRecord:
        """Fill all vacancies, one after the other. Errors are raised after the last one."""
        failures: dict[tuple[int, int], LedgerError] = {}
        while left := self._vacancies(record, failures):
            vacancy, *_ = left
            try:
                record = await self._move(record, vacancy)
            except (NotRecoverable, NotEnoughBookies, BookieError) as error:
                failures[vacancy.span.first, vacancy.place] = error
        lost = [error for error in failures.values() if isinstance(error, EntriesLost)]
        for failure in [*lost, *failures.values()]:
            raise failure
        return record

    def _vacancies(
        self, record: LedgerRecord, but: Collection[tuple[int, int]]
    ) -> Sequence[Vacancy]:
        found = needs_of(record, self._of, 0).vacancies
        return [one for one in found if (one.span.first, one.place) not in but]

    async def _move(self, record: LedgerRecord, vacancy: Vacancy) -> LedgerRecord:
        """Give a place, with all of its entries, to another bookie."""
        ledger, tried = record.ledger, set[str]()
        while True:
            bookie = self._another(ledger, vacancy.span, tried)
            try:
                return await self._copy(ledger, vacancy, bookie)
            except (BookieError, LedgerFenced) as error:
                tried.add(bookie)
                log.info("ledger %d: bookie %s accepts no replicas: %s", ledger, bookie, error)
                if len(tried) == BOOKIES_TRIED_MAX:
                    raise

    async def _copy(self, ledger: int, vacancy: Vacancy, bookie: str) -> LedgerRecord:
        """Give a place to this bookie. Raises BookieError and LedgerFenced of the bookie, and
        others."""
        token = self._new_token()
        record = await self._update(ledger, lambda found: claim(found, token, (bookie,)))
        try:
            await self._copier.fill(record, self._runs(record, vacancy), bookie)
            record = await self._update(ledger, lambda found: move(found, token, vacancy, bookie))
        except LedgerError:
            await self._update(ledger, lambda found: release(found, token))
            raise
        self.copied.places += 1
        return record

    def _runs(self, record: LedgerRecord, vacancy: Vacancy) -> Iterator[range]:
        span, most = vacancy.span, self._options.page_entries
        return stripe(record.quorum, vacancy.place, span.first, span.last, most)

    def _another(self, ledger: int, span: FragmentSpan, tried: set[str]) -> str:
        """Choose a bookie outside of the fragment, at random by weight."""
        taken = {*span.bookies, *tried}
        found = choose(self._free(), 1, taken, self._context.clock)
        if not found:
            text = f"ledger {ledger}: entries {span.first} to {span.last} are on "
            text += f"{', '.join(span.bookies)}, and no other running bookie has free disk space"
            raise NotEnoughBookies(f"{text}; start another bookie")
        return found[0]

    # --- ledgers with fewer replicas than wanted

    async def _widen(self, record: LedgerRecord) -> LedgerRecord:
        """Make as many more replicas as there are bookies for."""
        more = self._more(record)
        if not more:
            return record
        ledger, token = record.ledger, self._new_token()
        added = sorted({name for names in more.values() for name in names})
        before = await self._update(ledger, lambda found: claim(found, token, added))
        try:
            if before.fragments != record.fragments:
                raise ClaimLost(f"ledger {ledger} was changed by another silo")
            for span in spans_of(before):
                for bookie in more[span.first]:
                    await self._copier.fill(before, [range(span.first, span.last + 1)], bookie)
                    self.copied.places += 1
            return await self._update(ledger, lambda found: widen(found, token, before, more))
        except LedgerError:
            await self._update(ledger, lambda found: release(found, token))
            raise

    def _more(self, record: LedgerRecord) -> dict[int, list[str]]:
        """Return more bookies for each fragment, by its first entry.

        The result is empty if there are none.
        """
        free, wanted = self._free(), short_by(record)
        room = min(len(free.keys() - set(one.bookies)) for one in record.fragments)
        count = min(wanted, room)
        if not count:
            return {}
        clock = self._context.clock
        return {one.first: choose(free, count, one.bookies, clock) for one in record.fragments}

    # --- replicas that may be missing

    async def _check(self, record: LedgerRecord) -> None:
        """Check the replicas that the writer did not see arrive, and copy missing ones."""
        spans = spans_of(record)
        if unsure_from(record, spans, self._of) is None:
            return
        for span in spans:
            for place, bookie in enumerate(span.bookies):
                await self._check_place(record, Vacancy(span, place), bookie)
        await self._update(record.ledger, lambda found: mark_checked(found, record.last))

    async def _check_place(self, record: LedgerRecord, at: Vacancy, bookie: str) -> None:
        first = max(at.span.first, record.complete + 1)
        runs = stripe(record.quorum, at.place, first, at.span.last, self._options.page_entries)
        try:
            await self._copier.fill(record, runs, bookie, has_most=True)
        except (BookieReadOnly, LedgerFenced):
            await self._move(record, at)

    # --- the record

    async def _update(
        self, ledger: int, change: Callable[[LedgerRecord], LedgerRecord]
    ) -> LedgerRecord:
        """Change the record. Raises LedgerGone, ClaimLost, StorageError."""
        return await self._context.rows.update(
            ledger, lambda found: change(existing(ledger, found))
        )
