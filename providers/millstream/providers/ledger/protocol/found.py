"""What a bookie answers to a read.

Owns: `Found`, `Missing`. Invariant: a bookie says ABSENT only if it never acknowledged the entry;
if it cannot know, it says UNKNOWN, which proves nothing (spec/ledger.md 1.13, 4.24).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .entry import NOTHING

__all__ = ["Found", "Missing"]


class Missing(Enum):
    """Why a read ended before an entry."""

    LIMIT = "limit"  # as much as was asked for is there
    ABSENT = "absent"  # this bookie never acknowledged it
    UNKNOWN = "unknown"  # it may have: what it stored is damaged, or older than it was


class Found(NamedTuple):
    """Entries that follow each other, packed and unchecked, and why no more.

    `confirmed`: the highest entry that this bookie knows to be confirmed. `fault`: which entry is
    damaged here, in which file and at which offset; "": none that was read.
    """

    entries: tuple[bytes, ...] = ()
    missing: Missing = Missing.LIMIT
    confirmed: int = NOTHING
    fault: str = ""
