"""Records the events of the stream providers of a simulated cluster, for the checkers.

Owns: `record_providers`, its wrappers of adapters and consumers, and the names of items. Not: the
verdict (`millstream.runtime.testing`). Invariants: programs and grains need no change for it. An
item gets its name when it enters its queue, in a header that it keeps, and a repeated message of a
producer keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from millstream.runtime import EnqueueFailed, Grain
from millstream.runtime.testing import (
    DeadLettered,
    Delivered,
    History,
    Published,
    QueueAcquired,
    SiloDeclaredDead,
    Simulation,
    Subscribed,
    Unsubscribed,
)

from .api.implicit import implicit_in
from .api.stream import parse_subscription_id
from .api.subscription_rows import SubscriptionRow
from .consumer.batch import WireBatch
from .consumer.extension import ConsumerExtension
from .consumer.run import HandlerRun
from .contracts.host import AdapterHost
from .contracts.identity import QueueId, StreamId
from .contracts.item import Item
from .contracts.message import OutMessage
from .contracts.queue import LimitsMessages, QueueAdapter, QueueAdapterFactory, QueueReceiver
from .contracts.token import Token
from .failures.handler import DeliveryFailure
from .provider.provider import PersistentStreams

__all__ = ["record_providers"]

HEADER = "recorded"
NOTE_BYTES_MAX = 2048
"""Largest size of the header that names a message, with the name of its producer."""
MAY_HAVE = ("mapper", "reader", "seal")  # of an adapter; `enqueue_at_once` is recorded


def record_providers(
    simulation: Simulation, streams: Mapping[str, Callable[[], PersistentStreams]], /
) -> dict[str, Callable[[], PersistentStreams]]:
    """Return the same makers of stream providers, with recording, for `SimCluster(streams=...)`.

    The history of the simulation then has the published events, the events that handlers of grains
    have processed, given-up events, subscriptions, and owners of queues. `check_all` judges them.

    ```python
    makers = record_providers(simulation, {"default": make_streams})
    cluster = SimCluster(simulation, streams=makers)
    ```

    Deliveries by a dead silo, or by a former owner of a queue, count as seen, and their order is
    not judged. Order is not judged either if the provider does not promise it. Loss is not judged
    for subscriptions with a filter (`where`), for ended ones, and for those of programs outside the
    cluster. Each message gets a header, `recorded`.

    Args:
        simulation: the simulation whose history is written.
        streams: makers of stream providers, by name.
    """
    recording = Recording(simulation.history)
    return {name: recording.over(make) for name, make in streams.items()}


class Recording:
    """The records of one run."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._names = 0
        self._subscribed: set[tuple[str, str]] = set()
        self._epochs: dict[QueueId, int] = {}
        self._dead: set[str] = set()
        self._looked = 0
        own = {"recording": self}
        runs = type("RecordedRun", (RecordedRun,), own)
        self._consumer = type("RecordedConsumer", (RecordedConsumer,), {**own, "runs": runs})

    def over(self, make: Callable[[], PersistentStreams]) -> Callable[[], PersistentStreams]:
        """Wrap a maker of providers, so that its providers are recorded."""

        def make_provider() -> PersistentStreams:
            streams = make()
            settings, tell = streams.settings, streams.settings.gave_up

            def gave_up(failure: DeliveryFailure, outcome: str) -> None:
                tell(failure, outcome)
                self.gave_up(failure, outcome)

            retention_s = settings.options.absent_type_retention_s
            factory = RecordedQueues(settings.factory, self, retention_s)
            streams.settings = replace(
                settings, factory=factory, consumer=self._consumer, gave_up=gave_up
            )
            return streams

        return make_provider

    # -- queues

    def name(self, messages: Sequence[OutMessage]) -> list[OutMessage]:
        """The messages, each with a name."""
        named = msgspec.structs.replace
        return [named(one, headers={**one.headers, HEADER: self._name(one)}) for one in messages]

    def _name(self, message: OutMessage) -> str:
        if message.mark is not None:
            return f"{message.mark.producer}/{message.mark.seq}"
        self._names += 1
        return f"{self._names}"

    def on_published(self, messages: Sequence[OutMessage], started_s: float) -> None:
        """Record that a queue has accepted these messages."""
        for one in messages:
            for index in range(len(one.items)):
                item = f"{one.headers[HEADER]}/{index}"
                self._history.record(Published(str(one.stream), item, started_s))

    def on_acquired(self, queue: QueueId, silo: str, epoch: int) -> None:
        """Record that a silo reads a queue."""
        self._epochs[queue] = max(epoch, self._epochs.get(queue, 0))
        self._history.record(QueueAcquired(queue, silo, epoch))

    # -- subscriptions

    def on_subscribed(self, stream: str, subscription: str) -> None:
        """Record that a subscription exists."""
        if (stream, subscription) not in self._subscribed:
            self._subscribed.add((stream, subscription))
            self._history.record(Subscribed(stream, subscription))

    def on_ended(self, stream: str, subscription: str) -> None:
        """Record that a subscription has ended, so it gets no further events."""
        self._history.record(Unsubscribed(stream, subscription))

    def on_handled(self, grain: Grain | None, batch: WireBatch, items: Sequence[Item]) -> None:
        """Record that a handler has processed some items of a batch."""
        is_known = not batch.has_positions or self._may_know(grain, batch)
        stream = str(StreamId(batch.namespace, batch.key))
        for item in items:
            seen = name_of(item.headers, item.token)
            self._history.record(
                Delivered(stream, batch.subscription, tuple(item.token), seen, is_known)
            )

    def _may_know(self, grain: Grain | None, batch: WireBatch) -> bool:
        """Whether this may be a redelivery.

        It may be one if it is marked as one, or if a crash or a newer owner is the cause.
        """
        is_told = batch.redelivered or batch.attempt > 1 or batch.redriven or batch.rewinds
        is_late = batch.epoch < self._epochs.get(batch.queue, 0)
        return is_told or is_late or grain is None or self._is_dead(grain.context.silo)

    def _is_dead(self, silo: str) -> bool:
        events = self._history.events
        for _, event in events[self._looked :]:
            if isinstance(event, SiloDeclaredDead):
                self._dead.add(event.silo)
        self._looked = len(events)
        return silo in self._dead

    def gave_up(self, failure: DeliveryFailure, outcome: str) -> None:
        """Record that an event was given up."""
        if outcome != "pause":  # a paused event is delivered again
            item = name_of(failure.headers, failure.token)
            stream = str(failure.stream)
            self._history.record(DeadLettered(stream, failure.subscription, item))


def name_of(headers: Mapping[str, str] | None, token: Token) -> str:
    """Return an item's name. An item that was stored before the run is named by its token."""
    name = (headers or {}).get(HEADER)
    return f"{token}" if name is None else f"{name}/{token.index}"


class RecordedRun(HandlerRun):
    """One delivery; records the processed events before they are committed."""

    recording: ClassVar[Recording]

    async def upto(self, end: int, *, is_again: bool = False) -> tuple[int, bytes]:
        done, error = await super().upto(end, is_again=is_again)
        if not is_again:
            self.recording.on_handled(self._grain.grain, self.batch, self.items[:done])
        return done, error


class RecordedConsumer(ConsumerExtension):
    """The receiving end of deliveries; records the begin and the end of subscriptions."""

    recording: ClassVar[Recording]

    def on_added(self, row: SubscriptionRow) -> None:
        if not row.where:
            _, stream = parse_subscription_id(row.id)
            self.recording.on_subscribed(str(stream), row.id)

    def left(self, subscription: str) -> None:
        super().left(subscription)
        _, stream = parse_subscription_id(subscription)
        self.recording.on_ended(str(stream), subscription)


class RecordedQueues:
    """A factory whose adapters are recorded."""

    def __init__(
        self, factory: QueueAdapterFactory, recording: Recording, retention_s: float
    ) -> None:
        self._factory = factory
        self._recording = recording
        self._retention_s = retention_s
        self.grains: Sequence[type[Grain]] = getattr(factory, "grains", ())

    @property
    def capabilities(self) -> Any:
        """The capabilities of the factory."""
        return self._factory.capabilities

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        """Open a recorded adapter of one silo."""
        adapter = await self._factory.open(provider, host)
        return RecordedAdapter(adapter, self._recording, provider, host, self._retention_s)


class RecordedAdapter:
    """An adapter; records the contents and the owners of its queues."""

    def __init__(
        self,
        adapter: QueueAdapter,
        recording: Recording,
        provider: str,
        host: AdapterHost,
        retention_s: float,
    ) -> None:
        self._adapter = adapter
        self._recording = recording
        self._provider = provider
        self._host = host
        self._retention_s = retention_s
        for name in MAY_HAVE:
            if hasattr(adapter, name):
                setattr(self, name, getattr(adapter, name))
        if isinstance(adapter, LimitsMessages):  # the added header needs room
            most = adapter.message_limits
            self.message_limits = replace(most, bytes_max=max(1, most.bytes_max - NOTE_BYTES_MAX))
        if hasattr(adapter, "enqueue_at_once"):
            self.enqueue_at_once = self._enqueue_at_once

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)  # methods that the adapter's own grains call

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages, and record the accepted ones."""
        started_s = self._begin(messages)
        sent = self._recording.name(messages)
        try:
            tokens = await self._adapter.enqueue(queue, sent, mapper_epoch)
        except EnqueueFailed as failed:
            self._recording.on_published(sent[: len(failed.accepted)], started_s)
            raise
        self._recording.on_published(sent, started_s)
        return tokens

    def _enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None] | None:
        started_s = self._begin(messages)
        sent = self._recording.name(messages)
        store: Any = self._adapter
        tokens: Sequence[Token | None] | None = store.enqueue_at_once(queue, sent, mapper_epoch)
        if tokens is not None:
            self._recording.on_published(sent, started_s)
        return tokens

    def _begin(self, messages: Sequence[OutMessage]) -> float:
        """Record the implicit subscriptions that are owed these messages; returns the time."""
        view, wall_s = self._host.members.view, self._host.clock.wall_s()
        known = implicit_in(view, self._provider, wall_s, self._retention_s)
        for stream in dict.fromkeys(one.stream for one in messages):
            for subscription, one in known.of(stream).items():
                if not one.where:
                    self._recording.on_subscribed(str(stream), subscription)
        return self._host.clock.now()

    def receiver(self, queue: QueueId, epoch: int, /) -> QueueReceiver:
        """Return the owner's receiver, and record the owner."""
        self._recording.on_acquired(queue, self._host.silo, epoch)
        return self._adapter.receiver(queue, epoch)

    async def aclose(self) -> None:
        """Close the adapter."""
        await self._adapter.aclose()
