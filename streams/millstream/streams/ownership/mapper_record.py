"""The row of one provider: into how many queues its streams go, and how often numbering began anew.

Owns: `MapperRecord`, and where it is stored; the steps of a change of the number of queues. Not:
who takes them (`provider.queue_resize`). Invariants: it changes only by compare-and-set; the queues
in it are those in which messages wait, so a silo that brings others is refused, also when the whole
cluster was started anew; era and mapper epoch only rise; a ring is left when each of its queues is
sealed and done up to its barrier, and no other change begins before.

    begun ──sealed(queue) for each──▶ sealed: publishers use the new ring
          ──passed(queue) for each──▶ the old ring is left
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from millstream.runtime import ConfigError, Conflict, Corrupt, Etag, StateStore
from millstream.runtime.extending import seal_content, show_text, unseal
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.token import Token

__all__ = ["MapperRecord", "MapperRecords", "OldRing", "name_of"]

NO_FENCE = 0
Ring = tuple[int, str, str]
RingOf = Callable[[int, int], QueueMapper]


class OldRing(msgspec.Struct, frozen=True):
    """The queues before a change of their number, while they are not done.

    `begun_era`: messages behind the seals have at least this one. `unsealed`: queues of both rings
    that are still to be sealed; the new ones, too, so that what comes with the new ring is told by
    its era. `barriers`: of each queue of this ring that is sealed, its last message before that.
    `passed`: those that are done up to there, but for streams that are behind.
    """

    queues: int
    first: str
    last: str
    mapper_epoch: int
    begun_era: int
    unsealed: tuple[QueueId, ...] = ()
    barriers: dict[QueueId, Token | None] = {}
    passed: dict[QueueId, tuple[StreamId, ...]] = {}

    @property
    def is_sealed(self) -> bool:
        """Is every queue sealed?"""
        return not self.unsealed


class MapperRecord(msgspec.Struct, frozen=True):
    """How many queues, the first and the last of them, the version of the mapper, the era.

    `old`: the ring before, while it is not done. `configured`: the ring that silos bring, if their
    number was changed since. `name`: of a mapper that has one (`Named`): what cannot be seen of it.
    """

    queues: int
    first: str
    last: str
    mapper_epoch: int
    era: int = 0
    old: OldRing | None = None
    configured: Ring | None = None
    name: str = ""

    @property
    def ring(self) -> Ring:
        """Number of queues, first and last."""
        return self.queues, self.first, self.last

    def takes(self, brought: MapperRecord) -> bool:
        """May a silo come with that ring?"""
        if self.name != brought.name:
            return False
        if self.configured is None:
            return (self.ring, self.mapper_epoch) == (brought.ring, brought.mapper_epoch)
        return brought.ring in (self.ring, self.configured)

    def begin(self, new: MapperRecord, queues: Sequence[QueueId]) -> MapperRecord:
        """The record in which a change to another ring has begun; `queues`: of both."""
        assert self.old is None and new.mapper_epoch == self.mapper_epoch + 1
        era = self.era + 1
        epoch = self.mapper_epoch
        old = OldRing(*self.ring, mapper_epoch=epoch, begun_era=era, unsealed=tuple(queues))
        configured = self.configured or self.ring
        return msgspec.structs.replace(new, era=era, old=old, configured=configured)

    def seal(self, queue: QueueId, barrier: Token | None, *, is_old: bool) -> MapperRecord:
        """A queue is sealed; one of the old ring that never had a message is done, too."""
        if self.old is None or queue not in self.old.unsealed:
            return self
        unsealed = tuple(one for one in self.old.unsealed if one != queue)
        barriers = {**self.old.barriers, queue: barrier} if is_old else self.old.barriers
        old = msgspec.structs.replace(self.old, unsealed=unsealed, barriers=barriers)
        record = msgspec.structs.replace(self, old=old)
        return record.pass_barrier(queue) if is_old and barrier is None else record.left()

    def pass_barrier(self, queue: QueueId, behind: Iterable[StreamId] = ()) -> MapperRecord:
        """A queue of the old ring is done up to its barrier, but for these streams."""
        still = tuple(sorted(behind))
        if self.old is None or self.old.passed.get(queue) == still:
            return self
        assert queue in self.old.barriers, f"{queue} has no barrier"
        old = msgspec.structs.replace(self.old, passed={**self.old.passed, queue: still})
        return msgspec.structs.replace(self, old=old).left()

    def left(self) -> MapperRecord:
        """Without the old ring, if nothing is to be done in it."""
        old = self.old
        if old is None or not old.is_sealed or len(old.passed) < old.queues:
            return self
        if any(old.passed.values()):
            return self
        return msgspec.structs.replace(self, old=None)

    def __str__(self) -> str:
        ends = f" ({self.first} to {self.last})" if self.queues else ""
        name = f", mapper {show_text(repr(self.name))}" if self.name else ""
        return f"{self.queues} queues{ends}{name}, mapper epoch {self.mapper_epoch}"


@runtime_checkable
class Named(Protocol):
    """A mapper whose name says what it does: its silos must have that alike."""

    @property
    def name(self) -> str: ...


def name_of(mapper: QueueMapper) -> str:
    """The name of a mapper; empty: it has none."""
    return mapper.name if isinstance(mapper, Named) else ""


def record_of(mapper: QueueMapper) -> MapperRecord:
    """What a silo with this mapper brings."""
    names = mapper.queues()
    ends = (names[0], names[-1]) if names else ("", "")
    return MapperRecord(len(names), *ends, mapper.epoch, name=name_of(mapper))


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
        stored, _ = await self._ensure()
        if not stored.takes(self._brought):
            raise ConfigError(
                f"stream provider {self._provider!r}: its events are in {stored}; this silo brings "
                f"{self._brought}: give PersistentStreams the mapper that it had, or another name "
                "to a provider with other queues"
            )

    async def era(self) -> int:
        """The era. Raises StorageError."""
        return (await self._ensure())[0].era

    async def mapper_epoch(self) -> int:
        """The newest mapper epoch. Raises StorageError."""
        return (await self._ensure())[0].mapper_epoch

    async def raise_era(self, seen: int) -> int:
        """Make the era higher than `seen`, unless it is; returns it. Raises StorageError."""

        def raise_one(record: MapperRecord) -> MapperRecord:
            return msgspec.structs.replace(record, era=max(record.era, seen + 1))

        return (await self.change(raise_one)).era

    async def read(self) -> MapperRecord:
        """The record. Raises StorageError."""
        return (await self._ensure())[0]

    async def change(self, step: Callable[[MapperRecord], MapperRecord]) -> MapperRecord:
        """Replace the record by what `step` makes of it, again until nobody was faster."""
        while True:
            stored, etag = await self._ensure()
            new = step(stored)
            if new == stored:
                return stored
            try:
                await self._write(new, etag)
            except Conflict:
                continue
            return new

    async def resize(self, new: QueueMapper, ring_of: RingOf) -> MapperRecord:
        """Begin a change to another ring. Raises ConfigError: another one is under way."""

        def begin(record: MapperRecord) -> MapperRecord:
            wanted = record_of(new)
            if record.ring == wanted.ring:
                return record
            if record.old is not None or record.mapper_epoch + 1 != wanted.mapper_epoch:
                raise ConfigError(
                    f"stream provider {self._provider!r}: it is being changed to {record}; wait "
                    "until its former queues are done"
                )
            now = ring_of(record.queues, record.mapper_epoch).queues()
            return record.begin(wanted, tuple(dict.fromkeys([*now, *new.queues()])))

        return await self.change(begin)

    async def _ensure(self) -> tuple[MapperRecord, Etag]:
        """What is stored; what this silo brings, if it is the first."""
        while True:
            row = await self._store.read(self._key)
            if row is not None:
                return self._decode(row.data), row.etag
            try:
                return self._brought, await self._write(self._brought, None)
            except Conflict:
                continue  # another silo was first

    async def _write(self, record: MapperRecord, expect: Etag | None) -> Etag:
        data = seal_content(self._key, msgspec.msgpack.encode(record))
        return await self._store.write(self._key, data, expect, NO_FENCE)

    def _decode(self, data: bytes) -> MapperRecord:
        try:
            return self._decoder.decode(unseal(self._key, data).content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"row {self._key!r} is not a mapper record: {error}") from None
