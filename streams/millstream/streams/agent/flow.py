"""How much the reader may read now, and whether it should acknowledge now.

Owns: the two decisions and their options. Not: what is done (`cache`), or the calls to the receiver
(`reader`).
Invariants: a grant never exceeds what the cache has room for; an acknowledgement is due only if the
minimum moved since the last one that was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.runtime.extending import check_fields

__all__ = ["AckThrottle", "FlowOptions", "ReadGrant", "read_grant"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """Limits of one read, and how often to acknowledge. Raises ConfigError.

    An acknowledgement is sent once `ack_every_events` messages are done, or `ack_every_s` after
    the last one, whichever comes first.
    """

    read_events_max: int = 1024
    read_bytes_max: int = 4 * MIB
    ack_every_events: int = 256
    ack_every_s: float = field(default=0.2, metadata={"min": 0})

    def __post_init__(self) -> None:
        check_fields(self)


class ReadGrant(NamedTuple):
    """What one read may bring; (0, 0) means: do not read."""

    events: int
    size_bytes: int

    @property
    def is_open(self) -> bool:
        """Whether anything may be read."""
        return self.events > 0


def read_grant(room: tuple[int, int], options: FlowOptions) -> ReadGrant:
    """The limits of the next read, from the room of a cache that was purged just before."""
    events, size_bytes = room
    if events < 1 or size_bytes < 1:
        return ReadGrant(0, 0)
    return ReadGrant(min(events, options.read_events_max), min(size_bytes, options.read_bytes_max))


class AckThrottle:
    """Decides when what is done is worth an acknowledgement. One per reader.

    `left` is the number of messages that are done, as they are acknowledged: all that have left the
    cache, or those before the oldest that is held. `now_s` is the loop's clock.
    """

    __slots__ = ("_acked_left", "_acked_s", "_options")

    def __init__(self, options: FlowOptions, now_s: float) -> None:
        self._options = options
        self._acked_left = 0
        self._acked_s = now_s

    def has_moved(self, left: int) -> bool:
        """Is there more to acknowledge than was?"""
        return left > self._acked_left

    def is_due(self, left: int, now_s: float) -> bool:
        """Should it be acknowledged now?"""
        if not self.has_moved(left):
            return False
        return left - self._acked_left >= self._options.ack_every_events or now_s >= self.next_s

    def rests(self, most_left: int, now_s: float) -> bool:
        """Is nothing due until `next_s`, though as many as `most_left` were done?"""
        few = most_left - self._acked_left < self._options.ack_every_events
        return few and now_s < self._acked_s + self._options.ack_every_s

    @property
    def next_s(self) -> float:
        """From when on a single message is enough."""
        return self._acked_s + self._options.ack_every_s

    def sent(self, left: int, now_s: float) -> None:
        """The receiver took an acknowledgement; `left` as when `is_due` was asked."""
        assert left >= self._acked_left, "messages do not come back into the cache"
        self._acked_left, self._acked_s = left, now_s
