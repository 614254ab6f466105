"""How much one queue's cache may hold.

Owns: `CacheLimits`, and the size of a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["BUCKETS", "CacheLimits", "CachePolicy"]

MIB = 1 << 20
BUCKETS = 10  # of a cache, as in the first design; a read brings one at most
CachePolicy = Literal["streams", "buckets"]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of one queue's cache. Raises ConfigError.

    Where the provider can be read again (REWIND), a stream with more than `stream_events_max` or
    `stream_bytes_max` in a cache that is half full has its slowest subscription put *behind*: what
    comes for it is read again when it is its turn.

    `policy` says when a queue that cannot be read again is read further. "streams": while there is
    room for what is held; a stream costs what itself holds. "buckets": while, counted from the
    oldest message that is not done, fewer than ten tenths of `events_max` messages were read, one
    tenth at a time; so the slowest subscription slows the queue long before it is full of one
    stream, and at most so many come twice after a crash (Orleans, SimpleQueueCache).
    """

    events_max: int = 16_384
    bytes_max: int = 64 * MIB
    stream_events_max: int = 4_096
    stream_bytes_max: int = 8 * MIB
    policy: CachePolicy = "streams"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.policy == "buckets" and self.events_max < BUCKETS:
            raise ConfigError(
                f"CacheLimits.events_max is {self.events_max}; with policy='buckets' it must be at "
                f"least {BUCKETS}"
            )

    @property
    def bucket_messages(self) -> int:
        """Messages of one bucket."""
        return self.events_max // BUCKETS
