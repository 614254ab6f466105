"""The queues of one provider that one silo reads: wanted by its balancer, read by its agents.

Owns: `OwnedQueues`, its beginning and end. Not: publishing, the adapter's life (`provider`).
Invariants: agents run only between `start` and `stop`, or `abort`; the balancer is closed once,
whatever fails; delivery calls end with `aclose`, after their agents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.runtime import StorageError, TableView
from millstream.runtime.extending import SiloServices
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
from .target import QueueStats, agent_stats

__all__ = ["OwnedQueues"]

log = logging.getLogger("millstream.streams")
NAMES_MAX = 5


class OwnedQueues:
    """What reads; made when the adapter is open.

    Attributes: `manager`: who owns which queue here; `letters`: where the failed ones end;
    `following`: which subscriptions there are.
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
        self._services: SiloServices | None = None
        self._balanced: Sequence[QueueId] = ()
        self.is_balanced = False  # the balancer was started, and is not closed
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
        """Read what the balancer wants. What fails is undone by `abort` and `close_balancer`."""
        self.following.refresh()
        self.manager.start()
        self._unwatch = services.members.watch(self._follow)
        self._services = services
        self._watch = services.tasks.start(
            keep_watch(
                lambda: [agent.watch for agent in self.manager.agents()],
                self._parts.options.standstill_s,
            )
        )
        await self._balance()

    async def _balance(self) -> None:
        """Let the balancer deal out the queues that have to be read now."""
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
        """The record of a queue was changed by hand: every silo should look at it."""
        self.manager.wake(queue)
        self._silo.on_freed(queue)

    async def relaid(self) -> None:
        """Other queues may have to be read now."""
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
        for task in (self._audit, self._watch):
            if task is not None:
                task.cancel()
        self.following.close()

    async def stop(self) -> None:
        """Hand the queues over."""
        self._follow_no_more()
        await self.close_balancer()
        await self.manager.stop()

    def abort(self) -> None:
        """Stop without a word."""
        self._follow_no_more()
        self.manager.abort()
        self._runners.cancel()

    async def close_balancer(self) -> None:
        """Close it; again is harmless."""
        if self.is_balanced:
            self.is_balanced = False
            await self._settings.balancer.aclose()

    async def aclose(self) -> None:
        """End the delivery calls that are still out."""
        await self._runners.aclose()

    def stats(self) -> list[QueueStats]:
        """The queues that are read; their backlog is that of the last `measure`."""
        return [agent_stats(agent, self._clock.wall_s()) for agent in self.manager.agents()]

    async def measure(self) -> None:
        """Ask for the backlogs, where the adapter can tell."""
        await asyncio.gather(*(agent.reader.measure() for agent in self.manager.agents()))


class Audit:
    """Looks at the owners of one provider's queues, for as long as the silo runs, and tells of
    queues that nobody reads (`ownership.unread` says when).

    Of the silos that may read the provider's queues one does it, the first by address.
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
                continue  # who owns queues says that the store is away

    async def look(self) -> None:
        """Compare the records with who is alive. Raises StorageError."""
        owners, held = await self._silos.owners_and_held()
        live = self._all_silos.live()
        read = held | {queue for queue, owner in owners.items() if owner.silo in live}
        now_s = asyncio.get_running_loop().time()
        found = self._unread.see([queue for queue in self._queues if queue not in read], now_s)
        if found:
            names = ", ".join(list(found)[:NAMES_MAX])
            more = f" and {len(found) - NAMES_MAX} more" if len(found) > NAMES_MAX else ""
            text = "%s: no silo has read %s%s for %.0f s; the balancers want it nowhere, or fail"
            log.warning(text, self._provider, names, more, max(found.values()))
