"""Limits and times of writing, reading and recovering ledgers.

Owns: `HandleOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["HandleOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOptions:
    """How patient one handle is, and how much it holds. Raises ConfigError.

    Attributes:
        owed_bytes_max: what may be sent to one bookie and not acknowledged; beyond, it has failed.
        add_bytes_max: of one request to a bookie; one entry may have more.
        unconfirmed_max_s: so long an append may wait for enough bookies; then its writer gives up.
        tell_after_s: an idle writer says what is confirmed after so long.
        recover_max_s: so long a recovery is tried again.
        page_entries, page_bytes: of one read of a recovery.
    """

    owed_bytes_max: int = 64 * 1024 * 1024
    add_bytes_max: int = 4 * 1024 * 1024
    unconfirmed_max_s: float = 30.0
    tell_after_s: float = 0.02
    recover_max_s: float = 60.0
    page_entries: int = 64
    page_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        check_fields(self)
