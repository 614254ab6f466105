"""A stream provider in one silo: wires adapter, mapper, balancer, agents and targets.

Owns: `PersistentStreams`, its beginning and end, and publishing. Not: what the parts do.
Invariants: a provider object belongs to one silo; agents run only between `start` and `stop`,
which lie between `open` and `aclose`; a publish returns when the adapter has accepted it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from millstream.runtime import (
    ConfigError,
    Grain,
    MillstreamError,
    QueueFull,
    QueueUnavailable,
    Status,
    TableView,
)
from millstream.runtime.extending import SiloServices, SystemTarget, Tasks
from millstream.streams.agent.dead_letters import DeadLetters, FailureHandler, KeepDeadLetters
from millstream.streams.agent.delivery import DeliveryOptions
from millstream.streams.agent.options import StreamOptions
from millstream.streams.api.declared import Declared, DeclaredSet, declared_in
from millstream.streams.api.ingest import IngestTarget
from millstream.streams.api.registry import StreamRegistry, SubscriptionRow
from millstream.streams.api.split import check_size, split_items
from millstream.streams.api.subscribe import check_marks
from millstream.streams.consumer.extension import Consumer
from millstream.streams.contracts.factories import OpenAdapter, balancer_of, factory_of
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.queue import (
    Capability,
    OutMessage,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueMapper,
)
from millstream.streams.contracts.shapes import capabilities_of, require_shape
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.decision import OwnershipStore, QueueState
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.mapper import HashRingMapper

__all__ = ["PersistentStreams", "QueueStats", "SiloStats", "StreamsTarget"]

log = logging.getLogger("millstream.streams")

ATTACH_TRIES_MAX = 100
ATTACH_RETRY_S = 0.05
FULL_RETRY_S = 0.02


class QueueStats(msgspec.Struct, array_like=True, frozen=True):
    """One queue as its owner sees it, for people and tools.

    `backlog`: events not read yet, 0 where the provider cannot tell; `cached`: read, and held
    because of some subscription; `lag_s`: age of the oldest of these.
    """

    queue: str
    epoch: int
    backlog: int
    cached: int
    read: int
    delivered: int
    given_up: int
    unheard: int
    streams: int
    calls_out: int
    lag_s: float
    is_reading: bool


class SiloStats(msgspec.Struct, array_like=True, frozen=True):
    """One silo, for people and tools."""

    silo: str
    name: str
    activations: int
    queues: list[QueueStats]


class StreamsTarget(SystemTarget):
    """What silos ask each other about one provider (`$streams/<provider>`)."""

    target_name = "$streams"

    def __init__(self, provider: PersistentStreams) -> None:
        self._provider = provider

    async def attach(self, queue: str, namespace: str, key: str, row: SubscriptionRow) -> bool:
        """Attach a subscription to the agent of a queue; False: no agent of it is here."""
        agent = self._provider.manager.agent(queue)
        if agent is None:
            return False
        agent.subscribers.attach(StreamId(namespace, key), row)
        return True

    async def detach(self, queue: str, namespace: str, key: str, subscription: str) -> bool:
        """Forget a subscription; False: no agent of the queue is here."""
        agent = self._provider.manager.agent(queue)
        if agent is None:
            return False
        agent.subscribers.detach(StreamId(namespace, key), subscription)
        return True

    async def freed(self, queue: str) -> None:
        """A queue has no owner any more."""
        self._provider.manager.wake(queue)

    async def silo_stats(self) -> SiloStats:
        """This silo and the queues that it reads."""
        services = self._provider.services
        await self._provider.measure()
        stats = self._provider.stats()
        return SiloStats(services.address, services.name, services.activation_count, stats)

    async def cluster_stats(self) -> list[SiloStats]:
        """Every active silo that answers, by name."""
        services = self._provider.services
        target = f"{self.target_name}/{self._provider.name}"
        answers = await asyncio.gather(
            *(
                services.targets.call(silo, target, StreamsTarget.silo_stats)
                for silo in services.members.active()
            ),
            return_exceptions=True,
        )
        found = [answer for answer in answers if isinstance(answer, SiloStats)]
        return sorted(found, key=lambda stats: stats.name)


class PersistentStreams:
    """Streams carried by queues: `Silo(streams={"default": PersistentStreams(MemoryQueues())})`.

    Args:
        queues: the queue provider: an adapter factory, such as `MemoryQueues()`; an async
            function that opens an adapter; or the name of an entry point of `millstream.queues`,
            such as "memory".
        mapper: which queue carries a stream; default: a hash ring of 8 queues.
        balancer: which silo should read which queue; it is for one silo, so pass a fresh one, or
            the name of an entry point of `millstream.balancers`, such as "deployment".
        on_give_up: what becomes of events that were given up; default: dead letters.
    """

    def __init__(
        self,
        queues: QueueAdapterFactory | OpenAdapter | str,
        /,
        *,
        mapper: QueueMapper | None = None,
        balancer: QueueBalancer | str,
        options: StreamOptions | None = None,
        on_give_up: FailureHandler | None = None,
    ) -> None:
        self._factory = factory_of(queues)
        self._balancer = balancer_of(balancer)
        self.mapper: QueueMapper = mapper or HashRingMapper(queues=8)
        require_shape(self.mapper, QueueMapper, "PersistentStreams(mapper=...)")
        self.options = options or StreamOptions()
        self.on_give_up: FailureHandler = on_give_up or KeepDeadLetters()
        self.capabilities = capabilities_of(self._factory, "PersistentStreams(queues)")
        brought: Sequence[type[Grain]] = getattr(self._factory, "grains", ())
        self.grains: Sequence[type[Grain]] = (StreamRegistry, *brought)
        self.name = ""
        self.services: SiloServices
        self.adapter: QueueAdapter
        self.manager: QueueManager
        self.dead_letters: DeadLetters
        self.declared = DeclaredSet()
        self._giving_up: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] | None = None
        self._opened: QueueAdapter | None = None  # the adapter, until it is closed
        self._is_balanced = False  # the balancer was started, and is not closed
        self._closing: asyncio.Task[None] | None = None
        self._ownership: OwnershipStore

    # -- life

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Open the adapter, so that this silo's grains may publish; closes it if that fails."""
        if self.name:
            raise ConfigError(
                f"stream provider {name!r}: the object already serves a silo as "
                f"{self.name!r}; make one per silo"
            )
        self.name, self.services = name, services
        self.options = self.options.within(services.options.frame_bytes_max)
        try:
            await self._open(services, name)
        except BaseException:
            await self._close_anyhow()
            self.name = ""  # it serves nobody, so it may be tried again
            raise

    async def _open(self, services: SiloServices, name: str) -> None:
        self._ownership = OwnershipStore(services.store(self.options.store), name)
        self.dead_letters = DeadLetters(services.store(self.options.store), name)
        check_marks(services.grain_types(), name, self.capabilities)
        self.adapter = self._opened = await self._factory.open(
            name, ProviderHost(services, self.mapper)
        )
        require_shape(self.adapter, QueueAdapter, f"the adapter of stream provider {name!r}")
        self.manager = QueueManager(self, self._ownership)
        services.extensions.add("streams", Consumer)
        services.targets.add(StreamsTarget(self), name)
        services.targets.add(IngestTarget(self), name)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Read queues, if this silo may. What fails is undone by `abort`."""
        row = services.row
        if row is None or not row.can_own_queues:
            return
        self._declare()
        self.manager.start()
        silos = QueueSilos(services)
        self._unwatch = services.members.watch(self._follow)
        self._is_balanced = True
        await self._balancer.start(self.mapper.queues(), silos, self.manager.want)

    def _follow(self, view: TableView) -> None:
        self._declare()
        self.manager.wake_all()

    def _declare(self) -> None:
        """See which declared subscriptions hold now; what only dead silos declared ends in time."""
        self._cancel_giving_up()
        now_s, kept_s = self.services.clock.wall_s(), self.options.absent_kept_s
        before = self.declared
        self.declared = after = declared_in(self.services.members.view, self.name, now_s, kept_s)
        if after.until_s is not None:
            wait_s = max(0.0, after.until_s - now_s)
            self._giving_up = self.services.tasks.call_later(wait_s, self._declare)
        for grain_type in sorted(after.absent - before.absent):
            log.warning(
                "%s: no silo hosts %s now; its events wait for one, at most %g s (absent_kept_s)",
                self.name,
                grain_type,
                kept_s,
            )
        if after.of_namespace != before.of_namespace:
            for agent in self.manager.agents():
                agent.subscribers.redeclare()

    def _cancel_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()

    async def stop(self) -> None:
        """Hand the queues over; turns that run on may still publish."""
        if self._unwatch is not None:
            self._unwatch()
        self._cancel_giving_up()
        await self._close_balancer()
        if hasattr(self, "manager"):
            await self.manager.stop()

    def abort(self) -> None:
        """Stop without a word; a task closes balancer and adapter."""
        if self._unwatch is not None:
            self._unwatch()
        self._cancel_giving_up()
        if hasattr(self, "manager"):
            self.manager.abort()
        if self._opened is not None or self._is_balanced:
            # not one of the silo's tasks, which are ended now
            self._closing = self.services.new_tasks().start(self._close_anyhow())

    async def aclose(self) -> None:
        """Close the adapter; again is harmless."""
        adapter, self._opened = self._opened, None
        close = getattr(adapter, "aclose", None)
        if inspect.iscoroutinefunction(close):  # a malformed adapter may have none
            await close()

    async def _close_anyhow(self) -> None:
        """Close both, where a failure would hide what happened before."""
        for part, close in (("balancer", self._close_balancer), ("adapter", self.aclose)):
            try:
                await close()
            except Exception:
                log.exception("%s: the %s was not closed", self.name, part)

    async def _close_balancer(self) -> None:
        if self._is_balanced:
            self._is_balanced = False
            await self._balancer.aclose()

    # -- questions

    @property
    def keeps_no_position(self) -> bool:
        """Does the provider leave the checkpoint to the queue record?"""
        return Capability.FENCED_ACK not in self.capabilities

    def delivery_options(self, declared: Declared) -> DeliveryOptions:
        """The provider's delivery options with what the mark says."""
        if declared.retries is None:
            return self.options.delivery
        return replace(self.options.delivery, retries=declared.retries)

    async def measure(self) -> None:
        """Ask the provider for the backlog of each queue that this silo reads."""
        await asyncio.gather(*(agent.measure() for agent in self.manager.agents()))

    def stats(self) -> list[QueueStats]:
        """The queues that this silo reads; their backlog is that of the last `measure`."""
        now_s = self.services.clock.wall_s()
        for agent in self.manager.agents():
            agent.cache.purge()
        return [
            QueueStats(
                agent.queue,
                agent.epoch,
                agent.backlog,
                agent.cache.events,
                agent.read_count,
                agent.dispatch.delivered_count,
                agent.dispatch.given_up_count,
                agent.subscribers.unheard_count,
                agent.subscribers.stream_count,
                agent.dispatch.calls_out,
                max(0.0, now_s - (agent.cache.oldest_s or now_s)),
                agent.is_reading,
            )
            for agent in self.manager.agents()
        ]

    # -- publishing

    def split(self, bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Cut a list of items into messages."""
        return split_items(bodies, self.options)

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Send one message. Raises ValueError (too large), QueueFull after `enqueue_wait_s`."""
        return await self.enqueue(OutMessage(stream, bodies, dict(headers or {})))

    async def enqueue(self, message: OutMessage) -> Token | None:
        """Store a message in the queue that carries its stream. Raises ValueError: too large."""
        check_size(message, self.options.message_bytes_max)
        queue, epoch = self.mapper.queue_for(message.stream), self.mapper.epoch
        deadline = self.services.clock.now() + self.options.enqueue_wait_s
        while True:
            try:
                return await self.adapter.enqueue(queue, message, epoch)
            except QueueFull:
                if self.services.clock.now() >= deadline:
                    raise
                await asyncio.sleep(FULL_RETRY_S)

    # -- subscriptions

    async def attach(self, stream: StreamId, row: SubscriptionRow) -> None:
        """Tell the agent that reads the stream's queue, wherever it is; none: nobody to tell."""
        await self._tell_agent(
            stream, StreamsTarget.attach, lambda queue: (queue, stream.namespace, stream.key, row)
        )

    async def detach(self, stream: StreamId, subscription: str) -> None:
        """Tell the agent that a subscription ended."""
        await self._tell_agent(
            stream,
            StreamsTarget.detach,
            lambda queue: (queue, stream.namespace, stream.key, subscription),
        )

    async def _tell_agent(self, stream: StreamId, method: Any, args: Callable[[str], Any]) -> None:
        queue = self.mapper.queue_for(stream)
        target = f"{StreamsTarget.target_name}/{self.name}"
        for attempt in range(ATTACH_TRIES_MAX):
            stored = await self._ownership.read(queue)
            if stored is None or stored.record.state is QueueState.FREE:
                return  # whoever acquires the queue asks the rendezvous
            owner = stored.record.owner
            if not self.services.members.is_live(owner):
                return
            try:
                if await self.services.targets.call(owner, target, method, *args(queue)):
                    return
            except MillstreamError as error:
                log.info("%s does not answer for %s yet: %s", owner, queue, error)
            await asyncio.sleep(ATTACH_RETRY_S * min(attempt + 1, 20))
        raise QueueUnavailable(f"{stream}: the agent of {queue} could not be told")

    async def fault(self, stream: StreamId, subscription: str, note: str) -> None:
        """Mark an explicit subscription as faulted: it holds its events until `resume`."""
        from millstream.streams.api.registry import registry_key

        registry = self.services.grain(StreamRegistry, registry_key(self.name, stream))
        await registry.change(subscription, "faulted", note)

    def announce_free(self, queue: QueueId) -> None:
        """Tell the other silos that a queue can be taken."""
        for silo in self.services.members.active():
            if silo != self.services.address:
                self.services.tasks.start(self._announce(silo, queue))

    async def _announce(self, silo: str, queue: QueueId) -> None:
        target = f"{StreamsTarget.target_name}/{self.name}"
        try:
            await self.services.targets.call(silo, target, StreamsTarget.freed, queue)
        except MillstreamError as error:
            log.debug("%s was not told of %s: %s", silo, queue, error)  # it polls as well


class ProviderHost:
    """What an adapter sees of its silo (`AdapterHost`)."""

    def __init__(self, services: SiloServices, mapper: QueueMapper) -> None:
        self._services = services
        self._mapper = mapper

    @property
    def mapper(self) -> QueueMapper | None:
        return self._mapper

    @property
    def cluster(self) -> str:
        return self._services.cluster

    @property
    def silo(self) -> str | None:
        return self._services.address

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks

    def grain(self, cls: type[Any], key: str, /) -> Any:
        return self._services.grain(cls, key)

    def wall_s(self) -> float:
        return self._services.clock.wall_s()


class QueueSilos:
    """The silos that may read queues (`SiloSet`)."""

    def __init__(self, services: SiloServices) -> None:
        self._services = services

    @property
    def me(self) -> str:
        return self._services.address

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks

    def silos(self) -> Sequence[str]:
        rows = self._services.members.view.rows
        return sorted(
            row.silo for row in rows if row.status is Status.ACTIVE and row.can_own_queues
        )

    def names(self) -> Mapping[str, str]:
        return {row.silo: row.name for row in self._services.members.view.rows}

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        return self._services.members.watch(lambda view: changed())
