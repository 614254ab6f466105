"""Times of taking and giving queues."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["OwnershipOptions"]


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    """Times of taking and giving queues. Raises ConfigError.

    `max_handoff_s`: how long a giving owner drains. `poll_s`: how often records are looked at: of a
    wanted queue that another silo has, and of all that this silo has, together. `force_after_s`:
    wait beyond the drain time. `lease_s`: 0, or at least three polls. `checkpoint_every_s`: how
    often an owner stores its position, for providers that keep none; what was delivered since is
    delivered again if the owner dies.
    """

    max_handoff_s: float = field(default=3.0, metadata={"min": 0})
    poll_s: float = 1.0
    force_after_s: float = field(default=2.0, metadata={"min": 0})
    lease_s: float = field(default=0.0, metadata={"min": 0})
    checkpoint_every_s: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if 0 < self.lease_s < 3 * self.poll_s:
            raise ConfigError(f"lease_s is {self.lease_s}, below three times poll_s {self.poll_s}")
