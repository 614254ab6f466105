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
BUCKETS = 10  # buckets of a cache; a read brings at most one
CachePolicy = Literal["streams", "buckets"]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the cache of one queue. Raises `ConfigError` if a value is not valid; all are above
    0.

    If the provider can be read again (`REWIND`), one stream cannot fill the cache. When the cache
    is half full, a stream above `stream_events_max` or `stream_bytes_max` makes its slowest
    subscription *lagging*: its events leave the cache, and are read again when it is their turn.

    Without `REWIND`, `policy` decides when the queue is read further:

    - `"streams"`: while the cache has room. A slow stream costs only the events that it keeps.
    - `"buckets"`: while fewer than ten tenths of `events_max` messages were read since the oldest
      unprocessed one; a tenth at a time. The slowest subscription then slows the queue earlier, and
      fewer events are delivered twice after a crash. `events_max` must be at least 10. Modelled on
      Orleans' SimpleQueueCache.

    Attributes:
        events_max: events in the cache.
        bytes_max: bytes of bodies and headers in the cache; 64 MiB by default.
        stream_events_max: events of one stream, as above.
        stream_bytes_max: bytes of one stream, as above; 8 MiB by default.
        policy: `"streams"` or `"buckets"`.
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
