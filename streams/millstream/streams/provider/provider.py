"""A stream provider in one silo: opened, put together, closed.

Owns `PersistentStreams`, and the life of its adapter. `settings` has its parameters, `owned_queues`
the queues that are read, and `silo_publisher` publishes.

Invariants: a provider object belongs to one silo. Queues are read only between `start` and `stop`,
which lie between `open` and `aclose`. Balancer and adapter are closed once, even after failures.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from millstream.runtime import ConfigError, Grain, StreamError
from millstream.runtime.extending import SiloServices, check_kind
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.options import StreamOptions
from millstream.streams.api.rendezvous import rendezvous_of
from millstream.streams.api.subscribe import check_marks, item_type_of
from millstream.streams.consumer.by_hand import AckCalls, AcksTarget
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.factories import OpenAdapter
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.mapping import QueueBalancer, QueueMapper
from millstream.streams.contracts.message import MessageLimits, OutMessage
from millstream.streams.contracts.queue import (
    BringsMapper,
    EnqueuesAtOnce,
    LimitsMessages,
    QueueAdapter,
    QueueAdapterFactory,
    Retains,
)
from millstream.streams.contracts.shapes import capabilities_of, require_shape
from millstream.streams.contracts.token import Token
from millstream.streams.failures.dead_letters import DeadLetters
from millstream.streams.failures.handler import FailureHandler, GiveUpDecision
from millstream.streams.failures.target import DeadLettersTarget
from millstream.streams.inbox.inbox import inbox_grain_of
from millstream.streams.insight.target import WhyTarget
from millstream.streams.ownership.brought import BroughtMapper
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.mapper_record import MapperRecords
from millstream.streams.ownership.queue_pauses import QueuePauseTarget
from millstream.streams.ownership.store import OwnershipStore
from millstream.streams.publishing.ingest import IngestTarget
from millstream.streams.publishing.outbox import resume_outbox
from millstream.streams.publishing.silo_publisher import SiloPublisher
from millstream.streams.publishing.split import PublishLimits
from millstream.streams.rewinding.adapter_calls import AdapterCalls, refusal_of
from millstream.streams.rewinding.claims import ReaderClaims
from millstream.streams.rewinding.incarnation import Incarnation
from millstream.streams.rewinding.item_columns import Column, columns_of
from millstream.streams.rewinding.retain_target import RetainTarget
from millstream.streams.rewinding.target import OtherSilos, RewindTarget
from millstream.streams.staging.silo import Staging
from millstream.streams.staging.writer import writer_grain_of

from .adapter_host import SiloAdapterHost
from .agents import AgentCalls
from .owned_queues import OwnedQueues
from .queue_resize import QueueResize
from .redrive import Redrive
from .settings import check_cache, settings_of
from .stream_reports import StreamReports
from .target import QueueStats, StreamsTarget

__all__ = ["PersistentStreams"]

log = logging.getLogger("millstream.streams")

BALANCER = "deployment"
"""The entry point of the default balancer."""


class PersistentStreams:
    """The stream provider of a silo: streams that queues carry.

    Give it to a silo by name, one object per silo:

    ```python
    Silo(streams={"default": PersistentStreams(MemoryQueues())})
    ```

    Args:
        queues: the queue provider: a `QueueAdapterFactory` such as `MemoryQueues()`, an async
            function that opens an adapter, or the name of an entry point of `millstream.queues`
            such as `"memory"`.
        mapper: tells the queue of each stream. None: the adapter's mapper, if it is a
            `BringsMapper`, or `HashRingMapper(queues=8)`.
        balancer: decides which silo should read which queue: a `QueueBalancer` for this silo alone,
            or the name of an entry point of `millstream.balancers`. The default is a
            `DeploymentBalancer`, which shares the queues evenly among the running silos.
        options: the options. None: the defaults.
        on_give_up: the fate of given-up events: `"dead_letter"` (also for None), `"skip"`,
            `"pause"`, or a `FailureHandler` that decides about each event.

    Attributes:
        name: name of the provider, after the silo has opened it.
        capabilities: the capabilities of the queue provider.
        dead_letters: the dead letters of the provider, after the silo has opened it; the same as
            `dead_letters(silo, name)`.

    Raises:
        ConfigError: an argument is not valid.
    """

    def __init__(
        self,
        queues: QueueAdapterFactory | OpenAdapter | str,
        /,
        *,
        mapper: QueueMapper | None = None,
        balancer: QueueBalancer | str = BALANCER,
        options: StreamOptions | None = None,
        on_give_up: FailureHandler | GiveUpDecision | None = None,
    ) -> None:
        self.settings = settings_of(queues, mapper, balancer, options, on_give_up)
        self._layout = Layout(self.settings.mapper)
        self.mapper: QueueMapper = self._layout
        self.capabilities = self.settings.list_capabilities()
        self.name = ""
        self.adapter: QueueAdapter
        self.agents: AgentCalls
        self.reports: StreamReports
        self.queue_pauses: QueuePauseTarget
        self.dead_letters: DeadLetters
        self._staging: Staging | None = None
        self._rewinding: RewindTarget | None = None
        self._publisher: SiloPublisher | None = None
        self._reading: OwnedQueues | None = None
        self._opened: QueueAdapter | None = None  # the adapter, until it is closed
        self._resizing: QueueResize | None = None
        self._brought: BroughtMapper | None = None
        self._closing: Callable[[], asyncio.Task[None]] | None = None
        self._closed: asyncio.Task[None] | None = None

    def agreement(self) -> Mapping[str, str]:
        """Return the texts that all silos must have in common: queues and mapper.

        If they differed, a stream would be in two queues.
        """
        return self.settings.agreement()

    def has_bookie(self) -> bool:
        """Return whether the queue provider keeps data of all silos in this one."""
        return self.settings.has_bookie()

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """Return the grain classes that the silo hosts for the provider.

        These are the classes of the adapter, and the grains of subscriptions, inboxes and writers.

        Args:
            name: name of the provider.
        """
        own = rendezvous_of(name), inbox_grain_of(name), writer_grain_of(name)
        return (*own, *self.settings.list_grains())

    @property
    def consumer_silence_s(self) -> float:
        """How long the cluster may hear nothing of a consumer outside, in seconds."""
        return self.settings.options.consumer_silence_s

    # -- life

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Open the adapter, so that this silo's grains may publish; close it if that fails.

        The silo calls this.

        Args:
            services: the services of the silo.
            name: name of the provider.
        """
        if self.name:
            raise ConfigError(
                f"stream provider {name!r}: the object already serves a silo as "
                f"{self.name!r}; create one object per silo"
            )
        self.name = name
        # not a task of the silo, because those have ended when this is needed
        self._closing = lambda: services.new_tasks().start(self._close_anyhow())
        try:
            await self._open_adapter(services, name)
            self._wire(services, name)
        except BaseException:
            await self._close_anyhow()
            self.name = ""  # it serves no silo, so it can be opened again
            raise

    async def _open_adapter(self, services: SiloServices, name: str) -> None:
        factory, store = self.settings.factory, self.settings.options.store
        host = SiloAdapterHost(services, name, self.mapper, self.settings.mapper, store)
        may_be_brought = not self.settings.has_own_mapper
        if not may_be_brought:
            self._layout.adopt(await host.agree())
        self.adapter = self._opened = await factory.open(name, host)
        where = f"the adapter of stream provider {name!r}"
        require_shape(self.adapter, QueueAdapter, where)
        if may_be_brought and isinstance(self.adapter, BringsMapper):
            self._brought = BroughtMapper(name, self.adapter, self._layout)
        elif may_be_brought:
            self._layout.adopt(await host.agree())
        for more in (EnqueuesAtOnce, LimitsMessages, Retains):
            if isinstance(self.adapter, more):
                require_shape(self.adapter, more, where)
        self.capabilities = capabilities_of(factory, f"stream provider {name!r}")
        check_marks(services.grain_types(), name, self.capabilities)
        check_cache(self.settings.options.cache, self.capabilities, name)

    def _wire(self, services: SiloServices, name: str) -> None:
        """Make the parts, and let other silos call them."""
        frame_bytes_max = services.options.frame_bytes_max
        options = self.settings.options.within(frame_bytes_max)
        queue = limits_of(self.adapter)
        limits = options.publish_limits(self.capabilities, queue, frame_bytes_max)
        publisher = self._publisher = SiloPublisher(
            name,
            self.adapter,
            self.mapper,
            limits,
            options.send,
            options.enqueue_wait_s,
            services.clock,
            services.new_tasks(),
            services.budget,
        )
        store = services.store(options.store)
        records = OwnershipStore(store, name)
        self.agents = AgentCalls(
            name,
            services,
            self._layout,
            records,
            options.store,
            options.absent_type_retention_s,
            capabilities=self.capabilities,
        )
        self._reading = OwnedQueues(
            name, self.settings, options, self.adapter, self.capabilities, services, self._layout
        )
        services.extensions.add("streams", self.settings.consumer)
        services.send_parcels(resume_outbox)
        self._resizing = QueueResize(
            name,
            services,
            MapperRecords(store, name, self.settings.mapper),
            self._layout,
            self.adapter,
            publisher.remap,
            self._reading.relaid,
            self._reading.manager.agent,
            options.call_limit_s,
        )
        target = StreamsTarget(
            name, services, self.manager, self._resizing.nudge, self._resizing.resize
        )
        services.targets.add(target, name)
        stirred = self._reading.on_stirred
        self.queue_pauses = QueuePauseTarget(name, records, self._layout.read_queues, stirred)
        services.targets.add(self.queue_pauses, name)
        services.targets.add(AcksTarget(self.manager), name)
        self.ack_calls = AckCalls(services, name, self.agents.owner)
        services.targets.add(IngestTarget(publisher), name)
        self._wire_staging(services, name, options, publisher, limits)
        self._wire_reading(services, name, options)
        self.reports = StreamReports(
            name, services, self.mapper, records, self.manager, store, self._reading.letters
        )
        services.targets.add(WhyTarget(self.reports), name)
        following = self._reading.following
        redriving = Redrive(name, services, following, options.delivery, publisher)
        letters = DeadLettersTarget(self._reading.letters, redriving)
        services.targets.add(letters, name)
        self.dead_letters = DeadLetters(letters)

    def _wire_reading(self, services: SiloServices, name: str, options: StreamOptions) -> None:
        """Let programs outside read queues, and retain unread messages."""

        def columns(namespace: str) -> list[Column]:
            return columns_of(item_type_of(services.grain_types(), name, namespace))

        store = services.store(options.store)
        calls = AdapterCalls(
            name,
            self.adapter,
            self._layout.read_queues,
            services.new_tasks(),
            options.call_limit_s,
            Incarnation(store, name, services.new_id),
            refusal_of(name, self.capabilities),
        )
        self._rewinding = RewindTarget(calls, columns, OtherSilos(services, name))
        services.targets.add(self._rewinding, name)
        services.targets.add(RetainTarget(calls, ReaderClaims(store, name)), name)

    def _wire_staging(
        self,
        services: SiloServices,
        name: str,
        options: StreamOptions,
        publisher: SiloPublisher,
        limits: PublishLimits,
    ) -> None:
        refusal = ""
        if Capability.DEDUP not in self.capabilities:
            refusal = (
                f"stream provider {name!r} has no DEDUP, so staged messages might be stored "
                "twice: write without staging"
            )
        self._staging = Staging(
            name,
            services,
            services.store(options.store),
            publisher,
            self.mapper.queue_for,
            limits,
            options.staged_bytes_max,
            refusal,
        )
        services.targets.add(self._staging.target, name)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Begin to read queues, if this silo may own queues; `abort` undoes a failure.

        The silo calls this.

        Args:
            services: the services of the silo.
            name: name of the provider.
        """
        if self._staging is not None:
            self._staging.start()
        row = services.row
        if row is not None and row.can_own_queues:
            await self._in_silo().start(services)
        if self._brought is not None and self._publisher is not None:
            self._brought.start(services.tasks, self._publisher.remap, self._in_silo().relaid)
        elif Capability.SEALED in self.capabilities and self._resizing is not None:
            self._resizing.start()

    async def resize(self, *, queues: int) -> None:
        """Change the number of queues while events are in them; the same as
        `resize(silo, name, queues=...)`.

        Returns when publishers of this silo use the new queues; those of other silos follow within
        a second. Events in the former queues are delivered first, stream by stream, so no stream is
        reordered.

        Args:
            queues: the new number, 1 to 65,536.

        Raises:
            ConfigError: the adapter has no `SEALED`, the mapper has no `with_queues`, or an earlier
                change is not finished.
            StorageError: the store failed.
        """
        self._in_silo()
        assert self._resizing is not None
        await self._resizing.resize(queues)

    async def stop(self) -> None:
        """Hand the queues over; running turns may still publish. The silo calls this."""
        if self._brought is not None:
            self._brought.close()
        if self._resizing is not None:
            self._resizing.close()
        if self._staging is not None:
            await self._staging.stop()
        if self._reading is not None:
            await self._reading.stop()

    def abort(self) -> None:
        """Stop without a hand-over; a task closes balancer and adapter. The silo calls this."""
        if self._brought is not None:
            self._brought.close()
        if self._resizing is not None:
            self._resizing.close()
        is_balanced = self._reading is not None and self._reading.is_balanced
        if self._reading is not None:
            self._reading.abort()
        if self._staging is not None:
            self._staging.abort()
        if self._closing is not None and (self._opened is not None or is_balanced):
            self._closed = self._closing()

    async def aclose(self) -> None:
        """End publishing and close the adapter; a repeated call does no harm. The silo calls
        this."""
        adapter, self._opened = self._opened, None
        if self._publisher is not None:
            self._publisher.close(f"stream provider {self.name!r}: the silo has stopped")
        if self._reading is not None:
            await self._reading.aclose()
        if self._rewinding is not None:
            await self._rewinding.aclose()
        close = getattr(adapter, "aclose", None)
        if inspect.iscoroutinefunction(close):  # a malformed adapter may have no such method
            await close()

    async def _close_anyhow(self) -> None:
        """Close balancer and adapter; log their errors, which would hide the original one."""
        for part, close in (("balancer", self._close_balancer), ("adapter", self.aclose)):
            try:
                await close()
            except Exception:
                log.exception("%s: the %s could not be closed", self.name, part)

    async def _close_balancer(self) -> None:
        if self._reading is not None:
            await self._reading.close_balancer()

    # -- questions of the silo that has opened it

    def _in_silo(self) -> OwnedQueues:
        assert self._reading is not None, f"stream provider {self.name!r} is not open"
        return self._reading

    @property
    def manager(self) -> QueueManager[PullingAgent]:
        """The manager of the queues that this silo reads; for the runtime's own use."""
        return self._in_silo().manager

    @property
    def staging(self) -> Staging:
        """The staged writes of programs outside; for the runtime's own use."""
        assert self._staging is not None, f"stream provider {self.name!r} is not open"
        return self._staging

    def stats(self) -> list[QueueStats]:
        """Return the figures of each queue that this silo reads; backlogs are from the last
        `measure`."""
        return self._in_silo().stats()

    async def measure(self) -> None:
        """Ask the adapter for the backlogs of these queues, if its receivers are `Measurable`."""
        await self._in_silo().measure()

    # -- publishing

    def _publishing(self) -> SiloPublisher:
        assert self._publisher is not None, f"stream provider {self.name!r} is not open"
        return self._publisher

    def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Coroutine[Any, Any, Token | None]:
        """Store events of one stream, in order: all of them, or a prefix. `Stream.publish` calls
        this.

        Args:
            stream: the stream.
            bodies: the encoded events.
            headers: texts that are delivered with each event.

        Raises:
            ValueError: an event is too large.
            QueueFull: the queue had no room for `enqueue_wait_s`.
            QueueUnavailable: the queue could not be reached for `enqueue_wait_s`.
            PublishUnknown: it is not known whether the events are stored.
        """
        return self._publishing().publish(stream, bodies, headers)

    def admit(self, message: OutMessage, /) -> str:
        """Check a message for an outbox; return a name that no other call returns.

        Args:
            message: the message.

        Raises:
            ConfigError: the provider would store repeated messages twice.
            ValueError: the message is too large.
            StreamError: the mapper has no queue for its stream.
        """
        if Capability.DEDUP not in self.capabilities:
            raise ConfigError(
                f"stream provider {self.name!r} has no DEDUP, so events that publish_with sends "
                "again would be stored twice: use a provider with DEDUP"
            )
        return self._publishing().admit(message)

    def check(self, message: OutMessage, /) -> None:
        """Raise an error for a message that no queue will ever accept.

        Args:
            message: the message.

        Raises:
            ValueError: the message is too large.
            StreamError: the mapper has no queue for its stream.
        """
        self._publishing().check(message)

    async def bury(self, message: OutMessage, why: str, /) -> None:
        """Store an event of an outbox as a dead letter; a repeated call does no harm.

        Args:
            message: the event.
            why: the reason.

        Raises:
            StorageError: the store failed.
        """
        await self._in_silo().bury(message, why)

    def store(
        self, messages: Sequence[OutMessage], /
    ) -> Coroutine[Any, Any, list[Token | StreamError | None]]:
        """Store messages in the queues of their streams.

        Args:
            messages: the messages.

        Returns:
            The outcome of each message, in the order of the messages: its token; None, if it is
            stored and its token is unknown; or the error, which is not raised.

        Raises:
            ValueError: a message is too large. No message is stored.
        """
        return self._publishing().store(messages)


def limits_of(adapter: QueueAdapter) -> MessageLimits:
    """Return the limits of the messages that an adapter's queues accept.

    Raises ConfigError if the adapter's `message_limits` have another type.
    """
    if not isinstance(adapter, LimitsMessages):
        return MessageLimits()
    check_kind(f"{type(adapter).__name__}.message_limits", adapter.message_limits, MessageLimits)
    return adapter.message_limits
