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
    done still. `events_max`: rows of one outbox. At each of them: `Overloaded`. Raises ConfigError.
    """

    waiting_max: int = 10_000
    uncommitted_max: int = 20_000
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    events_max: int = 1_000_000

    def __post_init__(self) -> None:
        check_fields(self)
