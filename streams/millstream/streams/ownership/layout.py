"""The queues of a provider as one silo knows them: the ring in use, and the former ring.

A ring is the mapper of one epoch. `mapper_record` owns the stored row, and `provider.queue_resize`
changes it.

Invariants:

- The layout moves only to later mapper epochs.
- Publishers use a ring only after every queue of the former ring is sealed.
- An event of a moved stream is delivered only after its former queue is done up to its barrier.
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
    """A mapper that can be made for another number of queues."""

    def with_queues(self, queues: int, epoch: int, /) -> QueueMapper: ...


class Layout:
    """Maps each stream to its present queue (`QueueMapper`), and knows its former queue.

    Attributes:
        epoch: the epoch of the ring that publishers use.
        queue_for: maps a stream by that ring. Raises StreamError if the mapper has no queue for it.
        era: the newest era whose ring this silo knows; messages of later eras have to wait.
        asked_era: the newest era of a message that waits for its ring.
        is_settled: whether no former ring has unfinished queues.
        open_era: events up to this era may be delivered, whatever their stream; -1: check each
            event.
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
        self.queue_for = mapper.queue_for  # no wrapper: each publish calls this

    def bring(self, mapper: QueueMapper) -> None:
        """Use another mapper of the broker from now on."""
        self._before, self._brought, self._newest = self._newest, mapper, sound(mapper)
        self._publish_by(self._newest)

    def queues(self) -> Sequence[QueueId]:
        """Return the queues of the ring that publishers use."""
        return self._ring.queues()

    def read_queues(self) -> Sequence[QueueId]:
        """Return all queues that have to be read, including those of a former ring."""
        old = () if self._old_ring is None else self._old_ring.queues()
        return tuple(dict.fromkeys([*self._newest.queues(), *old]))

    def queues_of(self, stream: StreamId) -> Sequence[QueueId]:
        """Return the queues that may have events of a stream. Raises StreamError if no ring has
        one."""
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
        """Return the queues of the former ring, while they are not done."""
        return () if self._old_ring is None else self._old_ring.queues()

    @property
    def old(self) -> OldRing | None:
        """The former ring, until all events of its queues are processed."""
        return self._old

    def with_queues(self, queues: int, epoch: int) -> QueueMapper:
        """Return the mapper for another number of queues. Raises ConfigError if it cannot have
        that."""
        if not isinstance(self._brought, Resizable):
            name = type(self._brought).__name__
            raise ConfigError(
                f"the mapper {name} has no method `resized(queues, epoch)`, so the number of its "
                "queues is fixed"
            )
        return self._brought.with_queues(queues, epoch)

    def ring_of(self, queues: int, epoch: int) -> QueueMapper:
        """Return the ring of an epoch. Raises ConfigError if the mapper cannot make it."""
        brought = self._brought
        return sound(brought if epoch == brought.epoch else self.with_queues(queues, epoch))

    def is_news(self, record: MapperRecord) -> bool:
        """Say whether this record would make publishers use another ring."""
        new = record.mapper_epoch
        if record.old is not None and not record.old.is_sealed:
            new = record.old.mapper_epoch
        return new > self.epoch

    def on_record_read(self, asked_era: int) -> None:
        """Remember that the ring of this era is known: the mapper record was read after a message
        of this era arrived."""
        if asked_era > self.era:
            self.era = asked_era
            self._tell()

    def _tell(self) -> None:
        self.open_era = self.era if self.is_settled else -1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def adopt(self, record: MapperRecord) -> bool:
        """Adopt the rings of the record. False: they were adopted before."""
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

    # -- eras of messages

    def is_open(self, stream: StreamId, queue: QueueId, era: int) -> bool:
        """Say whether an event of a queue may be delivered.

        If the former ring has no queue for the stream, the event waits until that ring is left.
        """
        if era > self.era:
            return False  # the ring of this era is not known here yet
        if self._old is None or self._old_ring is None or era < self._old.begun_era:
            return True
        try:
            home = self._old_ring.queue_for(stream)
        except StreamError:
            return False
        return home == queue or stream not in self._old.passed.get(home, (stream,))

    async def wait_open(self, stream: StreamId, queue: QueueId, era: int) -> None:
        """Return when an event of this queue and era may be delivered."""
        while not self.is_open(stream, queue, era):
            self.asked_era = max(self.asked_era, era)
            if era > self.era:
                self.look_again()
            await self._changed.wait()
