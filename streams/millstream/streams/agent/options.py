"""Frozen options of a stream provider, by part.

Owns: how the parts' options are put together. The parts' own: `cache`, `flow`, `delivery`,
`ownership`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import MessageLimits
from millstream.streams.ownership.options import OwnershipOptions
from millstream.streams.publishing.split import PublishLimits, SendLimits

from .cache.limits import CacheLimits
from .delivery.options import DeliveryOptions
from .flow import FlowOptions

__all__ = ["StreamOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How one provider reads, caches, delivers and hands over. Raises ConfigError."""

    cache: CacheLimits = field(default_factory=CacheLimits)
    flow: FlowOptions = field(default_factory=FlowOptions)
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    ownership: OwnershipOptions = field(default_factory=OwnershipOptions)
    store: str = "default"
    """The silo's store that keeps queue records, subscriptions and dead letters."""
    calls_out_max: int = 256
    """Delivery calls that one agent has out at a time."""
    read_wait_s: float = 5.0
    """How long a read waits for the first message, where the provider can wake the reader."""
    poll_first_s: float = 0.01
    """First wait of a provider that has to be polled; doubles up to `poll_ceiling_s`."""
    poll_ceiling_s: float = 0.5
    read_retry_s: float = 0.5
    """Wait after a call of the adapter that failed; doubles up to `read_retry_ceiling_s`."""
    read_retry_ceiling_s: float = 10.0
    start_limit_s: float = 120.0
    """How long a receiver may take to start: a provider may have to recover there."""
    read_limit_s: float = 10.0
    """How long a read may take beyond its wait; then its receiver is left behind."""
    call_limit_s: float = 10.0
    """How long any other call of a receiver may take; then it is left behind."""
    enqueue_wait_s: float = field(default=5.0, metadata={"min": 0})
    """How long a publish tries at a queue that is full or away, before QueueFull or its like."""
    send: SendLimits = field(default_factory=SendLimits)
    """What is enqueued at a time, and what may wait for it."""
    publish_items_max: int = 1000
    """Items that `publish_many` puts into one message."""
    publish_bytes_max: int = 1 << 20
    """Bytes that `publish_many` puts into one message."""
    message_bytes_max: int = 32 << 20
    """Bytes of items and headers in one message; a larger one is refused."""
    staged_bytes_max: int = 1 << 30
    """Bytes that one writer outside has staged, until they are delivered and swept."""
    stream_idle_s: float = 1800.0
    """A stream without events for this long is forgotten by its agent."""
    consumer_silence_s: float = 60.0
    """How long nothing may be heard of a program that consumes a stream; then its subscription
    ends, if it has no name, and is not delivered to, if it has one."""

    standstill_s: float = 30.0
    """How long a subscription, a stream or the reading of a queue may have work and not move,
    before the log and `why` say so, with the reason."""

    reconcile_s: float = 5.0
    """How often an agent compares the subscriptions of one of its streams with what is stored."""

    absent_type_retention_s: float = 86_400.0
    """How long events wait for a grain type that no silo hosts any more: its
    subscriptions are forgotten then, implicit ones also once the silo that hosted it came back
    without it."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.poll_ceiling_s < self.poll_first_s:
            raise ConfigError(
                f"poll_ceiling_s is {self.poll_ceiling_s}, below poll_first_s {self.poll_first_s}"
            )
        if self.read_retry_ceiling_s < self.read_retry_s:
            raise ConfigError(
                f"read_retry_ceiling_s is {self.read_retry_ceiling_s}, below read_retry_s "
                f"{self.read_retry_s}"
            )

    def publish_limits(
        self, capabilities: Collection[Capability], queue: MessageLimits, frame_bytes_max: int
    ) -> PublishLimits:
        """What one published message may have; without order one item, which is done, or given
        back, by itself. `queue`: what the adapter's queues accept."""
        items_max = self.publish_items_max if Capability.ORDERED in capabilities else 1
        limits = PublishLimits(items_max, self.publish_bytes_max, self.message_bytes_max, queue)
        return limits.within(frame_bytes_max)

    def within(self, frame_bytes_max: int) -> StreamOptions:
        """The same where frames are smaller: half of one for what is sent, half for what goes
        with it, so that no message is accepted that could not be read or delivered elsewhere."""
        limit = max(1, frame_bytes_max // 2)
        return replace(
            self,
            publish_bytes_max=min(self.publish_bytes_max, limit),
            message_bytes_max=min(self.message_bytes_max, limit),
            send=replace(self.send, batch_bytes_max=min(self.send.batch_bytes_max, limit)),
            flow=replace(self.flow, read_bytes_max=min(self.flow.read_bytes_max, limit)),
            delivery=replace(
                self.delivery, max_batch_bytes=min(self.delivery.max_batch_bytes, limit)
            ),
        )
