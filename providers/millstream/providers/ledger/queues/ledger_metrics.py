"""The metrics of the ledgers of one silo, and the functions that read them.

Owns the descriptions. The numbers belong to the bookie, to the auditor and to the scrubber. What
the scrubber has done is stored, so a restart does not set it to 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.providers.ledger.bookie.bookie import BookieState, Figures
from millstream.providers.ledger.recovery.report import RecoveryReport
from millstream.providers.ledger.scrubbing.report import ScrubReport
from millstream.runtime.extending import Metric, Sample

__all__ = ["LEDGER_METRICS", "read_bookie", "read_recovery", "read_scrubbing"]

PROVIDER = ("provider",)

STATE = Metric(
    name="millstream_bookie_state",
    type="gauge",
    help="1 for the state of the bookie that runs in this silo: writable, read_only or stopped.",
    labels=("provider", "state"),
)
LEDGERS = Metric(
    name="millstream_bookie_ledgers",
    type="gauge",
    help="Ledgers with entries in the bookie.",
    labels=PROVIDER,
)
USED = Metric(
    name="millstream_bookie_used_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes of the bookie's files.",
    labels=PROVIDER,
)
LIVE = Metric(
    name="millstream_bookie_live_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes of entries in these files that are not deleted.",
    labels=PROVIDER,
)
FREE = Metric(
    name="millstream_bookie_free_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes that are free on the bookie's disk.",
    labels=PROVIDER,
)
UNSYNCED = Metric(
    name="millstream_bookie_unsynced_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes that are written and not durable yet, so not acknowledged.",
    labels=PROVIDER,
)
DAMAGED = Metric(
    name="millstream_bookie_damaged_entries",
    type="gauge",
    help="Entries that were found damaged since the bookie's start.",
    labels=PROVIDER,
)
LACKING = Metric(
    name="millstream_ledger_lacking_ledgers",
    type="gauge",
    help="Ledgers that need repairs now, as the auditing silo sees them.",
    labels=PROVIDER,
)
STUCK = Metric(
    name="millstream_ledger_stuck_ledgers",
    type="gauge",
    help="Ledgers whose repair failed, at most 100.",
    labels=PROVIDER,
)
COPIED = Metric(
    name="millstream_ledger_copied_entries_total",
    type="counter",
    help="Entries that this silo copied to replace lost replicas.",
    labels=PROVIDER,
)
COPIED_BYTES = Metric(
    name="millstream_ledger_copied_bytes_total",
    type="counter",
    unit="bytes",
    help="Bytes of these entries.",
    labels=PROVIDER,
)
SCRUB_PASSES = Metric(
    name="millstream_bookie_scrub_passes_total",
    type="counter",
    help="Passes of scrubbing over the whole directory.",
    labels=PROVIDER,
)
SCRUB_FOUND = Metric(
    name="millstream_bookie_scrub_found_total",
    type="counter",
    help="Replicas that scrubbing found damaged or missing.",
    labels=("provider", "kind"),
)
SCRUB_REPAIRED = Metric(
    name="millstream_bookie_scrub_repaired_total",
    type="counter",
    help="Replicas that scrubbing wrote again.",
    labels=PROVIDER,
)
SCRUB_FAILED = Metric(
    name="millstream_bookie_scrub_failed_entries",
    type="gauge",
    help="Entries that could not be repaired until now.",
    labels=PROVIDER,
)

LEDGER_METRICS = (
    *(STATE, LEDGERS, USED, LIVE, FREE, UNSYNCED, DAMAGED),
    *(LACKING, STUCK, COPIED, COPIED_BYTES),
    *(SCRUB_PASSES, SCRUB_FOUND, SCRUB_REPAIRED, SCRUB_FAILED),
)


def read_bookie(provider: str, figures: Figures) -> Iterator[Sample]:
    """Yield the samples of the bookie that runs in this silo."""
    for state in BookieState:
        yield Sample(STATE, (provider, state.value), int(state is figures.state))
    labels = (provider,)
    yield Sample(LEDGERS, labels, figures.ledgers)
    yield Sample(USED, labels, figures.used_bytes)
    yield Sample(LIVE, labels, figures.live_bytes)
    yield Sample(FREE, labels, figures.free_bytes)
    yield Sample(UNSYNCED, labels, figures.unsynced_bytes)
    yield Sample(DAMAGED, labels, figures.damaged)


def read_recovery(provider: str, report: RecoveryReport) -> Iterator[Sample]:
    """Yield the samples of an auditor that acts."""
    labels = (provider,)
    yield Sample(LACKING, labels, report.lacking)
    yield Sample(STUCK, labels, len(report.stuck))
    yield Sample(COPIED, labels, report.entries)
    yield Sample(COPIED_BYTES, labels, report.size_bytes)


def read_scrubbing(provider: str, report: ScrubReport) -> Iterator[Sample]:
    """Yield the samples of the scrubbing of the bookie that runs in this silo."""
    labels = (provider,)
    yield Sample(SCRUB_PASSES, labels, report.passes)
    yield Sample(SCRUB_FOUND, (provider, "damaged"), report.damaged)
    yield Sample(SCRUB_FOUND, (provider, "missing"), report.missing)
    yield Sample(SCRUB_REPAIRED, labels, report.repaired)
    yield Sample(SCRUB_FAILED, labels, report.failed)
