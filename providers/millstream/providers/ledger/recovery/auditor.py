"""The auditor repairs the ledgers of one directory group, in one silo at a time.

Owns: `Auditor`. Not: the needs of a ledger (`needs`), the time of a repair (`agenda`), the repair
itself (`repairer`). As with BookKeeper's auditor, one process of the cluster does this. Invariants:
the silo that runs the first live bookie by name is the one that acts. If two silos act for a
moment, that does no harm. An audit lets other tasks run after each page of ledgers. A failure is
logged once, and tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime import StorageError

from .agenda import Agenda, CopyJob
from .bookie_standing import BookieStanding, BookieStandings
from .changes import ClaimLost
from .copier import EntriesLost
from .needs import bookies_of, needs_of
from .options import RecoveryOptions
from .repairer import LedgerRepairer
from .report import STUCK_SHOWN_MAX, BookieReport, RecoveryReport, Stuck, report_rows

__all__ = ["REPORT_EVERY_S", "Auditor", "Surroundings"]

log = logging.getLogger("millstream.ledger")

REPORT_EVERY_S = 5.0
"""The shortest time between two writes of the report."""
LEDGERS_AT_ONCE = 64
"""Let other tasks run after so many ledgers."""


class Surroundings(Protocol):
    """The bookies of one directory group, as this silo knows them."""

    def list_known(self) -> Mapping[str, BookieRecord]:
        """Return the rows of the bookies, by name."""
        ...

    def unreadable(self) -> Collection[str]:
        """Return the bookies with damaged rows."""
        ...

    def runs(self, bookie: str, /) -> bool:
        """Whether a live silo runs this bookie, which has a row."""
        ...

    def is_first(self) -> bool:
        """Whether this silo is the one that acts."""
        ...


class Auditor:
    """Runs in every silo; acts in one.

    Args:
        place: the name of the directory group.
        silo: the address of this silo, for the report.
    """

    def __init__(
        self,
        context: HandleContext,
        metadata: Metadata,
        records: RecordRows[int, LedgerRecord],
        around: Surroundings,
        options: RecoveryOptions,
        place: str,
        silo: str,
    ) -> None:
        self._context = context
        self._records = records
        self._around = around
        self._options = options
        self._standings = BookieStandings(options.lost_bookie_after_s)
        self._agenda = Agenda(options)
        self._mender = LedgerRepairer(context, options, self._standings.of, metadata.new_operation)
        self._rows = report_rows(metadata)
        self._report = RecoveryReport(place, silo, 0.0)
        self._ledgers_of: Counter[str] = Counter()
        self._is_acting = False
        self._audit_at_s = self._say_at_s = 0.0
        self._auditing: asyncio.Task[None] | None = None
        self._drained: set[str] = set()

    @property
    def is_acting(self) -> bool:
        """Whether this silo looks after replicas, as far as it knows."""
        return self._is_acting

    def standing(self, bookie: str) -> BookieStanding:
        """Return the standing of a bookie, as of the last look."""
        return self._standings.of(bookie)

    def is_lost(self, bookie: str) -> bool:
        """Whether no silo has run a bookie for so long that it is lost."""
        return self._standings.of(bookie) is BookieStanding.LOST

    def report(self) -> RecoveryReport:
        """Return the findings and the work done."""
        copied, agenda = self._mender.copied, self._agenda
        return msgspec.structs.replace(
            self._report,
            lacking=len(agenda.lacking),
            places=sum(len(needs.vacancies) for needs in agenda.lacking.values()),
            filled=copied.places,
            entries=copied.entries,
            size_bytes=copied.size_bytes,
            checked=copied.checked,
            ended=copied.ended,
            bookies=tuple(
                BookieReport(name, standing.value, self._ledgers_of[name])
                for name, standing in sorted(self._standings.all().items())
            ),
            stuck=tuple(
                Stuck(ledger, isinstance(tries.error, EntriesLost), str(tries.error))
                for ledger, tries in sorted(agenda.failed.items())[:STUCK_SHOWN_MAX]
            ),
        )

    async def run(self) -> None:
        """Check the bookies and start due work, for ever."""
        while True:
            await asyncio.sleep(self._options.look_every_s)
            self.look()
            if self._is_acting:
                await self._say()

    # --- bookies, and the acting silo

    def look(self) -> None:
        """Check the bookies, and start due work."""
        now_s = self._context.clock.now()
        if self._see(now_s):
            self._agenda.anew()
            self._audit_at_s = now_s
        due_s = min(self._audit_at_s, self._agenda.next_s)
        if self._is_acting and self._auditing is None and now_s >= due_s:
            self._audit_at_s = now_s + self._options.audit_every_s
            self._auditing = self._context.tasks.start(self._audit())

    def _see(self, now_s: float) -> bool:
        """Check the bookies; return whether anything has changed."""
        known = self._around.list_known()
        live = set(filter(self._around.runs, known))
        leaving = {name for name, record in known.items() if record.is_draining}
        before = dict(self._standings.all())
        unreadable = self._around.unreadable()
        has_changed = self._standings.see(now_s, live, known.keys(), leaving, unreadable)
        was_acting, self._is_acting = self._is_acting, self._around.is_first()
        if self._is_acting and not was_acting:
            wall_s = self._context.clock.wall_s()
            self._report = RecoveryReport(self._report.place, self._report.auditor, wall_s)
            log.info(
                "this silo now checks and repairs the replicas of ledgers in %s", self._report.place
            )
        if self._is_acting:
            self._tell(before)
        return has_changed or self._is_acting != was_acting

    def _tell(self, before: Mapping[str, BookieStanding]) -> None:
        """Log the bookies whose standing has changed."""
        for name, standing in self._standings.all().items():
            if standing is before.get(name):
                continue
            if standing is BookieStanding.LOST:
                text = "bookie %s is lost: no silo has run it for %.0f s; its entries are copied"
                log.warning(text, name, self._options.lost_bookie_after_s)
            elif standing is BookieStanding.LEAVING:
                log.info(
                    "bookie %s is being drained: its entries are copied to other bookies", name
                )
            elif before.get(name) is BookieStanding.LOST:
                log.info("bookie %s has returned", name)

    # --- all ledgers

    async def _audit(self) -> None:
        """Check all ledgers, and repair those that can be repaired now."""
        try:
            jobs = deque(await self._look_at_ledgers())
            begin_s, before = self._context.clock.now(), self._mender.copied.places
            if jobs:
                log.debug("%d ledgers lack replicas, or must be checked", len(jobs))
            await asyncio.gather(
                *[self._work(jobs) for _ in range(min(self._options.ledgers_max, len(jobs)))]
            )
            filled = self._mender.copied.places - before
            if filled:
                took_s, left = self._context.clock.now() - begin_s, len(self._agenda.lacking)
                text = "replaced bookies in %d places of ledgers within %.1f s; %d ledgers are left"
                log.info(text, filled, took_s, left)
                self._audit_at_s = self._context.clock.now()  # check whether anything is left
            self._tell_drained()
        except StorageError as error:
            log.warning("could not check the ledgers, retrying: %s", error)
        finally:
            self._auditing = None

    async def _look_at_ledgers(self) -> list[CopyJob]:
        """Return the repairs to do now, the most urgent first. Raises StorageError."""
        agenda, count, ledgers_of = self._agenda, 0, Counter[str]()
        room = len(self._context.bookies.writable())
        agenda.begin()
        scan = self._records.scan()
        async for record in scan:
            named = {name for one in record.fragments for name in one.bookies}
            if named.isdisjoint(self._standings.all()):
                continue  # it is in another directory group
            needs = needs_of(record, self._standings.of, room)
            agenda.look(record, needs, self._context.clock.now())
            ledgers_of.update(bookies_of(record))
            count += 1
            if count % LEDGERS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._ledgers_of = ledgers_of
        wall_s = self._context.clock.wall_s()
        self._report = msgspec.structs.replace(
            self._report, ledgers=count, audited_s=wall_s, damaged=len(scan.damaged)
        )
        return list(agenda.jobs())

    async def _work(self, jobs: deque[CopyJob]) -> None:
        while jobs and self._is_acting:
            _, ledger, may_end = jobs.popleft()
            try:
                await self._mender.mend(ledger, may_end)
                self._agenda.on_done(ledger)
            except LedgerGone:
                self._agenda.on_done(ledger)  # it was deleted in the meantime
            except (LedgerError, StorageError) as error:
                self._on_failed(ledger, error)

    def _on_failed(self, ledger: int, error: Exception) -> None:
        is_new = self._agenda.fail(ledger, error, self._context.clock.now())
        if is_new and isinstance(error, EntriesLost):
            log.error("entries are lost on all bookies: %s", error)
        elif is_new and not isinstance(error, ClaimLost):
            log.warning("could not re-replicate a ledger, retrying: %s", error)

    def _tell_drained(self) -> None:
        """Log each empty bookie once."""
        report = self.report()
        if report.damaged:
            return  # a ledger that cannot be read may need any bookie
        drained = {one.bookie for one in report.bookies if one.is_drained}
        for bookie in sorted(drained - self._drained):
            log.info(
                "bookie %s is drained: no ledger needs it; its directory can be removed", bookie
            )
        self._drained = drained

    # --- the report

    async def _say(self) -> None:
        """Write the report, if it has news, and not too often."""
        now_s = self._context.clock.now()
        if now_s < self._say_at_s:
            return
        self._say_at_s = now_s + REPORT_EVERY_S
        report = self.report()

        def say(found: RecoveryReport | None) -> RecoveryReport:
            if found is not None and is_same(found, report):
                return found
            return msgspec.structs.replace(report, said_s=self._context.clock.wall_s())

        try:
            await self._rows.update(report.place, say)
        except StorageError as error:
            log.info("could not write the report on replicas: %s", error)


def is_same(found: RecoveryReport, report: RecoveryReport) -> bool:
    """Whether a report has no news except times."""
    return found == msgspec.structs.replace(
        report, said_s=found.said_s, audited_s=found.audited_s, operation=found.operation
    )
