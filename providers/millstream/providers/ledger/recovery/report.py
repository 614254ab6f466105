"""What auditors say of their work, for people and tools: one row per place.

Owns: `RecoveryReport` and its parts, `report_rows`. Not: the work. Invariant: it is only told, and
nothing is decided by it, so a report that is old or lost does no harm.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["STUCK_SHOWN_MAX", "BookieReport", "RecoveryReport", "Stuck", "report_rows"]

STUCK_SHOWN_MAX = 100
"""Ledgers with which something is wrong that a report names."""


class BookieReport(msgspec.Struct, frozen=True, array_like=True):
    """A bookie: its UUID, "here", "leaving" (it is being drained), "away" or "lost", and of how
    many ledgers it is."""

    bookie: str
    standing: str
    ledgers: int

    @property
    def is_drained(self) -> bool:
        """May its directory be deleted, if all rows of ledgers can be read?"""
        return self.standing == "leaving" and not self.ledgers


class Stuck(msgspec.Struct, frozen=True, array_like=True):
    """A ledger that cannot be given what it lacks now, and why; `is_lost`: no bookie that is left
    has some entry of it."""

    ledger: int
    is_lost: bool
    why: str


class RecoveryReport(msgspec.Struct, frozen=True, array_like=True):
    """What was found at the last look at all ledgers, and done since.

    `place`: of the bookies. `auditor`: the silo that says so; `since_s`, `audited_s`, `said_s`:
    wall times of when it began, looked at all ledgers last, and wrote this, in seconds since 1970.
    `ledgers`: that were looked at; `lacking`: that lack something now, `places` of fragments among
    them without a bookie that stays. `filled`, `entries`, `size_bytes`, `checked`, `ended`: since
    `since_s`, places that got another bookie, entries and bytes that were copied, entries that were
    looked at where they belong, ledgers that were given an end. `damaged`: ledgers whose rows
    cannot be read, as of the last look; while there are any, no bookie is called drained.
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
    """The reports, by place."""
    return RecordRows(metadata, "recovery/", RecoveryReport, key_part)
