"""What a store lets wait. Owns: `StoreLimits`."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime.extending import check_fields

__all__ = ["StoreLimits"]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What one queue lets wait while a commit is under way, and how many events are kept.

    `waiting_max`: operations that wait for commits. `uncommitted_max` and `uncommitted_bytes_max`:
    rows and events, and bytes of payload, of the next commit; the operation that comes to them is
    done still. `events_max`: rows of one outbox. At each of them: `Overloaded`.
    `clock_step_max_s`: a larger step of the machine's clock forward is not followed by the queues
    (the default is 366 days, the longest delay of a message): a warning names the step, and
    `millstream pq clock QUEUE --reset` makes a queue follow. Raises ConfigError.
    """

    waiting_max: int = 10_000
    uncommitted_max: int = 20_000
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    events_max: int = 1_000_000
    clock_step_max_s: float = 366 * 86_400.0

    def __post_init__(self) -> None:
        check_fields(self)
