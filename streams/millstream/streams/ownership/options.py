"""Times of taking and giving queues."""

from __future__ import annotations

import math
from dataclasses import dataclass

from millstream.runtime import ConfigError

__all__ = ["OwnershipOptions"]


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    """Times of taking and giving queues. Raises ConfigError.

    `max_handoff_s`: how long a giving owner drains. `poll_s`: how often a wanted queue's record is
    read. `force_after_s`: wait beyond the drain time. `lease_s`: 0, or at least three polls.
    `checkpoint_every_s`: how often an owner stores its position, for providers that keep none; what
    was delivered since is delivered again if the owner dies.
    """

    max_handoff_s: float = 3.0
    poll_s: float = 1.0
    force_after_s: float = 2.0
    lease_s: float = 0.0
    checkpoint_every_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_handoff_s", "force_after_s", "lease_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, not a finite number from 0")
        for name in ("poll_s", "checkpoint_every_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, not a finite number above 0")
        if 0 < self.lease_s < 3 * self.poll_s:
            raise ConfigError(f"lease_s is {self.lease_s}, below three times poll_s {self.poll_s}")
