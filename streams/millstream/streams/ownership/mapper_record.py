"""The row of one provider: the number of its queues, and the era of its numbering.

Owns `MapperRecord`, its storage, and the steps of a change of the number of queues.
`provider.queue_resize` takes these steps.

Invariants:

- The row changes only by compare-and-set.
- The row names the queues that may hold messages. A silo with other queues is refused, even after a
  restart of the whole cluster.
- Era and mapper epoch only rise.
- A ring is left when each of its queues is sealed and done up to its barrier. No other change
  begins before that.

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

    - `begun_era`: messages after the seals have at least this era.
    - `unsealed`: queues of both rings that still have to be sealed. New queues are sealed too, so
      that the era tells messages of the new ring from older ones.
    - `barriers`: for each sealed queue of this ring, its last message before the seal.
    - `passed`: queues that are done up to their barrier, each with its streams that still lag.
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
        """Whether every queue is sealed."""
        return not self.unsealed


class MapperRecord(msgspec.Struct, frozen=True):
    """The number of queues, the first and the last of them, the mapper epoch, and the era.

    `old` is the former ring, while it is not done. `configured` is the ring in the silos'
    configuration, if a resize has changed the number since. `name` is the name of a mapper that has
    one (`Named`).
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
        """The number of queues, the first and the last."""
        return self.queues, self.first, self.last

    def takes(self, brought: MapperRecord) -> bool:
        """Say whether a silo with this ring in its configuration may join."""
        if self.name != brought.name:
            return False
        if self.configured is None:
            return (self.ring, self.mapper_epoch) == (brought.ring, brought.mapper_epoch)
        return brought.ring in (self.ring, self.configured)

    def begin(self, new: MapperRecord, queues: Sequence[QueueId]) -> MapperRecord:
        """Return the record of a change that begins. `queues` are the queues of both rings."""
        assert self.old is None and new.mapper_epoch == self.mapper_epoch + 1
        era = self.era + 1
        epoch = self.mapper_epoch
        old = OldRing(*self.ring, mapper_epoch=epoch, begun_era=era, unsealed=tuple(queues))
        configured = self.configured or self.ring
        return msgspec.structs.replace(new, era=era, old=old, configured=configured)

    def seal(self, queue: QueueId, barrier: Token | None, *, is_old: bool) -> MapperRecord:
        """Seal a queue. A queue of the old ring that never had a message is done at once."""
        if self.old is None or queue not in self.old.unsealed:
            return self
        unsealed = tuple(one for one in self.old.unsealed if one != queue)
        barriers = {**self.old.barriers, queue: barrier} if is_old else self.old.barriers
        old = msgspec.structs.replace(self.old, unsealed=unsealed, barriers=barriers)
        record = msgspec.structs.replace(self, old=old)
        return record.pass_barrier(queue) if is_old and barrier is None else record.left()

    def pass_barrier(self, queue: QueueId, behind: Iterable[StreamId] = ()) -> MapperRecord:
        """Return the record after a queue of the old ring is done up to its barrier.

        The streams in `behind` still lag.
        """
        still = tuple(sorted(behind))
        if self.old is None or self.old.passed.get(queue) == still:
            return self
        assert queue in self.old.barriers, f"{queue} has no barrier"
        old = msgspec.structs.replace(self.old, passed={**self.old.passed, queue: still})
        return msgspec.structs.replace(self, old=old).left()

    def left(self) -> MapperRecord:
        """Return the record without the old ring, if that ring is done."""
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
    """A mapper with a name for its mapping; all silos must have the same name."""

    @property
    def name(self) -> str: ...


def name_of(mapper: QueueMapper) -> str:
    """Return the name of a mapper, or "" if it has none."""
    return mapper.name if isinstance(mapper, Named) else ""


def record_of(mapper: QueueMapper) -> MapperRecord:
    """Return the record for the mapper of a silo's configuration."""
    names = mapper.queues()
    ends = (names[0], names[-1]) if names else ("", "")
    return MapperRecord(len(names), *ends, mapper.epoch, name=name_of(mapper))


class MapperRecords:
    """The mapper record of one provider, in its state store; only this class writes it."""

    __slots__ = ("_brought", "_decoder", "_key", "_provider", "_store")

    def __init__(self, store: StateStore, provider: str, mapper: QueueMapper) -> None:
        self._store = store
        self._provider = provider
        self._brought = record_of(mapper)
        self._key = f"mapper/{provider}"
        self._decoder = msgspec.msgpack.Decoder(MapperRecord)

    async def agree(self) -> None:
        """Store this silo's record, if nothing is stored yet.

        Raises ConfigError if other queues are stored; StorageError.
        """
        stored, _ = await self._ensure()
        if not stored.takes(self._brought):
            raise ConfigError(
                f"stream provider {self._provider!r}: its events are in {stored}, but this silo "
                f"has {self._brought}: give PersistentStreams the former mapper, or give the "
                "provider with other queues another name"
            )

    async def era(self) -> int:
        """Return the era. Raises StorageError."""
        return (await self._ensure())[0].era

    async def mapper_epoch(self) -> int:
        """Return the newest mapper epoch. Raises StorageError."""
        return (await self._ensure())[0].mapper_epoch

    async def raise_era(self, seen: int) -> int:
        """Make the era higher than `seen` if it is not, and return it. Raises StorageError."""

        def raise_one(record: MapperRecord) -> MapperRecord:
            return msgspec.structs.replace(record, era=max(record.era, seen + 1))

        return (await self.change(raise_one)).era

    async def read(self) -> MapperRecord:
        """Return the record. Raises StorageError."""
        return (await self._ensure())[0]

    async def change(self, step: Callable[[MapperRecord], MapperRecord]) -> MapperRecord:
        """Replace the record by the result of `step`, and retry after each conflict."""
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
        """Begin a change to another ring. Raises ConfigError if another change is not finished."""

        def begin(record: MapperRecord) -> MapperRecord:
            wanted = record_of(new)
            if record.ring == wanted.ring:
                return record
            if record.old is not None or record.mapper_epoch + 1 != wanted.mapper_epoch:
                raise ConfigError(
                    f"stream provider {self._provider!r}: a change to {record} is in progress; "
                    "wait until its former queues are done"
                )
            now = ring_of(record.queues, record.mapper_epoch).queues()
            return record.begin(wanted, tuple(dict.fromkeys([*now, *new.queues()])))

        return await self.change(begin)

    async def _ensure(self) -> tuple[MapperRecord, Etag]:
        """Return the stored record; store this silo's record first if there is none."""
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
