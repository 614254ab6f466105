"""When the reader should acknowledge, and the limits of one read.

Owns: the decision and its options. Not: what is done (`cache`), or the calls to the receiver
(`reader`).
Invariant: an acknowledgement is due only if more is done than when the last one was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["AckThrottle", "FlowOptions"]

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


class AckThrottle:
    """Decides when an acknowledgement is due. One per reader.

    `left` is the number of messages that are done, as they are acknowledged: all that have left the
    cache, or those before the oldest that is held. `now_s` is the loop's clock.

    Attributes:
        left: of these, as many as were acknowledged.
        next_s: from then on a single message is enough.
    """

    __slots__ = ("_options", "left", "next_s")

    def __init__(self, options: FlowOptions, now_s: float) -> None:
        self._options = options
        self.left = 0
        self.next_s = now_s + options.ack_every_s

    def has_moved(self, left: int) -> bool:
        """Is there more to acknowledge than was?"""
        return left > self.left

    def is_due(self, left: int, now_s: float) -> bool:
        """Should it be acknowledged now?"""
        more, options = left - self.left, self._options
        if more < options.ack_every_events and now_s < self.next_s:
            return False
        return more > 0

    def sent(self, left: int, now_s: float) -> None:
        """The receiver took an acknowledgement; `left` as when `is_due` was asked."""
        assert left >= self.left, "messages do not come back into the cache"
        self.left, self.next_s = left, now_s + self._options.ack_every_s
