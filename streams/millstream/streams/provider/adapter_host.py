"""What an adapter sees of its silo.

Owns: `SiloAdapterHost`, the era of a provider. Invariant: the era only rises, by compare-and-set.
"""

from __future__ import annotations

from typing import Any

from millstream.runtime import Conflict, StateStore, StorageError
from millstream.runtime.extending import Clock, Members, SiloServices, Targets, Tasks
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.ownership.record import OwnershipStore, QueueState

__all__ = ["SiloAdapterHost"]

NO_FENCE = 0


class SiloAdapterHost:
    """One provider's view of its silo (`AdapterHost`)."""

    def __init__(
        self, services: SiloServices, provider: str, mapper: QueueMapper, store: str
    ) -> None:
        self._services = services
        self._records = OwnershipStore(services.store(store), provider)
        self._store = services.store(store)
        self.provider = provider
        self.mapper = mapper

    @property
    def cluster(self) -> str:
        return self._services.cluster

    @property
    def silo(self) -> str:
        return self._services.address

    @property
    def clock(self) -> Clock:
        return self._services.clock

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks

    @property
    def members(self) -> Members:
        return self._services.members

    @property
    def targets(self) -> Targets:
        return self._services.targets

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
        row = await self._store.read(self._era_key)
        return 0 if row is None else self._parsed(row.data)

    async def raise_era(self, seen: int, /) -> int:
        while True:
            row = await self._store.read(self._era_key)
            stored = 0 if row is None else self._parsed(row.data)
            if stored > seen:
                return stored
            try:
                expect = None if row is None else row.etag
                data = str(seen + 1).encode()
                await self._store.write(self._era_key, data, expect, NO_FENCE)
            except Conflict:
                continue
            return seen + 1

    @property
    def _era_key(self) -> str:
        return f"era/{self.provider}"

    def _parsed(self, data: bytes) -> int:
        if not data.isdigit():
            raise StorageError(f"row {self._era_key!r} is {data[:40]!r}, which is not a number")
        return int(data)
