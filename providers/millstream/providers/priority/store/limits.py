"""The limits of waiting work in a store. Owns `StoreLimits`."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["StoreLimits"]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of waiting work and stored events in a store of priority queues.

    At a limit, an operation raises `Overloaded` and changes nothing. Wrong values raise
    `ConfigError`.

    Attributes:
        waiting_max: Operations of one queue that wait for a commit.
        uncommitted_max: Rows and events of the next commit of one queue. The operation that reaches
            the limit is still accepted.
        uncommitted_bytes_max: Payload bytes of the next commit of one queue. The operation that
            reaches the limit is still accepted.
        events_max: Events in one outbox. It fills up if no program relays or forgets them.
        clock_step_max_s: Queues ignore a larger forward step of the machine's clock, in seconds,
            and the log reports the step. The default is 366 days. `millstream pq clock QUEUE
            --reset` then sets a queue to the clock.
    """

    waiting_max: int = 10_000
    uncommitted_max: int = 20_000
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    events_max: int = 1_000_000
    clock_step_max_s: float = 366 * 86_400.0

    def __post_init__(self) -> None:
        check_fields(self)
