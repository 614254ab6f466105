"""The target `$streams/<provider>`: silos and tools ask each other about one provider.

Owns the target and the figures that it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from millstream.runtime.extending import Role, SiloServices, SystemTarget, open_to
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.api.subscription_rows import WHOLE_STREAM, SubscriptionRow
from millstream.streams.contracts.identity import StreamId
from millstream.streams.ownership.manager import QueueManager

__all__ = ["QueueStats", "SiloStats", "StreamsTarget", "agent_stats", "target_of"]


class QueueStats(msgspec.Struct, array_like=True, frozen=True):
    """The figures of one queue, as its owner sees it.

    Counters begin at 0 with each agent, so also after a hand-over. Events that are released to
    their queue are neither `purged` nor `evicted`.

    Attributes:
        queue: name of the queue.
        epoch: number of the ownership.
        backlog: events that are not read yet; 0 if the provider cannot count them.
        cached: events in the cache.
        read: events read.
        delivered: events delivered.
        given_up: events given up.
        unheard: events without a subscription.
        streams: streams that the agent knows.
        calls_out: delivery calls that are in flight.
        lag_s: age of the oldest event in the cache, in seconds.
        is_reading: whether the receiver runs.
        faults: calls of the adapter's receiver that raised, were answered wrongly, or were late.
        gaps: how often events were gone before they were read.
        behind: lagging subscriptions, whose next events are read again.
        purged: events that left the cache because all subscriptions had processed them, or because
            there was none. No event leaves by age.
        evicted: events that left the cache although a lagging subscription needed them. They are
            read again, except for a few that the subscription keeps.
        full_count: how often reading stopped because the cache was full.
        full_s: how many seconds reading was stopped in all, including a stop that still lasts.
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
    faults: int = 0
    gaps: int = 0
    behind: int = 0
    purged: int = 0
    evicted: int = 0
    full_count: int = 0
    full_s: float = 0.0


class SiloStats(msgspec.Struct, array_like=True, frozen=True):
    """The figures of one silo; `cluster_stats` returns one for each silo.

    Attributes:
        silo: address of the silo.
        name: name of the silo.
        activations: activations in the silo.
        queues: the queues that the silo reads.
    """

    silo: str
    name: str
    activations: int
    queues: list[QueueStats]


class StreamsTarget(SystemTarget):
    """The questions that silos and tools may ask this silo about one provider."""

    target_name = "$streams"

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        queues: QueueManager[PullingAgent],
        nudge: Callable[[], None],
        resize: Callable[[int], Awaitable[None]],
    ) -> None:
        self._nudge = nudge
        self._resize = resize
        self._provider = provider
        self._services = services
        self._queues = queues

    async def attach(self, queue: str, namespace: str, key: str, row: SubscriptionRow) -> bool:
        """Attach a subscription, or resume a whole stream. False: no agent is here, or it is
        ending."""
        agent = self._queues.agent(queue)
        if agent is None:
            return False
        stream = StreamId(namespace, key)
        if row.id != WHOLE_STREAM:
            return await agent.attach(stream, row)
        agent.subscribers.attach(stream, row)
        await agent.subscribers.follow(stream)
        return True

    async def hold(self, queue: str, namespace: str, key: str, row: SubscriptionRow) -> bool:
        """Pause a subscription or a whole stream in the agent of a queue. False: no agent is
        here."""
        agent = self._queues.agent(queue)
        if agent is None:
            return False
        stream = StreamId(namespace, key)
        agent.subscribers.hold(stream, row)
        if row.id == WHOLE_STREAM:
            await agent.subscribers.follow(stream)
        return True

    async def detach(self, queue: str, namespace: str, key: str, subscription: str) -> bool:
        """Detach a subscription. False: no agent of the queue is here."""
        agent = self._queues.agent(queue)
        if agent is None:
            return False
        agent.subscribers.detach(StreamId(namespace, key), subscription)
        return True

    async def look_at_queues(self) -> None:
        """Read the mapper record now: the number of queues is being changed."""
        self._nudge()

    @open_to(Role.OPERATOR)
    async def resize(self, queues: int) -> None:
        """Change the number of queues. Raises ConfigError, StorageError."""
        await self._resize(queues)

    async def tell_freed(self, queue: str) -> None:
        """Decide about a queue that no longer has an owner."""
        self._queues.wake(queue)

    @open_to(Role.OPERATOR)
    async def silo_stats(self) -> SiloStats:
        """Return the figures of this silo and of the queues that it reads."""
        agents, services = self._queues.agents(), self._services
        await asyncio.gather(*(agent.reader.measure() for agent in agents))
        queues = [agent_stats(agent, services.clock.wall_s()) for agent in agents]
        return SiloStats(services.address, services.name, services.activation_count, queues)

    @open_to(Role.OPERATOR)
    async def cluster_stats(self) -> list[SiloStats]:
        """Return the figures of every active silo that answers, by name."""
        services, target = self._services, target_of(self._provider)
        answers = await asyncio.gather(
            *(
                services.targets.call(silo, target, StreamsTarget.silo_stats)
                for silo in services.members.active()
            ),
            return_exceptions=True,
        )
        found = [answer for answer in answers if isinstance(answer, SiloStats)]
        return sorted(found, key=lambda stats: stats.name)


def target_of(provider: str) -> str:
    """Return the name of a provider's target."""
    return f"{StreamsTarget.target_name}/{provider}"


def agent_stats(agent: PullingAgent, now_s: float) -> QueueStats:
    """Return the figures of one queue; the backlog is that of the last `measure`."""
    return QueueStats(
        agent.queue,
        agent.epoch,
        agent.reader.backlog,
        agent.cache.events + agent.cache.chained_events,
        agent.reader.core.read_count,
        agent.dispatch.delivered_count,
        agent.dispatch.given_up_count,
        agent.cache.unheard_count,
        len(agent.subscribers.streams),
        agent.dispatch.calls_out,
        max(0.0, now_s - (agent.cache.oldest_s or now_s)),
        agent.reader.is_reading,
        agent.findings.fault_count,
        agent.findings.gap_count,
        len(agent.behind),
        agent.cache.purged,
        agent.cache.evicted,
        *agent.reader.stops(),
    )
