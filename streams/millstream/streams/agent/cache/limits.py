"""How much one queue's cache may hold.

Owns: `CacheLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["CacheLimits"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of one queue's cache. Raises ConfigError.

    Where the provider can be read again (REWIND), a stream with more than `stream_events_max` or
    `stream_bytes_max` in a cache that is half full has its slowest subscription put *behind*: what
    comes for it is read anew when it is its turn.
    """

    events_max: int = 16_384
    bytes_max: int = 64 * MIB
    stream_events_max: int = 4_096
    stream_bytes_max: int = 8 * MIB

    def __post_init__(self) -> None:
        check_fields(self)
