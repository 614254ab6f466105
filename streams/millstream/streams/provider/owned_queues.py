"""The queues of one provider that one silo reads: its balancer wants them, and its agents read
them.

Owns `OwnedQueues` and its life cycle. `provider` owns publishing and the adapter.

Invariants: agents run only between `start` and `stop` or `abort`. The balancer is closed once, even
after failures. Delivery calls end with `aclose`, after their agents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from millstream.runtime import StorageError, TableView
from millstream.runtime.extending import Sample, SiloServices
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.delivery.give_ups import GiveUps
from millstream.streams.agent.options import StreamOptions
from millstream.streams.agent.parts import AgentParts
from millstream.streams.agent.watchdog.watch import keep_watch
from millstream.streams.api.filters.hosted import HostedFilters
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.queue import QueueAdapter
from millstream.streams.failures.letters import LetterRows, unsent_letter
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.record import QueueProgress
from millstream.streams.ownership.store import OwnershipStore
from millstream.streams.ownership.unread import LOOK_EVERY_S, Unread

from .known_subscriptions import KnownSubscriptions
from .settings import Settings
from .silo_view import ManagerSilo, QueueSilos, fate_of
from .stream_metrics import STREAM_METRICS, SubscriptionLags, read_queues
from .target import QueueStats, agent_stats

__all__ = ["OwnedQueues"]

log = logging.getLogger("millstream.streams")
NAMES_MAX = 5


class OwnedQueues:
    """The reading side of a provider; made when the adapter is open.

    Attributes:
        manager: the ownership of queues in this silo.
        letters: the stored dead letters.
        following: the known subscriptions.
        is_balanced: whether the balancer was started and is not closed.
    """

    def __init__(
        self,
        provider: str,
        settings: Settings,
        options: StreamOptions,
        adapter: QueueAdapter,
        capabilities: frozenset[Capability],
        services: SiloServices,
        layout: Layout,
    ) -> None:
        self._layout = layout
        store = services.store(options.store)
        self._provider = provider
        self._settings = settings
        self._records = OwnershipStore(store, provider)
        self._lease_s = options.ownership.lease_s
        self._clock = services.clock
        self._runners = services.new_runners()
        retention_s = options.absent_type_retention_s
        self.following = KnownSubscriptions(
            provider, services, store, retention_s, self._tell_agents
        )
        self._unwatch: Callable[[], None] = lambda: None
        self._audit: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._looks: asyncio.Task[None] | None = None
        self._services: SiloServices | None = None
        self._balanced: Sequence[QueueId] = ()
        self.is_balanced = False
        self.letters = LetterRows(store, provider, services.options.frame_bytes_max)
        self._parts = AgentParts(
            adapter=adapter,
            capabilities=capabilities,
            options=options,
            provider=provider,
            services=services,
            give_ups=GiveUps(
                services,
                provider,
                settings.on_give_up,
                self.letters,
                settings.gave_up,
                are_known=has_positions(capabilities),
            ),
            known=self.following,
            clock=services.clock,
            new_tasks=services.new_tasks,
            runners=self._runners,
            budget=services.budget,
            filters=HostedFilters(services),
            stored=self.following,
            fate=lambda silo: fate_of(silo, services.members.view),
            layout=layout if Capability.SEALED in capabilities else None,
        )
        self._silo = ManagerSilo(services, provider)
        self.manager: QueueManager[PullingAgent] = QueueManager(
            layout.read_queues(),
            self._records,
            options.ownership,
            self._silo,
            self._begin,
        )
        self._lags = SubscriptionLags(provider, self.manager.agents, services.clock)
        services.metrics.add(STREAM_METRICS, self._read_metrics)

    async def bury(self, message: OutMessage, why: str) -> None:
        """Keep an event of an outbox as a dead letter. Raises StorageError."""
        letter = unsent_letter(self._provider, message, why, self._clock.wall_s())
        await self.letters.put(letter)

    def _begin(
        self,
        queue: QueueId,
        epoch: int,
        progress: QueueProgress,
        *,
        may_repeat: bool,
        has_rival: bool,
    ) -> PullingAgent:
        return PullingAgent(
            self._parts,
            queue,
            epoch,
            progress,
            may_repeat=may_repeat,
            has_rival=has_rival,
            changed=self.manager.wake,
        )

    async def start(self, services: SiloServices) -> None:
        """Read the queues that the balancer wants. After a failure, call `abort` and
        `close_balancer`."""
        self.following.refresh()
        self.manager.start()
        self._unwatch = services.members.watch(self._follow)
        self._services = services
        if services.metrics.is_on:
            self._looks = services.tasks.start(self._lags.look_while_running())
        self._watch = services.tasks.start(
            keep_watch(
                lambda: [agent.watch for agent in self.manager.agents()],
                self._parts.options.standstill_s,
            )
        )
        await self._balance()

    async def _balance(self) -> None:
        """Let the balancer assign the queues that have to be read now."""
        assert self._services is not None
        services, queues = self._services, self._layout.read_queues()
        self._balanced = queues
        self.manager.cover(queues)
        silos = QueueSilos(services, self._provider, queues, self._records, self._lease_s)
        audit = Audit(self._provider, queues, silos, ManagerSilo(services, self._provider))
        if self._audit is not None:
            self._audit.cancel()
        self._audit = services.tasks.start(audit.run())
        self.is_balanced = True
        await self._settings.balancer.start(queues, silos, self.manager.want)

    def on_stirred(self, queue: QueueId) -> None:
        """Let every silo read the record of a queue again, because an operator changed it."""
        self.manager.wake(queue)
        self._silo.on_freed(queue)

    async def relaid(self) -> None:
        """Start the balancer again if the set of queues to read has changed."""
        if self.is_balanced and self._layout.read_queues() != self._balanced:
            await self.close_balancer()
            await self._balance()

    def _follow(self, view: TableView) -> None:
        self.following.refresh()
        self.manager.wake_all()
        for agent in self.manager.agents():
            agent.dispatch.judge()

    def _tell_agents(self) -> None:
        for agent in self.manager.agents():
            agent.subscribers.follow_implicit()

    def _follow_no_more(self) -> None:
        self._unwatch()
        for task in (self._audit, self._watch, self._looks):
            if task is not None:
                task.cancel()
        self.following.close()

    async def stop(self) -> None:
        """Hand the queues over."""
        self._follow_no_more()
        await self.close_balancer()
        await self.manager.stop()

    def abort(self) -> None:
        """Stop at once and hand nothing over."""
        self._follow_no_more()
        self.manager.abort()
        self._runners.cancel()

    async def close_balancer(self) -> None:
        """Close the balancer; a repeated call is harmless."""
        if self.is_balanced:
            self.is_balanced = False
            await self._settings.balancer.aclose()

    async def aclose(self) -> None:
        """End the delivery calls that are still in flight."""
        await self._runners.aclose()

    def stats(self) -> list[QueueStats]:
        """Return the figures of the queues that are read; the backlog is that of the last
        `measure`."""
        return [agent_stats(agent, self._clock.wall_s()) for agent in self.manager.agents()]

    def _read_metrics(self) -> Iterator[Sample]:
        """Yield the metrics of the queues that are read, and of their subscriptions."""
        now_s, agents = self._clock.wall_s(), self.manager.agents()
        figures = [(agent_stats(one, now_s), one.cache.size_bytes) for one in agents]
        yield from read_queues(self._provider, figures)
        yield from self._lags.read()

    async def measure(self) -> None:
        """Ask for the backlogs, if the adapter can tell them."""
        await asyncio.gather(*(agent.reader.measure() for agent in self.manager.agents()))


class Audit:
    """Watches the owners of one provider's queues while the silo runs, and logs queues that no silo
    reads. `ownership.unread` decides when.

    One silo does this: the first by address of those that may read the provider's queues.
    """

    def __init__(
        self, provider: str, queues: Sequence[QueueId], silos: QueueSilos, all_silos: ManagerSilo
    ) -> None:
        self._provider = provider
        self._queues = queues
        self._silos = silos
        self._all_silos = all_silos
        self._unread = Unread()

    async def run(self) -> None:
        """Look every few seconds; never ends by itself."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._silos.me != min(self._silos.silos(), default=""):
                self._unread = Unread()
                continue
            try:
                await self.look()
            except StorageError:
                continue  # the owners of queues log that the store is unavailable

    async def look(self) -> None:
        """Compare the records with the live silos. Raises StorageError."""
        owners, held = await self._silos.owners_and_held()
        live = self._all_silos.live()
        read = held | {queue for queue, owner in owners.items() if owner.silo in live}
        now_s = asyncio.get_running_loop().time()
        found = self._unread.see([queue for queue in self._queues if queue not in read], now_s)
        if found:
            names = ", ".join(list(found)[:NAMES_MAX])
            more = f" and {len(found) - NAMES_MAX} more" if len(found) > NAMES_MAX else ""
            text = "%s: no silo has read %s%s for %.0f s; no balancer wants the queue, or all fail"
            log.warning(text, self._provider, names, more, max(found.values()))
