"""What balancers and the queue manager see of their silo.

Owns: what each of them gets of `SiloServices`. Invariant: none gets more than it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millstream.runtime import MillstreamError, Status
from millstream.runtime.extending import SiloServices, Tasks, kind_of
from millstream.streams.api.rendezvous import rendezvous_of
from millstream.streams.contracts.identity import QueueId

from .target import StreamsTarget, target_of

__all__ = ["ManagerSilo", "QueueSilos"]


class _OwnSilo:
    """What both of those below give of their silo."""

    def __init__(self, services: SiloServices) -> None:
        self._services = services

    @property
    def me(self) -> str:
        return self._services.address

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks


class QueueSilos(_OwnSilo):
    """The silos that have the provider and may read its queues (`SiloSet`)."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        super().__init__(services)
        self._hosted = kind_of(rendezvous_of(provider))  # by whoever has the provider, only

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


class ManagerSilo(_OwnSilo):
    """What the owner of queues asks of its silo (`Surroundings`)."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        super().__init__(services)
        self._target = target_of(provider)

    def live(self) -> frozenset[str]:
        rows = self._services.members.view.rows
        return frozenset(row.silo for row in rows if row.status is not Status.DEAD)

    def freed(self, queue: QueueId, /) -> None:
        for silo in self._services.members.active():
            if silo != self._services.address:
                self._services.tasks.start(self._tell(silo, queue))

    async def _tell(self, silo: str, queue: QueueId) -> None:
        try:
            await self._services.targets.call(silo, self._target, StreamsTarget.freed, queue)
        except MillstreamError:
            return  # it polls the record as well
