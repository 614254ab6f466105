"""The views that balancers and the queue manager have of their silo.

Invariant: each view has only the parts of `SiloServices` that its user needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from millstream.runtime import MillstreamError, Status, TableView
from millstream.runtime.extending import SiloServices, Tasks, kind_of
from millstream.streams.agent.delivery.deaths import Fate
from millstream.streams.api.rendezvous import rendezvous_of
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import QueueOwner
from millstream.streams.ownership.decision import FirstSeen
from millstream.streams.ownership.record import QueueState, StoredRecord
from millstream.streams.ownership.store import OwnershipStore

from .target import StreamsTarget, target_of

__all__ = ["ManagerSilo", "QueueSilos", "fate_of"]


class _OwnSilo:
    """The common part of both views."""

    def __init__(self, services: SiloServices) -> None:
        self._services = services

    @property
    def me(self) -> str:
        return self._services.address

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks


class QueueSilos(_OwnSilo):
    """The silos that have the provider and may read its queues, with the owners (`SiloSet`)."""

    def __init__(
        self,
        services: SiloServices,
        provider: str,
        queues: Sequence[QueueId],
        records: OwnershipStore,
        lease_s: float,
    ) -> None:
        super().__init__(services)
        self._hosted = kind_of(rendezvous_of(provider))  # hosted only by silos with the provider
        self._queues = queues
        self._records = records
        self._seen = FirstSeen()
        self.lease_s = lease_s

    def silos(self) -> Sequence[str]:
        return sorted(
            row.silo
            for row in self._services.members.view.rows
            if row.status is Status.ACTIVE
            and row.can_own_queues
            and self._hosted in row.grain_types
        )

    def names(self) -> Mapping[str, str]:
        return {row.silo: row.name for row in self._services.members.view.rows}

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        return self._services.members.watch(lambda view: changed())

    async def owners(self) -> Mapping[QueueId, QueueOwner]:
        return (await self.owners_and_held())[0]

    async def owners_and_held(self) -> tuple[Mapping[QueueId, QueueOwner], frozenset[QueueId]]:
        """Return the owner of each owned queue, and the queues that an operator paused.

        Raises StorageError.
        """
        found = await self._records.read_all(self._queues)
        now_s = asyncio.get_running_loop().time()
        owners = {
            queue: self._owner(queue, stored, now_s)
            for queue, stored in found.items()
            if stored.record.state is not QueueState.FREE
        }
        return owners, frozenset(q for q, stored in found.items() if stored.record.is_held)

    def _owner(self, queue: QueueId, stored: StoredRecord, now_s: float) -> QueueOwner:
        record, seen_s = stored.record, self._seen.saw(queue, stored.etag, now_s)
        has_lapsed = record.lease_s > 0 and now_s >= seen_s + record.lease_s
        is_pausing = record.state is QueueState.PAUSING
        return QueueOwner(record.owner, record.epoch, is_pausing, has_lapsed)


def fate_of(silo: str, view: TableView) -> Fate:
    """Return the fate of a silo. A silo that stops in order says so first and answers open calls; a
    silo that is dead without that announcement has crashed."""
    row = next((row for row in view.rows if row.silo == silo), None)
    if row is not None and row.status is Status.DEAD:
        return Fate.DIED
    return Fate.LEFT if row is not None and row.status is Status.STOPPING else Fate.LIVES


class ManagerSilo(_OwnSilo):
    """The silo as the queue manager sees it (`Surroundings`)."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        super().__init__(services)
        self._target = target_of(provider)

    def live(self) -> frozenset[str]:
        rows = self._services.members.view.rows
        return frozenset(row.silo for row in rows if row.status is not Status.DEAD)

    async def look_for(self, silo: str, /) -> None:
        if self._services.members.view.row(silo) is None:
            await self._services.members.refresh()

    def on_freed(self, queue: QueueId, /) -> None:
        for silo in self._services.members.active():
            if silo != self._services.address:
                self._services.tasks.start(self._tell(silo, queue))

    async def _tell(self, silo: str, queue: QueueId) -> None:
        try:
            await self._services.targets.call(silo, self._target, StreamsTarget.tell_freed, queue)
        except MillstreamError:
            return  # that silo polls the record as well
