"""What silos and tools ask each other about one provider: the target `$streams/<provider>`.

Owns: the target, and the figures that it tells. Not: anything that is asked for.
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
    """One queue as its owner sees it, for people and tools.

    `backlog`: events not read yet, 0 where the provider cannot tell; `cached`: read, and held
    because of some subscription; `lag_s`: age of the oldest of these. `faults`: of the adapter's
    receiver: what raised, was answered wrongly, or not in time; `gaps`: how often events were gone
    before they were read; `behind`: subscriptions that are, whose events are read anew.

    `purged`: events that left the cache as all were done with them; `evicted`: that left it
    although a subscription that is behind still needed them: they are read anew for it, but for a
    few that it keeps at hand. `full_count`: how often reading stopped as the cache was full;
    `full_s`: for how long in all.
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
    """One silo, for people and tools."""

    silo: str
    name: str
    activations: int
    queues: list[QueueStats]


class StreamsTarget(SystemTarget):
    """What can be asked of a silo about one provider."""

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
        """Attach one, or let a whole stream go on; False: no agent is here, or it ends."""
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
        """Pause one, or a whole stream, in the agent of a queue; False: no agent is here."""
        agent = self._queues.agent(queue)
        if agent is None:
            return False
        stream = StreamId(namespace, key)
        agent.subscribers.hold(stream, row)
        if row.id == WHOLE_STREAM:
            await agent.subscribers.follow(stream)
        return True

    async def detach(self, queue: str, namespace: str, key: str, subscription: str) -> bool:
        """Forget a subscription; False: no agent of the queue is here."""
        agent = self._queues.agent(queue)
        if agent is None:
            return False
        agent.subscribers.detach(StreamId(namespace, key), subscription)
        return True

    async def look_at_queues(self) -> None:
        """The number of queues is being changed."""
        self._nudge()

    @open_to(Role.OPERATOR)
    async def resize(self, queues: int) -> None:
        """Change the number of queues. Raises ConfigError, StorageError."""
        await self._resize(queues)

    async def tell_freed(self, queue: str) -> None:
        """A queue has no owner any more."""
        self._queues.wake(queue)

    @open_to(Role.OPERATOR)
    async def silo_stats(self) -> SiloStats:
        """This silo and the queues that it reads."""
        agents, services = self._queues.agents(), self._services
        await asyncio.gather(*(agent.reader.measure() for agent in agents))
        queues = [agent_stats(agent, services.clock.wall_s()) for agent in agents]
        return SiloStats(services.address, services.name, services.activation_count, queues)

    @open_to(Role.OPERATOR)
    async def cluster_stats(self) -> list[SiloStats]:
        """Every active silo that answers, by name."""
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
    """The name of a provider's target."""
    return f"{StreamsTarget.target_name}/{provider}"


def agent_stats(agent: PullingAgent, now_s: float) -> QueueStats:
    """One queue; its backlog is that of the last `measure`."""
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
