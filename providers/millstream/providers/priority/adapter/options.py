"""The options of the priority queues that carry streams.

Invariants: units are part of the names, and values are checked when the object is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.providers.priority.core.settings import (
    DAY_MS,
    MESSAGES_MAX,
    RETENTION_MS_MAX,
    QueueSettings,
)
from millstream.runtime.extending import check_fields

__all__ = ["STREAM_KEY", "DeadlineOptions"]

STREAM_KEY = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineOptions:
    """Options of `DeadlineQueues`; all silos must have the same. Wrong values raise `ConfigError`.

    They apply to new queues. An existing queue keeps its `QueueSettings`.

    Attributes:
        lease_s: How long a crashed silo keeps an event, in seconds, at most a day. A live silo
            extends its leases.
        attempts: How often an event is leased at most, even if silos crash, at most 1,000. If a
            silo crashes during the last attempt, the event is errored without a call of the failure
            handler.
        payload_bytes_max: Bytes of an event with its headers and the name of its stream, at most 16
            MiB. A larger event is refused.
        messages_max: Events of one queue, including finished events until they are collected, at
            most 1,000,000,000. Above, publishing raises `QueueFull`.
        retention_s: How long a finished event can be read, in seconds, from 0.001 to ten years.
    """

    lease_s: float = field(default=30.0, metadata={"max": DAY_MS / 1000})
    attempts: int = field(default=100, metadata={"max": 1_000})
    payload_bytes_max: int = field(default=1 << 20, metadata={"max": 16 << 20})
    messages_max: int = field(default=20_000_000, metadata={"max": MESSAGES_MAX})
    retention_s: float = field(
        default=3_600.0, metadata={"min": 0.001, "max": RETENTION_MS_MAX / 1000}
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def settings(self) -> QueueSettings:
        """The settings of the queues."""
        return QueueSettings(
            exclusivity_key=STREAM_KEY,
            lease_ms=max(1, int(self.lease_s * 1000)),
            attempts=self.attempts,
            payload_bytes_max=self.payload_bytes_max,
            messages_max=self.messages_max,
            retention_ms=int(self.retention_s * 1000),
        )
