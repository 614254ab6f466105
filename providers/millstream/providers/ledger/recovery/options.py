"""The options of recovery, which writes lost replicas again.

Owns: `RecoveryOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["RecoveryOptions"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """When and how fast entries are copied to other bookies, where each silo has its own directory.

    Numbers must be above 0.

    Attributes:
        is_on: False: this silo takes no part in recovery. Other silos may.
        lost_bookie_after_s: a bookie is lost when no live silo has run it for so many seconds. Its
            entries are then copied from other replicas to other bookies.
        open_fragment_after_s: how long the writer of an open ledger then has to replace the lost
            bookie, in seconds. After that a recovery closes the ledger, so that its newest entries
            can be copied, too.
        look_every_s: how often the bookies are checked, in seconds.
        audit_every_s: how often all ledgers are checked, in seconds. They are also checked at once
            when a bookie is lost or is to be drained.
        retry_after_s: the longest pause before a failed copy is tried again, in seconds. The first
            pauses are shorter.
        ledgers_max: the number of ledgers that are copied at a time.
        page_entries: the number of entries of one read.
        page_bytes: the bytes of one read, or one larger entry.
        copy_bytes_per_s: the bytes per second that are read for copies and checks, over all ledgers
            that this silo copies.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """

    is_on: bool = True
    lost_bookie_after_s: float = 60.0
    open_fragment_after_s: float = 30.0
    look_every_s: float = 1.0
    audit_every_s: float = 60.0
    retry_after_s: float = 300.0
    ledgers_max: int = 2
    page_entries: int = 256
    page_bytes: int = MIB
    copy_bytes_per_s: int = 32 * MIB

    def __post_init__(self) -> None:
        check_fields(self)
