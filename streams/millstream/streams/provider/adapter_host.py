"""The view that an adapter has of its silo.

Owns `SiloAdapterHost`. `ownership` owns the rows that it reads.
"""

from __future__ import annotations

from typing import Any

from millstream.runtime import StateStore
from millstream.runtime.extending import (
    Clock,
    Disk,
    Members,
    MetricRegistry,
    SiloServices,
    Targets,
    Tasks,
)
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.ownership.mapper_record import MapperRecord, MapperRecords
from millstream.streams.ownership.record import QueueState
from millstream.streams.ownership.store import OwnershipStore

__all__ = ["SiloAdapterHost"]


class SiloAdapterHost:
    """One provider's view of its silo (`AdapterHost`)."""

    def __init__(
        self,
        services: SiloServices,
        provider: str,
        mapper: QueueMapper,
        brought: QueueMapper,
        store: str,
    ) -> None:
        self._services = services
        self._records = OwnershipStore(services.store(store), provider)
        self.mapper_records = MapperRecords(services.store(store), provider, brought)
        self.provider = provider
        self.mapper = mapper

    async def agree(self) -> MapperRecord:
        """Compare this silo's queues and mapper with the stored record, and return that record.

        Raises ConfigError, StorageError.
        """
        await self.mapper_records.agree()
        return await self.mapper_records.read()

    @property
    def cluster(self) -> str:
        return self._services.cluster

    @property
    def silo(self) -> str:
        return self._services.address

    @property
    def silo_name(self) -> str:
        return self._services.name

    @property
    def clock(self) -> Clock:
        return self._services.clock

    @property
    def disk(self) -> Disk:
        return self._services.disk

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks

    @property
    def members(self) -> Members:
        return self._services.members

    @property
    def targets(self) -> Targets:
        return self._services.targets

    @property
    def metrics(self) -> MetricRegistry:
        return self._services.metrics

    def grain(self, cls: type[Any], key: str, /) -> Any:
        return self._services.grain(cls, key)

    def store(self, name: str = "default", /) -> StateStore:
        return self._services.store(name)

    async def owner(self, queue: QueueId, /) -> tuple[str, int] | None:
        stored = await self._records.read(queue)
        if stored is None or stored.record.state is QueueState.FREE:
            return None
        return stored.record.owner, stored.record.epoch

    async def era(self) -> int:
        return await self.mapper_records.era()

    async def mapper_epoch(self) -> int:
        return await self.mapper_records.mapper_epoch()

    async def raise_era(self, seen: int, /) -> int:
        return await self.mapper_records.raise_era(seen)
