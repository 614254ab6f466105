"""The options of scrubbing, by which a bookie finds damage in its directory.

Owns: `ScrubOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["ScrubOptions"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    """When and how fast a bookie reads its whole directory in order to find damage.

    Numbers must be above 0.

    Attributes:
        is_on: False: the bookie does not scrub. Damage that readers find is repaired all the same.
        scrub_every_s: the pause between two passes over the directory, in seconds.
        scrub_bytes_per_s: the bytes that a pass reads in one second, at most.
        busy_unsynced_bytes: the pass waits while more bytes of entries wait for a sync.
        busy_reads: the pass waits while more reads of callers wait for the disk.
        busy_max_s: the longest wait before one read, in seconds, so that a pass ends on a bookie
            that is always busy.
        retry_after_s: the longest pause before a failed repair is tried again, in seconds. The
            first pauses are shorter.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """

    is_on: bool = True
    scrub_every_s: float = 86_400.0
    scrub_bytes_per_s: int = 8 * MIB
    busy_unsynced_bytes: int = MIB
    busy_reads: int = 4
    busy_max_s: float = 10.0
    retry_after_s: float = 300.0

    def __post_init__(self) -> None:
        check_fields(self)
