"""The row of one provider: into how many queues its streams go, and how often numbering began anew.

Owns: `MapperRecord`, and where it is stored. Invariants: it changes only by compare-and-set; the
queues in it are those in which messages wait, so a silo that brings others is refused, also when
the whole cluster was started anew; the era only rises.
"""

from __future__ import annotations

import msgspec

from millstream.runtime import ConfigError, Conflict, Etag, StateStore, StorageError
from millstream.streams.contracts.mapping import QueueMapper

__all__ = ["MapperRecord", "MapperRecords"]

NO_FENCE = 0


class MapperRecord(msgspec.Struct, frozen=True):
    """How many queues, the first and the last of them, the version of the mapper, the era."""

    queues: int
    first: str
    last: str
    mapper_epoch: int
    era: int = 0

    def __str__(self) -> str:
        ends = f" ({self.first} to {self.last})" if self.queues else ""
        return f"{self.queues} queues{ends}, mapper epoch {self.mapper_epoch}"


def record_of(mapper: QueueMapper) -> MapperRecord:
    """What a silo with this mapper brings."""
    names = mapper.queues()
    ends = (names[0], names[-1]) if names else ("", "")
    return MapperRecord(len(names), *ends, mapper.epoch)


class MapperRecords:
    """The mapper record of one provider, in its state store; nothing else writes it."""

    __slots__ = ("_brought", "_decoder", "_key", "_provider", "_store")

    def __init__(self, store: StateStore, provider: str, mapper: QueueMapper) -> None:
        self._store = store
        self._provider = provider
        self._brought = record_of(mapper)
        self._key = f"mapper/{provider}"
        self._decoder = msgspec.msgpack.Decoder(MapperRecord)

    async def agree(self) -> None:
        """Store what this silo brings, if nothing is stored yet.

        Raises ConfigError: other queues are stored; StorageError.
        """
        stored, _ = await self._ensured()
        if msgspec.structs.replace(stored, era=0) != self._brought:
            raise ConfigError(
                f"stream provider {self._provider!r}: its events are in {stored}; this silo brings "
                f"{self._brought}: give PersistentStreams the mapper that it had, or another name "
                "to a provider with other queues"
            )

    async def era(self) -> int:
        """The era. Raises StorageError."""
        return (await self._ensured())[0].era

    async def mapper_epoch(self) -> int:
        """The newest mapper epoch. Raises StorageError."""
        return (await self._ensured())[0].mapper_epoch

    async def raise_era(self, seen: int) -> int:
        """Make the era higher than `seen`, unless it is; returns it. Raises StorageError."""
        while True:
            stored, etag = await self._ensured()
            if stored.era > seen:
                return stored.era
            raised = msgspec.structs.replace(stored, era=seen + 1)
            try:
                await self._write(raised, etag)
            except Conflict:
                continue
            return raised.era

    async def _ensured(self) -> tuple[MapperRecord, Etag]:
        """What is stored; what this silo brings, if it is the first."""
        while True:
            row = await self._store.read(self._key)
            if row is not None:
                return self._decoded(row.data), row.etag
            try:
                return self._brought, await self._write(self._brought, None)
            except Conflict:
                continue  # another silo was first

    async def _write(self, record: MapperRecord, expect: Etag | None) -> Etag:
        data = msgspec.msgpack.encode(record)
        return await self._store.write(self._key, data, expect, NO_FENCE)

    def _decoded(self, data: bytes) -> MapperRecord:
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise StorageError(f"row {self._key!r} is not a mapper record: {error}") from None
