"""Options of reading: the limits of one read, and the rate of acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["FlowOptions"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """Limits of one read, and how often to acknowledge. Raises `ConfigError` if a value is not
    valid.

    Values are above 0 unless stated otherwise.

    Attributes:
        read_events_max: events that one read may bring.
        read_bytes_max: bytes that one read may bring, 4 MiB by default. At most half of
            `RuntimeOptions.frame_bytes_max`.
        ack_every_events: number of processed messages after which an acknowledgement is sent.
        ack_every_s: an acknowledgement is also sent this many seconds after the last one; 0 or
            more.
    """

    read_events_max: int = 1024
    read_bytes_max: int = 4 * MIB
    ack_every_events: int = 256
    ack_every_s: float = field(default=0.2, metadata={"min": 0})

    def __post_init__(self) -> None:
        check_fields(self)
