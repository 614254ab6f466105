"""How one bookie stores.

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
    """Raises ConfigError.

    Args:
        segment_bytes: size of a file of the journal, 1 GiB at most. So much is read at start after
            a crash, at most.
        allocate_bytes: a file grows ahead of what is written, by so much at once.
        entry_bytes_max: a larger entry is refused.
        frame_bytes_max: bytes of entries that one sync makes durable, unless one entry is larger;
            small enough that the next ones come together while it runs.
        unsynced_bytes_max: bytes of entries that may wait for a sync.
        cache_bytes: memory for entries that were added or read last.
        read_ahead_bytes: read at once, for the entries that follow.
        reserve_bytes: with less free on the disk only fences and recoveries are written.
        watch_s: how often files and free room are looked at, in seconds.
        watches_max: callers that may wait in `watch`.
        files_max: segments that are kept open for reading.
        live_ratio_min: a segment with a smaller part of wanted bytes is compacted.
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
            raise ConfigError(f"{text}; it must be {SEGMENT_BYTES_MAX} at most")
        for name in ("entry_bytes_max", "frame_bytes_max"):
            if getattr(self, name) > self.segment_bytes:
                text = f"BookieOptions.{name} is {getattr(self, name)}"
                raise ConfigError(
                    f"{text}; it must be segment_bytes, {self.segment_bytes}, at most"
                )


class HighWater(NamedTuple):
    """How far a bookie is: its start, and the sequence up to which its journal is durable."""

    boot: int
    sequence: int


class Known(NamedTuple):
    """What the metadata say of a directory, read while nobody else has it.

    `high_water`: the last that was recorded; `next_ledger`: no ledger with this id or a higher one
    existed then.
    """

    high_water: HighWater = HighWater(0, 0)
    next_ledger: int = DOUBT_ALL


AskKnown = Callable[[str], Awaitable[Known]]
"""Asked once, when the directory is locked, with the bookie's name."""


async def nothing_known(name: str) -> Known:
    """For a directory that no metadata know."""
    return Known()
