"""The queues of a provider as one silo knows them now: the ring in use, and the one before it.

Owns: `Layout`. Not: the row behind it (`mapper_record`), who changes it (`provider.queue_resize`).
Invariants: it goes on only to later mapper epochs; publishers use a ring once every queue of the
one before is sealed; an event of a stream that has moved is delivered once its former queue is
done up to its barrier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from millstream.runtime import ConfigError, StreamError
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper

from .mapper_record import MapperRecord, OldRing
from .sound import sound

__all__ = ["Layout", "Resizable"]


@runtime_checkable
class Resizable(Protocol):
    """A mapper that can have another number of queues."""

    def with_queues(self, queues: int, epoch: int, /) -> QueueMapper: ...


class Layout:
    """Which queue carries a stream, now (`QueueMapper`); and from where it came there.

    Attributes:
        epoch, queue_for: of the ring that publishers use; `queue_for` raises StreamError: the
            mapper has no queue for a stream.
        era: messages of later eras may have been mapped by a ring that is not known here yet.
        asked_era: the newest era of a message that waits for that.
        is_settled: there is no former ring that is not done.
        open_era: events up to this era may be delivered, whichever stream they are of.
    """

    def __init__(self, mapper: QueueMapper) -> None:
        self._brought = mapper
        self._record: MapperRecord | None = None
        self._old: OldRing | None = None
        self._old_ring: QueueMapper | None = None
        self._ring = self._newest = self._before = sound(mapper)
        self._changed = asyncio.Event()
        self.look_again: Callable[[], None] = lambda: None
        self.asked_era = self.era = self.open_era = 0
        self.is_settled = True
        self._publish_by(self._newest)

    def _publish_by(self, mapper: QueueMapper) -> None:
        self._ring = mapper
        self.epoch = mapper.epoch
        self.queue_for = mapper.queue_for  # no frame of its own: it is called for each publish

    def bring(self, mapper: QueueMapper) -> None:
        """The broker has another one: it is used from now on."""
        self._before, self._brought, self._newest = self._newest, mapper, sound(mapper)
        self._publish_by(self._newest)

    def queues(self) -> Sequence[QueueId]:
        """The queues of the ring that publishers use."""
        return self._ring.queues()

    def read_queues(self) -> Sequence[QueueId]:
        """All that have to be read: those of a former ring, too."""
        old = () if self._old_ring is None else self._old_ring.queues()
        return tuple(dict.fromkeys([*self._newest.queues(), *old]))

    def queues_of(self, stream: StreamId) -> Sequence[QueueId]:
        """Those in which events of a stream may be. Raises StreamError: no ring has one for it."""
        found: dict[QueueId, None] = {}
        refused: StreamError | None = None
        for ring in (self._old_ring or self._before, self._newest):
            try:
                found[ring.queue_for(stream)] = None
            except StreamError as error:
                refused = error
        if refused is not None and not found:
            raise refused
        return tuple(found)

    def old_queues(self) -> Sequence[QueueId]:
        """The queues of the former ring, while it is not done."""
        return () if self._old_ring is None else self._old_ring.queues()

    @property
    def old(self) -> OldRing | None:
        """The ring before, while it is not done."""
        return self._old

    def with_queues(self, queues: int, epoch: int) -> QueueMapper:
        """The mapper with another number of queues. Raises ConfigError: it cannot have that."""
        if not isinstance(self._brought, Resizable):
            name = type(self._brought).__name__
            raise ConfigError(f"the mapper {name} has no `resized(queues, epoch)`")
        return self._brought.with_queues(queues, epoch)

    def ring_of(self, queues: int, epoch: int) -> QueueMapper:
        """The ring of an epoch. Raises ConfigError."""
        brought = self._brought
        return sound(brought if epoch == brought.epoch else self.with_queues(queues, epoch))

    def is_news(self, record: MapperRecord) -> bool:
        """Would publishers use another ring?"""
        new = record.mapper_epoch
        if record.old is not None and not record.old.is_sealed:
            new = record.old.mapper_epoch
        return new > self.epoch

    def on_record_read(self, asked_era: int) -> None:
        """The record was read after a message of this era had come: its ring is known."""
        if asked_era > self.era:
            self.era = asked_era
            self._tell()

    def _tell(self) -> None:
        self.open_era = self.era if self.is_settled else -1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def adopt(self, record: MapperRecord) -> bool:
        """Go on to what the record says; False: that is known."""
        if record == self._record:
            return False
        self._record, self._old, self.era = record, record.old, max(self.era, record.era)
        self._newest = self.ring_of(record.queues, record.mapper_epoch)
        old = record.old
        self._old_ring = None if old is None else self.ring_of(old.queues, old.mapper_epoch)
        is_sealed = old is None or old.is_sealed
        self._publish_by(self._newest if is_sealed or not self._old_ring else self._old_ring)
        self.is_settled = old is None
        self._tell()
        return True

    # -- what came with which ring

    def is_open(self, stream: StreamId, queue: QueueId, era: int) -> bool:
        """May an event of a queue be delivered?

        One for whose stream the former ring has no queue waits until that ring is left.
        """
        if era > self.era:
            return False  # of a ring that is not known here yet
        if self._old is None or self._old_ring is None or era < self._old.begun_era:
            return True
        try:
            home = self._old_ring.queue_for(stream)
        except StreamError:
            return False
        return home == queue or stream not in self._old.passed.get(home, (stream,))

    async def wait_open(self, stream: StreamId, queue: QueueId, era: int) -> None:
        """Return when it may."""
        while not self.is_open(stream, queue, era):
            self.asked_era = max(self.asked_era, era)
            if era > self.era:
                self.look_again()
            await self._changed.wait()
