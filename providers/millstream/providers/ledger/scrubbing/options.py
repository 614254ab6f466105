"""How a bookie looks for damage.

Owns: `ScrubOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["ScrubOptions"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    """When and how fast a bookie reads all that it has. Raises ConfigError.

    Attributes:
        is_on: False: the bookie reads nothing on its own. Damage that readers find is repaired all
            the same.
        scrub_every_s: a pass over the directory begins so many seconds after the last one ended.
        scrub_bytes_per_s: bytes that a pass reads in one second, at most.
        busy_unsynced_bytes: while more bytes of entries wait for a sync, the pass waits.
        busy_reads: while more reads of callers wait for the disk, the pass waits.
        busy_max_s: the pass waits no longer than this for one read, so that it ends on a bookie
            that is always busy.
        retry_after_s: a repair that failed is tried again after more and more seconds, these at
            most.
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
