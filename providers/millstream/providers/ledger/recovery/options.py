"""How lost copies are made again.

Owns: `RecoveryOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["RecoveryOptions"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """When entries are copied to other bookies, and how fast. Raises ConfigError.

    Attributes:
        is_on: False: this silo looks after nothing; others may.
        lost_bookie_after_s: a bookie that no live silo runs for so long is lost: what it has is
            copied elsewhere from what others have.
        open_fragment_after_s: so long the writer of a ledger has, after that, to do without the
            bookie, before the ledger is ended, so that its newest entries can be copied, too.
        look_every_s: how often bookies are looked at.
        audit_every_s: how often all ledgers are looked at; when a bookie is lost, or shall be
            emptied, at once.
        retry_after_s: what failed is tried again after more and more seconds, these at most.
        ledgers_max: ledgers that are copied at the same time.
        page_entries, page_bytes: of one read; one entry at least.
        copy_bytes_per_s: entries that are read for copies and checks, over all ledgers together.
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
