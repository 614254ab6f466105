"""The options of a stream provider, put together from those of its parts.

The parts' own options are in `cache`, `flow`, `delivery` and `ownership`.
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
    """How one provider reads, caches, delivers, publishes and hands over:
    `PersistentStreams(options=...)`.

    Raises `ConfigError` if a value is not valid. Times are in seconds. Values are above 0 unless
    stated otherwise. `publish_bytes_max`, `message_bytes_max`, `send.batch_bytes_max`,
    `flow.read_bytes_max` and `delivery.max_batch_bytes` are limited to half of
    `RuntimeOptions.frame_bytes_max`. So every silo can read and deliver every accepted message.
    Give all silos the same `frame_bytes_max`.

    Attributes:
        cache: the cache of one queue.
        flow: reads and acknowledgements.
        delivery: deliveries to one subscription.
        ownership: acquiring queues and handing them over.
        store: name of the silo's store that keeps queue records, subscriptions and dead letters.
        calls_out_max: delivery calls that one agent may have in flight.
        read_wait_s: how long a read waits for the first message, if the provider has `WAKEUP`.
        poll_first_s: the first wait between reads of a provider without `WAKEUP`; doubles up to
            `poll_ceiling_s`.
        poll_ceiling_s: the longest such wait; at least `poll_first_s`.
        read_retry_s: the wait after a failed call of a receiver; doubles with each failure in a
            row, up to `read_retry_ceiling_s`.
        read_retry_ceiling_s: the longest such wait; at least `read_retry_s`.
        start_limit_s: how long a receiver may take to start, because a provider may have to recover
            then.
        read_limit_s: how long a read may take beyond its wait. After that its receiver is replaced.
        call_limit_s: how long any other call of a receiver may take. After that it is replaced.
        enqueue_wait_s: how long a publish retries at a queue that is full or unavailable, before
            `QueueFull` or `QueueUnavailable`; 0 or more.
        send: the messages that are enqueued in one call, and those that wait.
        publish_items_max: items that `publish_many` puts into one message; one, if the provider has
            no `ORDERED`.
        publish_bytes_max: bytes that `publish_many` puts into one message; 1 MiB by default.
        message_bytes_max: bytes of items and headers in one message, 32 MiB by default; a larger
            one is refused.
        staged_bytes_max: bytes that one writer outside the cluster may have staged, until they are
            delivered and removed; 1 GiB by default.
        stream_idle_s: an agent forgets a stream without events after this time.
        consumer_silence_s: how long the cluster may hear nothing of a program that consumes a
            stream. After that an unnamed subscription ends, and a named one gets no deliveries.
        standstill_s: how long a subscription, a stream or the reading of a queue may have work
            without progress, before the log and `why` report it with the reason.
        reconcile_s: how often an agent compares the subscriptions of one of its streams with the
            stored ones.
        absent_type_retention_s: how long events wait for a grain type that no silo hosts any more.
            After that the subscriptions of the type are forgotten. Implicit ones are also forgotten
            when the silo that hosted the type restarts without it.
    """

    cache: CacheLimits = field(default_factory=CacheLimits)
    flow: FlowOptions = field(default_factory=FlowOptions)
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    ownership: OwnershipOptions = field(default_factory=OwnershipOptions)
    store: str = "default"
    calls_out_max: int = 256
    read_wait_s: float = 5.0
    poll_first_s: float = 0.01
    poll_ceiling_s: float = 0.5
    read_retry_s: float = 0.5
    read_retry_ceiling_s: float = 10.0
    start_limit_s: float = 120.0
    read_limit_s: float = 10.0
    call_limit_s: float = 10.0
    enqueue_wait_s: float = field(default=5.0, metadata={"min": 0})
    send: SendLimits = field(default_factory=SendLimits)
    publish_items_max: int = 1000
    publish_bytes_max: int = 1 << 20
    message_bytes_max: int = 32 << 20
    staged_bytes_max: int = 1 << 30
    stream_idle_s: float = 1800.0
    consumer_silence_s: float = 60.0

    standstill_s: float = 30.0

    reconcile_s: float = 5.0

    absent_type_retention_s: float = 86_400.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.poll_ceiling_s < self.poll_first_s:
            raise ConfigError(
                f"poll_ceiling_s is {self.poll_ceiling_s}; it must be at least poll_first_s, "
                f"{self.poll_first_s}"
            )
        if self.read_retry_ceiling_s < self.read_retry_s:
            raise ConfigError(
                f"read_retry_ceiling_s is {self.read_retry_ceiling_s}; it must be at least "
                f"read_retry_s, {self.read_retry_s}"
            )

    def publish_limits(
        self, capabilities: Collection[Capability], queue: MessageLimits, frame_bytes_max: int
    ) -> PublishLimits:
        """Return the limits of one published message; the provider calls this.

        Without `ORDERED` a message has one item, so that each item is acknowledged or released
        alone.

        Args:
            capabilities: the capabilities of the provider.
            queue: the largest message that the adapter's queues accept.
            frame_bytes_max: the silo's largest frame.
        """
        items_max = self.publish_items_max if Capability.ORDERED in capabilities else 1
        limits = PublishLimits(items_max, self.publish_bytes_max, self.message_bytes_max, queue)
        return limits.within(frame_bytes_max)

    def within(self, frame_bytes_max: int) -> StreamOptions:
        """Return the options for a frame size; the provider calls this.

        A message may fill half of a frame, and the other half is for the data around it. So no silo
        accepts a message that another one could not read or deliver.

        Args:
            frame_bytes_max: the silo's largest frame.
        """
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
