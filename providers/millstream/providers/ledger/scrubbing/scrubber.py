"""Reading the whole directory of a bookie in this silo, and repairing damaged and missing replicas.

Owns: `Scrubber`. Not: reading a segment (`bookie.damage`), the entries that a bookie should have
(`wanted`), the time of a repair (`docket`), the repair (`repairer`). Modelled on the deep scrub of
Ceph.

Invariants:

- A pass reads every entry of the bookie, and then compares the records of all ledgers with these
  entries.
- The rate of a pass has a limit in bytes per second, and requests of callers come first.
- Repairs do not wait for the pass.
- An entry that cannot be repaired is logged and reported with its file, and stays on the docket.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.damage.segment_check import Checked, SegmentCheck
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import BookieAway, BookieOverloaded, LedgerError
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.recovery.copy_rate import CopyRate
from millstream.providers.ledger.recovery.options import RecoveryOptions
from millstream.runtime import Corrupt, StorageError

from .docket import Docket, Failure
from .options import ScrubOptions
from .repairer import Outcome, Repairer
from .report import FAULTS_SHOWN_MAX, ScrubFault, ScrubReport, scrub_rows
from .wanted import missing_from

__all__ = ["LOOK_EVERY_S", "REPORT_EVERY_S", "Scrubber", "is_busy"]

log = logging.getLogger("millstream.ledger")

LOOK_EVERY_S = 1.0
"""How often new suspects and due repairs are checked."""
REPORT_EVERY_S = 5.0
"""The shortest time between two writes of the report."""
BUSY_S = 0.05
"""The pause of a pass before it checks again whether the bookie is busy."""
AFTER_FAILURE_S = 60.0
"""The pause of a pass after a failure."""

WAIT_ADVICE = "nothing: the repair is retried"
LOST_ADVICE = "restore the file from a backup; if there is no backup, accept the loss with "
LOST_ADVICE += "`millstream ledger recover {} --accept-loss`"


class Scrubber:
    """Scrubs the bookie that runs in this silo, if there is one.

    Args:
        bookie_here: returns the bookie that runs here now; None: another silo runs it.
        of: returns the standing of a bookie.
        copies: the rate at which replicas are fetched.
    """

    def __init__(
        self,
        context: HandleContext,
        metadata: Metadata,
        records: RecordRows[int, LedgerRecord],
        bookie_here: Callable[[], Bookie | None],
        of: Callable[[str], BookieStanding],
        options: ScrubOptions,
        copies: RecoveryOptions,
    ) -> None:
        self._context = context
        self._records = records
        self._bookie_here = bookie_here
        self._options = options
        self._repairer = Repairer(context, copies, of)
        self._rows = scrub_rows(metadata)
        self._bookie: Bookie | None = None
        self._docket = Docket(options.retry_after_s)
        self._report = self._said = ScrubReport("", 0.0)
        self._passing: asyncio.Task[None] | None = None
        self._pace = CopyRate(options.scrub_bytes_per_s)
        self._pass_at_s = self._say_at_s = -math.inf
        self._found_before: dict[int, set[int]] = {}  # found and counted by an earlier start
        self._is_incomplete = False  # some damage that was found is on no list

    async def run(self) -> None:
        """Check, repair, and begin passes, for ever."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    await self._look()
                except (LedgerError, OSError, StorageError) as error:
                    log.info("the scrubbing of ledgers is postponed: %s", error)
        finally:
            self._stop_pass()

    def report(self) -> ScrubReport:
        """Return the progress of the bookie."""
        bookie, failures = self._bookie, list(self._docket.failures())
        shown = failures[:FAULTS_SHOWN_MAX] if bookie is not None else []
        faults = tuple(fault_of(bookie, *one) for one in shown if bookie is not None)
        return msgspec.structs.replace(self._report, failed=len(failures), faults=faults)

    # --- the bookie

    async def _look(self) -> None:
        bookie = self._bookie_here()
        if bookie is not self._bookie:
            self._stop_pass()
            self._bookie = None
            if bookie is None:
                return
            await self._begin(bookie)
        if bookie is None:
            return
        self._take(bookie)
        await self._repair(bookie)
        now_s = self._context.clock.now()
        if self._passing is None and self._options.is_on and now_s >= self._pass_at_s:
            self._passing = self._context.tasks.start(self._pass(bookie))
        if now_s >= self._say_at_s:
            await self._say(now_s)

    async def _begin(self, bookie: Bookie) -> None:
        """Continue where the last silo that ran the bookie stopped."""
        before = await self._before(bookie.name)
        wall_s = self._context.clock.wall_s()
        self._docket = Docket(self._options.retry_after_s)
        self._report = before or ScrubReport(bookie.name, wall_s)
        self._found_before = {}
        for fault in self._report.faults:
            self._docket.put(fault.ledger, [fault.entry])
            self._found_before.setdefault(fault.ledger, set()).add(fault.entry)
        self._bookie, self._pass_at_s = bookie, self._context.clock.now()
        is_due = before is None or before.began_s > 0 or before.failed > len(before.faults)
        if before is not None and not is_due:
            since_s = max(0.0, wall_s - before.passed_s)
            self._pass_at_s += max(0.0, self._options.scrub_every_s - since_s)

    async def _before(self, bookie: str) -> ScrubReport | None:
        """Return the report of the last start, or None. A damaged row is deleted, since it only
        informs."""
        try:
            return await self._rows.read(bookie)
        except Corrupt as error:
            log.info("the report on damage in bookie %s starts from zero: %s", bookie, error)
            await self._rows.delete(bookie)
            return None

    def _stop_pass(self) -> None:
        if self._passing is not None:
            self._passing.cancel()
            self._passing = None

    # --- repairs

    def _take(self, bookie: Bookie) -> None:
        """Take the damage that readers and the pass have found."""
        for ledger, entries in bookie.suspects.take().items():
            self._docket.put(ledger, entries)
        if bookie.suspects.has_overflowed or self._docket.has_overflowed:
            bookie.suspects.has_overflowed = self._docket.has_overflowed = False
            self._is_incomplete = True
            self._pass_at_s = self._context.clock.now() + AFTER_FAILURE_S

    async def _repair(self, bookie: Bookie) -> None:
        """Try all due repairs. A failure of one does not affect the others."""
        for ledger, entries in self._docket.due(self._context.clock.now()):
            known = {*self._docket.list_failed(ledger), *self._found_before.pop(ledger, ())}
            try:
                outcome = await self._repairer.repair(bookie, ledger, entries)
            except (LedgerError, OSError, StorageError) as error:
                why = Failure(f"{type(error).__name__}: {error}")
                outcome = Outcome(failures=dict.fromkeys(entries, why))
            now_s = self._context.clock.now()
            lost = self._docket.settle(ledger, entries, outcome.failures, now_s)
            self._report = msgspec.structs.replace(
                self._report,
                damaged=self._report.damaged + len(outcome.damaged - known),
                missing=self._report.missing + len(outcome.missing - known),
                repaired=self._report.repaired + outcome.repaired,
            )
            if outcome.repaired:
                text = "%s: repaired %d damaged or missing entries of ledger %d from other bookies"
                log.info(text, bookie.directory.path, outcome.repaired, ledger)
            for entry in lost:
                log.error("%s", fault_of(bookie, ledger, entry, outcome.failures[entry]))

    # --- the pass

    async def _pass(self, bookie: Bookie) -> None:
        """Do one pass over the directory, from where the last one stopped early."""
        try:
            await self._read_segments(bookie)
            await self._compare(bookie)
        except BookieAway:
            pass  # the bookie has stopped; its next start continues
        except (LedgerError, OSError, StorageError) as error:
            log.warning("%s: scrubbing is postponed: %s", bookie.directory.path, error)
            self._pass_at_s = self._context.clock.now() + AFTER_FAILURE_S
        else:
            wall_s, passes = self._context.clock.wall_s(), self._report.passes + 1
            ended = {"passes": passes, "passed_s": wall_s, "began_s": 0.0, "segment": 0}
            self._report = msgspec.structs.replace(self._report, **ended)
            wait_s = AFTER_FAILURE_S if self._is_incomplete else self._options.scrub_every_s
            self._pass_at_s, self._is_incomplete = self._context.clock.now() + wait_s, False
        self._passing = None

    async def _read_segments(self, bookie: Bookie) -> None:
        report = self._report
        if not report.began_s:
            began = {"began_s": self._context.clock.wall_s(), "segment": 0, "pass_bytes": 0}
            self._report = report = msgspec.structs.replace(report, **began)
        for segment in bookie.segments():
            if segment < report.segment:
                continue
            segments = len(bookie.segments())
            self._report = msgspec.structs.replace(self._report, segment=segment, segments=segments)
            try:
                check = await bookie.check(segment)
            except FileNotFoundError:
                if segment in bookie.segments():
                    raise
                continue  # it was emptied and removed in the meantime
            try:
                await self._read_segment(bookie, check)
            finally:
                check.close()
            if check.is_faulty:
                bookie.collection.wear_out(segment)

    async def _read_segment(self, bookie: Bookie, check: SegmentCheck) -> None:
        while True:
            await self._wait_for_others(bookie)
            try:
                checked = await check.step()
            except BookieOverloaded:  # too many reads wait
                await asyncio.sleep(BUSY_S)
                continue
            if checked is None:
                return
            self._note(bookie, checked)
            await asyncio.sleep(self._pace.wait_s(self._context.clock.now(), checked.size_bytes))

    def _note(self, bookie: Bookie, checked: Checked) -> None:
        read_bytes = self._report.pass_bytes + checked.size_bytes
        self._report = msgspec.structs.replace(self._report, pass_bytes=read_bytes)
        if checked.damaged:
            (ledger, entry), count = checked.damaged[0], len(checked.damaged)
            text = (
                "%s: offset %d: entry %d of ledger %d fails its checksum, and so do %d more "
                "entries of its frame"
            )
            log.warning(text, *bookie.where(ledger, entry), entry, ledger, count - 1)
        for ledger, entry in checked.damaged:
            bookie.suspects.put(ledger, entry)

    async def _wait_for_others(self, bookie: Bookie) -> None:
        """Wait while the bookie is busy, but not for ever."""
        clock, options = self._context.clock, self._options
        until_s = clock.now() + options.busy_max_s
        while clock.now() < until_s:
            if not is_busy(bookie.waiting, options):
                return
            await asyncio.sleep(BUSY_S)

    async def _compare(self, bookie: Bookie) -> None:
        """Find entries that the bookie lacks, according to the records of all ledgers that can be
        read."""
        async for record in self._records.scan():
            ledger = record.ledger

            def has(entry: int, ledger: int = ledger) -> bool:
                return bookie.has(ledger, entry)

            for missing in missing_from(record, bookie.name, has):
                for entry in missing:
                    bookie.suspects.put(ledger, entry)
                await asyncio.sleep(0)

    # --- the report

    async def _say(self, now_s: float) -> None:
        """Write the report, if it has changed. Raises StorageError."""
        self._say_at_s = now_s + REPORT_EVERY_S
        report = self.report()
        if report == self._said:
            return
        stored = msgspec.structs.replace(report, said_s=self._context.clock.wall_s())
        await self._rows.update(report.bookie, lambda _: stored)
        self._said = report


def is_busy(waiting: tuple[int, int], options: ScrubOptions) -> bool:
    """Whether so many bytes or reads wait that a pass should wait. Pure."""
    unsynced_bytes, reads = waiting
    return unsynced_bytes > options.busy_unsynced_bytes or reads > options.busy_reads


def fault_of(bookie: Bookie, ledger: int, entry: int, failure: Failure) -> ScrubFault:
    """Return where an entry is that could not be repaired, why, and a remedy."""
    advice = LOST_ADVICE.format(ledger) if failure.is_lost else WAIT_ADVICE
    return ScrubFault(*bookie.where(ledger, entry), ledger, entry, *failure, advice)
