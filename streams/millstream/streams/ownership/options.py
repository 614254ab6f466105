"""Options of ownership: times of acquiring and handing over queues."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["OwnershipOptions"]


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    """Times of acquiring queues and handing them over. Raises `ConfigError` if a value is not
    valid.

    All values are seconds.

    Attributes:
        max_handoff_s: how long a former owner waits for its deliveries to end, before it hands a
            queue over. 0 or more. With 0 it waits for none, and each stream waits only for its own
            delivery.
        poll_s: how often to read the record of a wanted queue that another silo owns, and the
            records of all own queues. Above 0.
        force_after_s: how much longer than `max_handoff_s` a new owner waits, before it takes a
            queue over. 0 or more.
        lease_s: the owner must renew its record within this time, or it loses the queue. 0: no
            lease; otherwise at least three times `poll_s`. `LeaseBalancer` needs a lease.
        checkpoint_every_s: how often an owner stores its progress in the queue record, if the
            provider keeps no position or a subscription is lagging; not more often than `poll_s`.
            Above 0. After a crash of the owner, events delivered since the last time are delivered
            again.
    """

    max_handoff_s: float = field(default=3.0, metadata={"min": 0})
    poll_s: float = 1.0
    force_after_s: float = field(default=2.0, metadata={"min": 0})
    lease_s: float = field(default=0.0, metadata={"min": 0})
    checkpoint_every_s: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if 0 < self.lease_s < 3 * self.poll_s:
            raise ConfigError(
                f"lease_s is {self.lease_s}; it must be 0, or at least three times poll_s, "
                f"{self.poll_s}"
            )
