"""A stream provider in one silo: wires adapter, mapper, balancer, agents and targets.

Owns: `PersistentStreams`, its beginning and end. Not: what the parts do. Invariants: a provider
object belongs to one silo; agents run only between `start` and `stop`, which lie between `open` and
`aclose`; balancer and adapter are closed once, whatever fails.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from millstream.runtime import ConfigError, Grain, StreamError, TableView
from millstream.runtime.extending import SiloServices, Tasks, check_kind
from millstream.streams.agent.agent import AgentParts, PullingAgent
from millstream.streams.agent.dead_letters import DeadLetters, FailureHandler, KeepDeadLetters
from millstream.streams.agent.giving_up import GiveUps
from millstream.streams.agent.options import StreamOptions
from millstream.streams.api.rendezvous import rendezvous_of
from millstream.streams.api.subscribe import check_marks
from millstream.streams.consumer.extension import Consumer
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.factories import (
    OpenAdapter,
    OpenedByFunction,
    balancer_of,
    factory_of,
)
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueBalancer, QueueMapper
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.queue import QueueAdapter, QueueAdapterFactory
from millstream.streams.contracts.shapes import capabilities_of, require_shape
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.mapper import HashRingMapper
from millstream.streams.ownership.record import OwnershipStore
from millstream.streams.publishing.ingest import IngestTarget
from millstream.streams.publishing.silo_publisher import SiloPublisher

from .adapter_host import SiloAdapterHost
from .agents import AgentCalls
from .following import Following
from .outlet import SiloOutlet
from .silo_view import ManagerSilo, QueueSilos
from .target import QueueStats, StreamsTarget, agent_stats

__all__ = ["PersistentStreams"]

log = logging.getLogger("millstream.streams")


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
        self.mapper: QueueMapper = HashRingMapper(queues=8) if mapper is None else mapper
        require_shape(self.mapper, QueueMapper, "PersistentStreams(mapper=...)")
        self._options = StreamOptions() if options is None else options
        check_kind("PersistentStreams(options=...)", self._options, StreamOptions)
        self._on_give_up: FailureHandler = KeepDeadLetters() if on_give_up is None else on_give_up
        require_shape(self._on_give_up, FailureHandler, "PersistentStreams(on_give_up=...)")
        self.capabilities: frozenset[Capability] = frozenset()  # of a function: once it has opened
        if not isinstance(self._factory, OpenedByFunction) or self._factory.capabilities:
            self.capabilities = capabilities_of(self._factory, "PersistentStreams(queues)")
        self.name = ""
        self.adapter: QueueAdapter
        self.manager: QueueManager[PullingAgent]
        self.dead_letters: DeadLetters
        self.agents: AgentCalls
        self._publisher: SiloPublisher
        self._calls: Tasks | None = None
        self._wall_s: Callable[[], float]
        self._following: Following | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._opened: QueueAdapter | None = None  # the adapter, until it is closed
        self._is_balanced = False  # the balancer was started, and is not closed
        self._closing: Callable[[], asyncio.Task[None]] | None = None
        self._closed: asyncio.Task[None] | None = None

    def agreement(self) -> Mapping[str, str]:
        """Queues and mapper: where they differ, a stream would be in two queues."""
        names, kind = self.mapper.queues(), type(self.mapper).__qualname__
        ends = f"{names[0]} to {names[-1]}" if names else "none"
        mapper = f"{kind} of {len(names)} queues, {ends}, epoch {self.mapper.epoch}"
        queues = type(self._factory).__qualname__
        return {"mapper": mapper, "queues": queues, "store": self._options.store}

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """What the adapter brings, and who keeps the explicit subscriptions."""
        brought: Sequence[type[Grain]] = getattr(self._factory, "grains", ())
        return (rendezvous_of(name), *brought)

    # -- life

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Open the adapter, so that this silo's grains may publish; closes it if that fails."""
        if self.name:
            raise ConfigError(
                f"stream provider {name!r}: the object already serves a silo as "
                f"{self.name!r}; make one per silo"
            )
        self.name = name
        options = self._options.within(services.options.frame_bytes_max)
        # not one of the silo's tasks, which are ended when this is needed
        self._closing = lambda: services.new_tasks().start(self._close_anyhow())
        try:
            host = SiloAdapterHost(services, name, self.mapper, options.store)
            await host.agree()
            self.adapter = self._opened = await self._factory.open(name, host)
            require_shape(self.adapter, QueueAdapter, f"the adapter of stream provider {name!r}")
            self.capabilities = capabilities_of(self._factory, f"stream provider {name!r}")
            check_marks(services.grain_types(), name, self.capabilities)
            self._wire(services, name, options)
        except BaseException:
            await self._close_anyhow()
            self.name = ""  # it serves nobody, so it may be tried again
            raise

    def _wire(self, services: SiloServices, name: str, options: StreamOptions) -> None:
        """Make the parts, and let others call them."""
        mapper, store, clock = self.mapper, services.store(options.store), services.clock
        self._wall_s = clock.wall_s
        self._calls = services.new_tasks()
        records = OwnershipStore(store, name)
        self.dead_letters = DeadLetters(store, name)
        self._publisher = SiloPublisher(
            name,
            self.adapter,
            mapper,
            options.publish_limits(),
            options.send,
            options.enqueue_wait_s,
            clock,
            services.new_tasks(),
        )
        self.agents = AgentCalls(name, services, mapper, records, options.store)
        retention_s = options.absent_type_retention_s
        following = self._following = Following(name, services, retention_s, self._tell_agents)
        outlet = SiloOutlet(name, services, self.dead_letters)
        parts = AgentParts(
            adapter=self.adapter,
            capabilities=self.capabilities,
            options=options,
            outlet=outlet,
            give_ups=GiveUps(self._on_give_up, outlet),
            known=following,
            clock=clock,
            new_tasks=services.new_tasks,
            calls=self._calls,
        )

        def begin(
            queue: QueueId, epoch: int, checkpoint: Token | None, *, may_repeat: bool
        ) -> PullingAgent:
            wake = self.manager.wake
            return PullingAgent(
                parts, queue, epoch, checkpoint, may_repeat=may_repeat, changed=wake
            )

        silo = ManagerSilo(services, name)
        queues, ownership = mapper.queues(), options.ownership
        self.manager = QueueManager(queues, records, ownership, silo, begin)
        services.extensions.add("streams", Consumer)
        services.targets.add(StreamsTarget(name, services, self.manager), name)
        services.targets.add(IngestTarget(self._publisher), name)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Read queues, if this silo may. What fails is undone by `abort`."""
        row = services.row
        if row is None or not row.can_own_queues:
            return
        assert self._following is not None
        self._following.refresh()
        self.manager.start()
        self._unwatch = services.members.watch(self._follow)
        self._is_balanced = True
        silos = QueueSilos(services, name)
        await self._balancer.start(self.mapper.queues(), silos, self.manager.want)

    def _follow(self, view: TableView) -> None:
        assert self._following is not None
        self._following.refresh()
        self.manager.wake_all()

    def _tell_agents(self) -> None:
        for agent in self.manager.agents():
            agent.subscribers.follow_implicit()

    def _follow_no_more(self) -> None:
        self._unwatch()
        if self._following is not None:
            self._following.close()

    async def stop(self) -> None:
        """Hand the queues over; turns that run on may still publish."""
        self._follow_no_more()
        await self._close_balancer()
        if self._following is not None:
            await self.manager.stop()

    def abort(self) -> None:
        """Stop without a word; a task closes balancer and adapter."""
        self._follow_no_more()
        if self._following is not None:
            self.manager.abort()
        if self._calls is not None:
            self._calls.cancel()
        if self._closing is not None and (self._opened is not None or self._is_balanced):
            self._closed = self._closing()

    async def aclose(self) -> None:
        """End publishing and close the adapter; again is harmless."""
        adapter, self._opened = self._opened, None
        if (publisher := getattr(self, "_publisher", None)) is not None:  # opening went so far
            publisher.close(f"stream provider {self.name!r}: the silo has stopped")
        if self._calls is not None:
            await self._calls.aclose()
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

    def stats(self) -> list[QueueStats]:
        """The queues that this silo reads; their backlog is that of the last time it was asked."""
        return [agent_stats(agent, self._wall_s()) for agent in self.manager.agents()]

    # -- publishing

    def split(self, bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Cut a list of items into messages."""
        return self._publisher.split(bodies)

    def publish(
        self,
        stream: StreamId,
        parts: Sequence[Sequence[bytes]],
        headers: Mapping[str, str] | None,
    ) -> Coroutine[Any, Any, Token | None]:
        """Store messages of one stream, in order: all of them, or a prefix.

        Raises ValueError (too large), QueueFull or QueueUnavailable (after `enqueue_wait_s`),
        PublishUnknown.
        """
        return self._publisher.publish(stream, parts, headers)

    def store(
        self, messages: Sequence[OutMessage], /
    ) -> Coroutine[Any, Any, list[Token | StreamError | None]]:
        """Store messages in the queues that carry their streams; the outcome of each."""
        return self._publisher.store(messages)
