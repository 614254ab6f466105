"""The limits of deliveries to one subscription.

Owns `DeliveryOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime import ConfigError
from millstream.runtime.extending import Backoff, check_fields

__all__ = ["DeliveryOptions"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """Limits of the deliveries to one subscription. Raises `ConfigError` if a value is not valid.

    Values are above 0 unless stated otherwise. A call that gets no answer does not count as an
    attempt.

    Attributes:
        max_batch: events in one delivery call.
        max_batch_bytes: bytes in one delivery call, 1 MiB by default; a single event may be larger.
            At most half of `RuntimeOptions.frame_bytes_max`.
        retries: attempts after the first, before an event is given up; 0 or more.
        handler_timeout_s: seconds that the handlers of one call may take; enforced in the silo
            where they run.
        target_call_s: the agent sizes calls so that they take about this many seconds; at most
            `handler_timeout_s`.
        backoff: the wait before each retry.
        give_up_timeout_s: seconds that the failure handler may take for one event. After that the
            delay is logged, and the handler is called again after a back-off.
        max_unacked: with `ack="manual"`, delivered events of a subscription that are not
            acknowledged.
        ack_timeout_s: with `ack="manual"`, seconds after which unacknowledged events are delivered
            again.
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
                f"target_call_s is {self.target_call_s}; it must be at most handler_timeout_s, "
                f"{self.handler_timeout_s}"
            )
