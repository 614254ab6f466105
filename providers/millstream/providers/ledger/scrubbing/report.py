"""The reports of bookies on their scrubbing, for people and tools: one row for each bookie.

Owns: `ScrubReport`, `ScrubFault`, `scrub_rows`. Not: the work. Invariant: the report only informs.
A start takes from it the place of a pass and the damaged entries, and checks them again.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["FAULTS_SHOWN_MAX", "ScrubFault", "ScrubReport", "scrub_rows"]

FAULTS_SHOWN_MAX = 100
"""How many entries without a repair a report names."""


class ScrubFault(msgspec.Struct, frozen=True, array_like=True):
    """An entry that could not be repaired.

    `file`, `offset`: the place of the damaged replica; the directory and 0 if there is no replica.
    `is_lost`: no other bookie has a good replica. `advice`: the remedy for an operator.
    """

    file: str
    offset: int
    ledger: int
    entry: int
    why: str
    is_lost: bool
    advice: str

    def __str__(self) -> str:
        what = f"entry {self.entry} of ledger {self.ledger} cannot be repaired"
        where = f"{self.file}: offset {self.offset}"
        return f"{where}: {what}: {self.why}. What can be done: {self.advice}"


class ScrubReport(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a bookie, and its findings and repairs since `since_s`.

    Times are wall times in seconds since 1970; 0: never. `said_s`: when the bookie wrote this.
    `passes`: the number of passes over the whole directory. `passed_s`: when the last one ended.
    `began_s`: when the running one began; 0: none is running. `segment`: the segment that the
    running pass reads, of `segments`, of which it has read `pass_bytes` bytes. `damaged`,
    `missing`: replicas that were found damaged or missing. `repaired`: replicas that were written
    again. `failed`: entries that could not be repaired until now. `faults`: the first of these.
    """

    bookie: str
    since_s: float
    said_s: float = 0.0
    passes: int = 0
    passed_s: float = 0.0
    began_s: float = 0.0
    segment: int = 0
    segments: int = 0
    pass_bytes: int = 0
    damaged: int = 0
    missing: int = 0
    repaired: int = 0
    failed: int = 0
    faults: tuple[ScrubFault, ...] = ()
    operation: str = ""


def scrub_rows(metadata: Metadata) -> RecordRows[str, ScrubReport]:
    """Return the reports, by bookie."""
    return RecordRows(metadata, "scrubs/", ScrubReport, key_part)
