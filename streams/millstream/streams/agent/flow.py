"""Options of reading: the limits of one read, and how often to acknowledge."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["FlowOptions"]

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
