"""The limits and waits of owners of queues.

Invariants: units are in the names; values are checked when the object is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["WAIT_MS_MAX", "PriorityOptions"]

WAIT_MS_MAX = 30_000
"""How long one call of a poll may wait for messages; who wants to wait longer asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """How a silo owns priority queues. Raises ConfigError."""

    waiting_polls_max: int = 10_000
    """Polls of one queue that wait for messages."""
    opening_calls_max: int = 10_000
    """Calls that wait until a queue is open here."""
    wake_period_s: float = 1.0
    """How often one silo of the cluster looks for queues that nobody owns and that are due."""
    wakes_max: int = field(default=64, metadata={"max": 1_000})
    """Queues that are being woken at once."""
    wake_timeout_s: float = 60.0
    """How long a queue may take to be woken: its rows are read then."""
    changes_period_s: float = 0.2
    """How often the silo that relays changes looks for new ones."""
    changes_batch_max: int = field(default=500, metadata={"max": 10_000})
    """Changes of one outbox that are published at once."""
    changes_late_s: float = 60.0
    """A change that waited longer for its relay is told in the log."""
    settle_period_s: float = 5.0
    """How often the owner of a queue whose number of shards has changed asks whether messages are
    left where they belonged before."""
    release_s: float = 10.0
    """How long an owner that ends waits for its last commits."""

    def __post_init__(self) -> None:
        check_fields(self)
