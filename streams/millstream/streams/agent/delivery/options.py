"""Limits of what is delivered to one subscription.

Owns: `DeliveryOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime import ConfigError
from millstream.runtime.extending import Backoff, check_fields

__all__ = ["DeliveryOptions"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """Limits of the deliveries of one subscription. Raises ConfigError.

    A call has 1..`max_batch` items and `max_batch_bytes` (one item may be larger), and is sized so
    that it takes about `target_call_s`. An item is tried `1 + retries` times.
    `handler_timeout_s`: how long the handlers of one call may take; the consumer's side ends them.
    A call that gets no answer is no attempt.
    `give_up_timeout_s`: how long a failure handler may think; then it is asked again.
    `max_unacked`: events that a subscription which is acknowledged by hand may have, delivered and
    not acknowledged; `ack_timeout_s`: after that they come again.
    """

    max_batch: int = 256
    max_batch_bytes: int = MIB
    retries: int = field(default=5, metadata={"min": 0})
    handler_timeout_s: float = 60.0
    target_call_s: float = 0.25
    backoff: Backoff = field(default_factory=Backoff)
    give_up_timeout_s: float = 60.0
    max_unacked: int = 1000
    ack_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.target_call_s > self.handler_timeout_s:
            raise ConfigError(
                f"target_call_s is {self.target_call_s}, above handler_timeout_s"
                f" {self.handler_timeout_s}"
            )
