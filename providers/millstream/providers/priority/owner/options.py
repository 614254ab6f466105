"""The limits and waits of a silo that owns queues.

Invariants: units are part of the names, and values are checked when the object is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["WAIT_MS_MAX", "PriorityOptions"]

WAIT_MS_MAX = 30_000
"""Longest wait of one poll call, in milliseconds. A handle that waits longer polls again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """Limits and waits of `PriorityQueues` in one silo; silos may differ.

    Wrong values raise `ConfigError`.

    Attributes:
        waiting_polls_max: Dequeues of one queue that wait for messages. The next one gets
            `Overloaded`.
        opening_calls_max: Calls that wait until a queue is open. The next one gets `Overloaded`.
        wake_period_s: How often one silo of the cluster looks for queues that have due work and may
            have no owner, in seconds.
        wakes_max: Queues that are opened for due work at the same time, at most 1,000.
        wake_timeout_s: Time to open such a queue, in seconds, including the time to read its rows.
        changes_period_s: How often the silo that relays changes looks for new ones, in seconds.
        changes_batch_max: Changes of one outbox that are published together, at most 10,000.
        changes_late_s: The log reports a change that waits longer for its relay, in seconds.
        settle_period_s: How often an owner looks for messages in former shards after a change of
            `shards`, in seconds.
        release_s: How long an owner that ends, and a silo that stops, wait for the store, in
            seconds.
    """

    waiting_polls_max: int = 10_000
    opening_calls_max: int = 10_000
    wake_period_s: float = 1.0
    wakes_max: int = field(default=64, metadata={"max": 1_000})
    wake_timeout_s: float = 60.0
    changes_period_s: float = 0.2
    changes_batch_max: int = field(default=500, metadata={"max": 10_000})
    changes_late_s: float = 60.0
    settle_period_s: float = 5.0
    release_s: float = 10.0

    def __post_init__(self) -> None:
        check_fields(self)
