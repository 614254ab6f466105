"""What queues of streams are like.

Invariants: units are in the names; values are checked when the object is made.
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
    """How `DeadlineQueues` make and use priority queues. Raises ConfigError."""

    lease_s: float = field(default=30.0, metadata={"max": DAY_MS / 1000})
    """How long an event stays with a silo that died; while one works at it, it is extended."""
    attempts: int = field(default=100, metadata={"max": 1_000})
    """How often an event is leased at most, whatever became of the silos that had it."""
    payload_bytes_max: int = field(default=1 << 20, metadata={"max": 16 << 20})
    """Bytes of an event with its headers and the name of its stream."""
    messages_max: int = field(default=20_000_000, metadata={"max": MESSAGES_MAX})
    """Events of one queue, those that are done and not collected too; then `QueueFull`."""
    retention_s: float = field(
        default=3_600.0, metadata={"min": 0.001, "max": RETENTION_MS_MAX / 1000}
    )
    """How long an event that is done, or was given up, can be looked at."""

    def __post_init__(self) -> None:
        check_fields(self)

    def settings(self) -> QueueSettings:
        """Those of the queues."""
        return QueueSettings(
            exclusivity_key=STREAM_KEY,
            lease_ms=max(1, int(self.lease_s * 1000)),
            attempts=self.attempts,
            payload_bytes_max=self.payload_bytes_max,
            messages_max=self.messages_max,
            retention_ms=int(self.retention_s * 1000),
        )
