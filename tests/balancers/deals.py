"""A cluster as balancers see it: silos that join and leave, owners, and managers that obey."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context

from millstream.runtime import StorageUnavailable
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Random
from millstream.streams import QueueOwner

__all__ = ["Answers", "Cluster", "Manager", "Silos"]


class Cluster:
    """The silos that are present, and the owner of each queue."""

    def __init__(self, *present: str) -> None:
        self.present = list(present)
        self.owners: dict[str, QueueOwner] = {}
        self.listeners: list[Callable[[], None]] = []
        self.moves = 0
        self.is_away = False

    def become(self, *present: str) -> None:
        self.present = list(present)
        for changed in list(self.listeners):
            changed()

    def own(self, silo: str, *queues: str) -> None:
        for queue in queues:
            epoch = self.owners[queue].epoch + 1 if queue in self.owners else 1
            self.owners[queue] = QueueOwner(silo, epoch)

    def sizes(self) -> list[int]:
        held = [owner.silo for owner in self.owners.values()]
        return sorted(held.count(silo) for silo in self.present)


class Silos:
    """The cluster as one silo sees it (`SiloSet`)."""

    lease_s = 15.0

    def __init__(self, *present: str, me: str = "a", cluster: Cluster | None = None) -> None:
        self.me = me
        self.cluster = cluster or Cluster(*present)
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.reads = 0
        self.latency: Callable[[], float] | None = None

    def silos(self) -> Sequence[str]:
        return sorted(self.cluster.present)

    def names(self) -> Mapping[str, str]:
        return {silo: f"name-{silo}" for silo in self.cluster.present}

    async def owners(self) -> Mapping[str, QueueOwner]:
        self.reads += 1
        if self.latency is not None:
            await asyncio.sleep(self.latency())
        if self.cluster.is_away:
            raise StorageUnavailable("away")
        seen = dict(self.cluster.owners)
        if self.latency is not None:
            await asyncio.sleep(self.latency())
        return seen

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        self.cluster.listeners.append(changed)
        return lambda: self.cluster.listeners.remove(changed)

    def become(self, *present: str) -> None:
        self.cluster.become(*present)


class Answers(list[tuple[float, frozenset[str]]]):
    """The wishes of a balancer, with times."""

    def __call__(self, queues: Iterable[str]) -> None:
        self.append((asyncio.get_running_loop().time(), frozenset(queues)))

    @property
    def last(self) -> frozenset[str]:
        return self[-1][1]


class Manager:
    """Acquires free queues that are wanted; drains and frees queues that are no longer wanted."""

    def __init__(self, cluster: Cluster, me: str, rng: Random) -> None:
        self.cluster = cluster
        self.me = me
        self.rng = rng
        self.wanted: frozenset[str] = frozenset()
        self.task = asyncio.get_running_loop().create_task(self._work())

    def want(self, queues: Iterable[str]) -> None:
        self.wanted = frozenset(queues)

    async def _work(self) -> None:
        while self.me in self.cluster.present:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            for queue in sorted(self.wanted | set(self.cluster.owners)):
                self._step(queue)

    def _step(self, queue: str) -> None:
        owners = self.cluster.owners
        owner = owners.get(queue)
        if owner is None or owner.silo not in self.cluster.present:
            if queue in self.wanted:
                self.cluster.moves += 1
                self.cluster.own(self.me, queue)
        elif owner.silo == self.me and (queue in self.wanted) == owner.is_pausing:
            owners[queue] = QueueOwner(self.me, owner.epoch, queue not in self.wanted)
        elif owner.silo == self.me and owner.is_pausing and self.rng.random() < 0.5:
            del owners[queue]
