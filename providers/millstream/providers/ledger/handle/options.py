"""Limits and times of writing, reading and recovering ledgers.

Owns: `HandleOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["HandleOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOptions:
    """Limits and times of one handle. Raises ConfigError for a value that is not valid.

    Attributes:
        owed_bytes_max: bytes that may be sent to one bookie without an acknowledgement. A bookie
            above the limit has failed.
        add_bytes_max: bytes of one request to a bookie, or one larger entry.
        unconfirmed_max_s: how long an append may wait for enough bookies. Then the writer stops,
            and its appends fail with NotEnoughBookies.
        tell_after_s: after so many idle seconds, the writer tells bookies the last confirmed entry.
        recover_max_s: how long a recovery is tried again.
        page_entries: the number of entries of one read of a recovery.
        page_bytes: the bytes of one read of a recovery.
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
