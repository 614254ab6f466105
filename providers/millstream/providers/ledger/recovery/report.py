"""The reports of auditors for people and tools: one row for each directory group.

Owns: `RecoveryReport` and its parts, `report_rows`. Not: the work. Invariant: the report only
informs. No decision depends on it, so an old or lost report does no harm.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["STUCK_SHOWN_MAX", "BookieReport", "RecoveryReport", "Stuck", "report_rows"]

STUCK_SHOWN_MAX = 100
"""How many failed ledgers a report names."""


class BookieReport(msgspec.Struct, frozen=True, array_like=True):
    """A bookie: its UUID, its standing, and the number of its ledgers. The standing is "here",
    "leaving" (it is being drained), "away" or "lost"."""

    bookie: str
    standing: str
    ledgers: int

    @property
    def is_drained(self) -> bool:
        """Whether its directory may be deleted, if all rows of ledgers can be read."""
        return self.standing == "leaving" and not self.ledgers


class Stuck(msgspec.Struct, frozen=True, array_like=True):
    """A ledger whose repair failed, and why; `is_lost`: no bookie that is left has some of its
    entries."""

    ledger: int
    is_lost: bool
    why: str


class RecoveryReport(msgspec.Struct, frozen=True, array_like=True):
    """The findings of the last audit, and the work since then.

    `place`: the name of the directory group. `auditor`: the silo that reports. `since_s`,
    `audited_s`, `said_s`: the wall times, in seconds since 1970, when it began to act, audited all
    ledgers last, and wrote this report. `ledgers`: the number of audited ledgers. `lacking`: the
    number of those that need repairs now. `places`: the number of places in their fragments that
    need another bookie. `damaged`: the number of ledgers whose rows cannot be read; while there are
    any, no bookie counts as drained. Work since `since_s`: `filled`, places that got another
    bookie; `entries` and `size_bytes`, copied; `checked`, entries that were checked on their
    bookies; `ended`, ledgers that were closed.
    """

    place: str
    auditor: str
    since_s: float
    audited_s: float = 0.0
    said_s: float = 0.0
    ledgers: int = 0
    lacking: int = 0
    places: int = 0
    filled: int = 0
    entries: int = 0
    size_bytes: int = 0
    checked: int = 0
    ended: int = 0
    bookies: tuple[BookieReport, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    operation: str = ""
    damaged: int = 0


def report_rows(metadata: Metadata) -> RecordRows[str, RecoveryReport]:
    """Return the reports, by directory group."""
    return RecordRows(metadata, "recovery/", RecoveryReport, key_part)
