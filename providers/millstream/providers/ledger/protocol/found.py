"""The answer of a bookie to a read.

Owns: `Found`, `Missing`. Invariant: a bookie answers ABSENT only for an entry that it never
acknowledged. If it cannot know that, it answers UNKNOWN, which proves nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .entry import NOTHING

__all__ = ["Found", "Missing"]


class Missing(Enum):
    """Why a read ended before an entry."""

    LIMIT = "limit"  # the read reached its limit
    ABSENT = "absent"  # this bookie never acknowledged the entry
    # it may have acknowledged it: its directory is damaged or older than before
    UNKNOWN = "unknown"


class Found(NamedTuple):
    """Consecutive entries, packed and unchecked, and why there are no more.

    `confirmed`: the highest entry that this bookie knows to be confirmed. `fault`: the damaged
    entry, its file and its offset; "": no damaged entry was read.
    """

    entries: tuple[bytes, ...] = ()
    missing: Missing = Missing.LIMIT
    confirmed: int = NOTHING
    fault: str = ""
