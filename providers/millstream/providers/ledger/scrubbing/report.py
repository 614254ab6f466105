"""What a bookie says of its scrubbing, for people and tools: one row per bookie.

Owns: `ScrubReport`, `ScrubFault`, `scrub_rows`. Not: the work. Invariant: the report only informs;
what a start takes from it (where a pass was, which entries were damaged) is looked at again.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["FAULTS_SHOWN_MAX", "ScrubFault", "ScrubReport", "scrub_rows"]

FAULTS_SHOWN_MAX = 100
"""Entries without a repair that a report names."""


class ScrubFault(msgspec.Struct, frozen=True, array_like=True):
    """An entry that could not be repaired.

    `file`, `offset`: where the damaged copy is; the directory and 0 if there is no copy. `is_lost`:
    no other bookie has a good copy. `advice`: what a person can do.
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
    """How far a bookie is, and what it found and repaired since `since_s`.

    Times are wall times in seconds since 1970; 0: never. `said_s`: when the bookie wrote this.
    `passes`: passes over the whole directory; `passed_s`: when the last one ended; `began_s`: when
    the running one began; 0: none runs. `segment`: the segment that the running pass reads, of
    `segments`, of which it read `pass_bytes` bytes. `damaged`, `missing`: copies that were found
    damaged or missing; `repaired`: copies that were written anew. `failed`: entries that could not
    be repaired until now; `faults`: the first of these.
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
    """The reports, by bookie."""
    return RecordRows(metadata, "scrubs/", ScrubReport, key_part)
