"""The options of a bookie, and the facts that its cluster knows about its directory.

Owns: `BookieOptions`, `Known`, `HighWater`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

from .form.state import DOUBT_ALL

__all__ = ["AskKnown", "BookieOptions", "HighWater", "Known", "nothing_known"]

MIB = 1 << 20
SEGMENT_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """Options of a bookie, which stores entries in one directory. Numbers must be above 0.

    Attributes:
        segment_bytes: the size of one journal file, at most 1 GiB. A start after a crash reads at
            most this many bytes.
        allocate_bytes: how far a file is extended at a time, before entries are written to it.
        entry_bytes_max: the largest entry that the bookie accepts; at most `segment_bytes`.
        frame_bytes_max: bytes of entries that one sync makes durable, at most `segment_bytes`. A
            single larger entry has a sync of its own. A small value lets the next entries gather
            while a sync runs.
        unsynced_bytes_max: bytes of entries that may wait for a sync. The bookie refuses further
            entries until later.
        cache_bytes: memory for the entries that were added or read last.
        read_ahead_bytes: bytes that one read fetches, for the entries that follow.
        reserve_bytes: with fewer free bytes on the disk, the bookie writes only fences and the
            entries of recoveries.
        watch_s: how often the files and the free space are checked, in seconds.
        watches_max: the number of callers that may wait for confirmations at a time.
        files_max: the number of segments that stay open for reading.
        live_ratio_min: a segment is compacted when a smaller part of its bytes is still needed; at
            most 1.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """

    segment_bytes: int = 64 * MIB
    allocate_bytes: int = 4 * MIB
    entry_bytes_max: int = 8 * MIB
    frame_bytes_max: int = MIB
    unsynced_bytes_max: int = 64 * MIB
    cache_bytes: int = 32 * MIB
    read_ahead_bytes: int = 256 * 1024
    reserve_bytes: int = 128 * MIB
    watch_s: float = 1.0
    watches_max: int = 10_000
    files_max: int = 64
    live_ratio_min: float = field(default=0.2, metadata={"max": 1.0})

    def __post_init__(self) -> None:
        check_fields(self)
        if self.segment_bytes > SEGMENT_BYTES_MAX:
            text = f"BookieOptions.segment_bytes is {self.segment_bytes}"
            raise ConfigError(f"{text}; it must be at most {SEGMENT_BYTES_MAX}")
        for name in ("entry_bytes_max", "frame_bytes_max"):
            if getattr(self, name) > self.segment_bytes:
                text = f"BookieOptions.{name} is {getattr(self, name)}"
                raise ConfigError(f"{text}; it must be at most segment_bytes, {self.segment_bytes}")


class HighWater(NamedTuple):
    """How far a bookie is: the count of its starts, and the sequence up to which its journal is
    durable."""

    boot: int
    sequence: int


class Known(NamedTuple):
    """The facts that the metadata have about a directory, read while this bookie holds its lock.

    `high_water`: the progress of the bookie that was recorded last. `next_ledger`: every ledger
    that existed then has a lower number.
    """

    high_water: HighWater = HighWater(0, 0)
    next_ledger: int = DOUBT_ALL


AskKnown = Callable[[str], Awaitable[Known]]
"""Called once with the bookie's name, after the directory is locked."""


async def nothing_known(name: str) -> Known:
    """Return the facts about a directory that no metadata know."""
    return Known()
