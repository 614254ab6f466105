"""Drives the ownership of queues: acquires wanted queues, and hands over unwanted ones.

It runs one loop for each queue and one for all records, and it has the readers of this silo.
`decision.decide` makes the decisions. A balancer chooses the wanted queues.

Invariants:

- A reader runs exactly while this silo owns its queue.
- A reader pauses as soon as its queue is not wanted, even if the store does not answer. This is
  before the record says so.
- A reader stops before the record is freed.
- If another silo has taken the queue, or the lease has expired, the reader stops and writes
  nothing.
- The result of a hand-over is kept until the record has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from millstream.runtime import Conflict, Corrupt, Etag, MillstreamError, StorageError
from millstream.runtime.extending import SiloAddress, Tasks
from millstream.streams.contracts.identity import QueueId

from .decision import (
    Acquire,
    Decision,
    FirstSeen,
    Free,
    Keep,
    Left,
    Local,
    Owned,
    OwnershipLost,
    Pause,
    Pausing,
    Renew,
    Situation,
    Unowned,
    Wait,
    decide,
    is_stored,
)
from .options import OwnershipOptions
from .record import QueueProgress, QueueRecord, StoredRecord, hand_over, with_progress
from .store import OwnershipStore

__all__ = ["BeginReading", "QueueManager", "Reader", "Surroundings"]

log = logging.getLogger("millstream.manager")

DAMAGED_LOOK_S = 10.0
"""Seconds until a damaged queue record is read again: an operator has to restore it."""


class Reader(Protocol):
    """The reader of one queue in one epoch."""

    @property
    def is_fenced(self) -> bool:
        """Whether another silo owns the queue."""
        ...

    def fence(self) -> None:
        """Write nothing more: another silo owns the queue."""
        ...

    @property
    def is_acked(self) -> bool: ...
    @property
    def progress(self) -> QueueProgress | None: ...
    @property
    def is_urgent(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def unacked(self) -> int: ...
    @property
    def undone(self) -> int: ...
    def on_stored(self, progress: QueueProgress) -> None:
        """Remember that the queue record has this progress."""
        ...

    def handoff(self) -> QueueProgress | None:
        """Return all that the next owner can use, after this reader has stopped. None: nothing."""
        ...

    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    async def stop(self) -> None: ...
    def abort(self) -> None: ...


R = TypeVar("R", bound=Reader)
R_co = TypeVar("R_co", bound=Reader, covariant=True)


class BeginReading(Protocol[R_co]):
    """Makes the reader of a queue that was just acquired."""

    def __call__(
        self,
        queue: QueueId,
        epoch: int,
        progress: QueueProgress,
        *,
        may_repeat: bool,
        has_rival: bool,
    ) -> R_co: ...


class Surroundings(Protocol):
    """The silo as the manager sees it."""

    @property
    def me(self) -> SiloAddress: ...
    @property
    def tasks(self) -> Tasks: ...
    def live(self) -> frozenset[SiloAddress]:
        """Return every silo that is not dead, including stopping ones."""
        ...

    async def look_for(self, silo: SiloAddress, /) -> None:
        """Add a silo to the view if it is in the cluster; it may have joined after the view was
        read. Raises StorageError if this cannot be found out."""
        ...

    def on_freed(self, queue: QueueId, /) -> None:
        """Tell the silo that wants this queue that it has no owner."""
        ...


class OwnedQueue(Generic[R]):
    """One queue as this silo sees it."""

    __slots__ = (
        "_waiter",
        "has_news",
        "is_gone",
        "is_held",
        "kept",
        "lease_timer",
        "local",
        "reader",
        "task",
    )

    def __init__(self) -> None:
        self.kept: StoredRecord | None = None  # set while this silo owns the queue and idles
        self.lease_timer: asyncio.TimerHandle | None = None
        self.local: Local = Unowned()
        self.reader: R | None = None
        self.has_news = False  # a change since the last decision
        self._waiter: asyncio.Future[None] | None = None
        self.is_gone = False  # the provider no longer has this queue
        self.is_held = False  # an operator paused it, as its record says
        self.task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Remember that something changed, and wake the loop of this queue."""
        self.has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Wait for a change, or until the time is over. None waits without a limit."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self.wake)
        try:
            if not self.has_news:
                await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def has_changed(self, etag: Etag | None) -> bool:
        """Say whether a decision is due: the row has another version, or there is progress to
        store."""
        kept, reader = self.kept, self.reader
        if kept is None or reader is None:
            return False  # the queue's own loop reads the record
        moved = with_progress(kept.record, reader.progress) is not kept.record
        return moved or etag != kept.etag


class QueueManager(Generic[R]):
    """The queues of one provider in one silo."""

    def __init__(
        self,
        queues: Sequence[QueueId],
        store: OwnershipStore,
        options: OwnershipOptions,
        silo: Surroundings,
        begin: BeginReading[R],
    ) -> None:
        self._store = store
        self._options = options
        self._silo = silo
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._seen = FirstSeen()
        self._wanted: frozenset[QueueId] = frozenset()
        self._queues: dict[QueueId, OwnedQueue[R]] = {queue: OwnedQueue() for queue in queues}
        self._is_stopping = False
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run a loop for each queue, and one for all."""
        self._watching = self._silo.tasks.start(self._watch())
        for queue, owned in self._queues.items():
            owned.task = self._silo.tasks.start(self._own(queue, owned))

    def cover(self, queues: Iterable[QueueId]) -> None:
        """Set the queues of the provider; queues that are no longer among them are given up."""
        covered = frozenset(queues)
        for queue in sorted(covered - self._queues.keys()):
            owned = self._queues[queue] = OwnedQueue()
            owned.task = self._silo.tasks.start(self._own(queue, owned))
        for queue in sorted(self._queues.keys() - covered):
            self._queues[queue].is_gone = True
            self.wake(queue)
        for queue in covered:
            self._queues[queue].is_gone = False
        self.want(self._wanted & covered)

    def want(self, queues: Iterable[QueueId]) -> None:
        """Set the queues that this silo should read, as the balancer chose them."""
        if self._is_stopping:
            return
        wanted = frozenset(q for q in queues if q in self._queues and not self._queues[q].is_gone)
        changed, self._wanted = self._wanted ^ wanted, wanted
        for queue in sorted(changed):
            self._pause_unwanted(queue)
            self.wake(queue)

    def _pause_unwanted(self, queue: QueueId) -> None:
        """Stop reading and sending at once if the queue is not wanted; the record is written
        later."""
        owned = self._queues.get(queue)
        if owned is None or self._is_wanted(queue) or owned.reader is None:
            return
        if isinstance(owned.local, Owned):
            deadline_s = self._loop.time() + self._options.max_handoff_s
            owned.local = Pausing(owned.local.epoch, deadline_s)
            owned.reader.pause()

    def _is_wanted(self, queue: QueueId) -> bool:
        is_held = queue in self._queues and self._queues[queue].is_held
        return queue in self._wanted and not self._is_stopping and not is_held

    def wake(self, queue: QueueId) -> None:
        """Decide again about a queue, because something changed."""
        owned = self._queues.get(queue)
        if owned is not None:
            owned.wake()

    def wake_all(self) -> None:
        """Decide again about all wanted queues, because the membership changed."""
        for queue in sorted(self._wanted):
            self.wake(queue)

    def agent(self, queue: QueueId) -> R | None:
        """Return this silo's reader of a queue, or None."""
        owned = self._queues.get(queue)
        return None if owned is None else owned.reader

    def agents(self) -> list[R]:
        """Return every reader of this silo."""
        return [owned.reader for owned in self._queues.values() if owned.reader is not None]

    async def _watch(self) -> None:
        """Check all records in one scan, so that idle queues need no reads of their own."""
        while True:
            await asyncio.sleep(self._options.poll_s)
            if not any(owned.kept for owned in self._queues.values()):
                continue
            try:
                await self._look()
            except StorageError as error:
                text = "the queue records could not be read; retrying: %s"
                log.warning(text, error, extra={"silo": self._silo.me})
            except Exception:
                text = "the check of the queue records failed; retrying"
                log.exception(text, extra={"silo": self._silo.me})

    async def _look(self) -> None:
        etags = await self._store.etags()
        for queue, owned in self._queues.items():
            if owned.has_changed(etags.get(queue)):
                self.wake(queue)

    # -- one queue

    async def _own(self, queue: QueueId, owned: OwnedQueue[R]) -> None:
        while True:
            owned.has_news = False
            wait_s: float | None = self._options.poll_s
            try:
                wait_s = await self._decide(queue, owned)
            except Corrupt as error:
                text = "%s: no silo reads the queue, because its record is damaged: %s"
                log.error(text, queue, error, extra=self._where(queue))
                wait_s = DAMAGED_LOOK_S
            except StorageError as error:
                text = "%s: the queue record could not be read or written; retrying: %s"
                log.warning(text, queue, error, extra=self._where(queue))
            except Exception:
                text = "%s: the ownership could not be decided; retrying"
                log.exception(text, queue, extra=self._where(queue))
            if wait_s is None and self._is_stopping:
                return  # the queue is free, and its record says so
            if wait_s is None and owned.is_gone:
                self._queues.pop(queue)
                return
            if not owned.has_news:
                await owned.wait(wait_s)

    async def _decide(self, queue: QueueId, owned: OwnedQueue[R]) -> float | None:
        """Read, decide and act.

        Return the seconds until the next decision, or None to wait until woken.
        """
        self._pause_unwanted(queue)
        reader, owned.kept = owned.reader, None
        if reader is not None and reader.is_fenced:
            await self._drop(queue, owned)
            return 0.0
        stored = await self._store.read(queue)
        owned.is_held = stored is not None and stored.record.is_held
        if stored is not None and stored.record.owner:
            await self._silo.look_for(stored.record.owner)  # otherwise a new owner would look dead
        self._pause_unwanted(queue)
        now = self._loop.time()
        progress = None if reader is None else reader.progress
        situation = Situation(
            record=None if stored is None else stored.record,
            seen_s=self._seen.saw(queue, None if stored is None else stored.etag, now),
            now_s=now,
            me=self._silo.me,
            live=self._silo.live(),
            is_wanted=self._is_wanted(queue),
            local=owned.local,
            progress=progress,
            in_flight=0 if reader is None else reader.in_flight,
            unacked=0 if reader is None else reader.unacked,
            undone=0 if reader is None else reader.undone,
            is_urgent=reader is not None and reader.is_urgent,
        )
        decision = decide(situation, self._options)
        wait_s = await self._act(queue, owned, stored, decision)
        if reader is not None and progress is not None and is_stored(progress, stored, decision):
            reader.on_stored(progress)
        return wait_s

    async def _act(
        self,
        queue: QueueId,
        owned: OwnedQueue[R],
        stored: StoredRecord | None,
        decision: Decision,
    ) -> float | None:
        now = self._loop.time()
        match decision:
            case Keep():
                return self._keep(queue, owned, stored)
            case Wait(until_s=until_s):
                return max(0.0, until_s - now)
            case OwnershipLost():
                await self._drop(queue, owned)
            case Acquire():
                await self._acquire(queue, owned, stored, decision)
            case Renew(record=record):
                await self._write(queue, stored, record)
                self._go_on(queue, owned)
            case Pause(record=record):
                await self._write(queue, stored, record)
            case Free(record=record):
                await self._free(queue, owned, stored, record)
        return 0.0

    def _keep(
        self, queue: QueueId, owned: OwnedQueue[R], stored: StoredRecord | None
    ) -> float | None:
        """Wait until something changes, or until the lease has to be renewed."""
        if isinstance(owned.local, Unowned) and queue not in self._wanted:
            return None
        if stored is None or stored.record.lease_s or not isinstance(owned.local, Owned):
            return self._options.poll_s
        owned.kept = stored
        return None

    def _go_on(self, queue: QueueId, owned: OwnedQueue[R]) -> None:
        """Keep the queue; resume its reader if it was paused and is wanted again."""
        if isinstance(owned.local, Pausing) and self._is_wanted(queue):
            owned.local = Owned(owned.local.epoch)
            if owned.reader is not None:
                owned.reader.resume()

    async def _write(
        self, queue: QueueId, stored: StoredRecord | None, record: QueueRecord
    ) -> None:
        before_s = self._loop.time()
        etag = await self._store.write(queue, record, None if stored is None else stored.etag)
        self._seen.saw(queue, etag, before_s)
        self._watch_lease(queue, record, before_s)

    def _watch_lease(self, queue: QueueId, record: QueueRecord, written_s: float) -> None:
        """Stop the reader when the lease expires, even if the store does not answer then."""
        owned = self._queues[queue]
        if owned.lease_timer is not None:
            owned.lease_timer.cancel()
            owned.lease_timer = None
        if record.lease_s:
            end_s = written_s + record.lease_s
            owned.lease_timer = self._silo.tasks.call_at(end_s, lambda: self._run_out(queue, owned))

    def _run_out(self, queue: QueueId, owned: OwnedQueue[R]) -> None:
        owned.lease_timer = None
        if owned.reader is not None and not owned.reader.is_fenced:
            text = "%s: the lease expired, because the queue record could not be written in time"
            log.warning(text, queue, extra=self._where(queue))
            owned.reader.pause()
            owned.reader.fence()
            owned.wake()

    async def _acquire(
        self,
        queue: QueueId,
        owned: OwnedQueue[R],
        stored: StoredRecord | None,
        decision: Acquire,
    ) -> None:
        record = decision.record
        try:
            await self._write(queue, stored, record)
        except Conflict:
            return  # another silo was faster: read again
        owned.local = Owned(record.epoch)
        owned.reader = self._begin(
            queue,
            record.epoch,
            decision.progress,
            may_repeat=decision.may_repeat,
            has_rival=decision.has_rival,
        )
        owned.reader.start()
        how = "; the last owner is gone or did not answer" if decision.is_forced else ""
        extra = self._where(queue, record.epoch)
        text = "%s: this silo acquired the queue (epoch %d%s)"
        log.info(text, queue, record.epoch, how, extra=extra)

    async def _free(
        self,
        queue: QueueId,
        owned: OwnedQueue[R],
        stored: StoredRecord | None,
        record: QueueRecord,
    ) -> None:
        reader = owned.reader
        if reader is not None:
            await reader.stop()
            record = hand_over(record, reader.handoff(), is_acked=reader.is_acked)
            owned.reader, owned.local = None, Left(record.epoch, record)
        await self._write(queue, stored, record)
        owned.local = Unowned()
        is_clean = record.handoff is not None and record.handoff.clean
        what = "all read events are done" if is_clean else "unfinished events are redelivered there"
        extra = self._where(queue, record.epoch)
        log.info("%s: handed over to the next silo; %s", queue, what, extra=extra)
        self._silo.on_freed(queue)

    async def _drop(self, queue: QueueId, owned: OwnedQueue[R]) -> None:
        """Stop the reader: the queue belongs to another silo now, or to none."""
        was_left = isinstance(owned.local, Left)
        reader, owned.reader, owned.local = owned.reader, None, Unowned()
        if reader is not None:
            reader.fence()
            await reader.stop()
            text = "%s: another silo took the queue over; unfinished events are redelivered there"
            log.warning(text, queue, extra=self._where(queue))
        elif was_left:
            self._silo.on_freed(queue)

    def _where(self, queue: QueueId, epoch: int | None = None) -> dict[str, object]:
        """Return the extra fields of a log line, for programs that read logs."""
        where: dict[str, object] = {"silo": self._silo.me, "queue": queue}
        return where if epoch is None else {**where, "epoch": epoch}

    # -- stopping

    async def stop(self) -> None:
        """Hand over every queue: pause, drain, free. Bounded by the hand-over time."""
        self._is_stopping, self._wanted = True, frozenset()
        for queue in self._queues:
            self._pause_unwanted(queue)
            self.wake(queue)
        if tasks := self._tasks():
            limit_s = self._options.max_handoff_s + self._options.force_after_s
            await asyncio.wait(tasks, timeout=limit_s)  # each task ends when its queue is free
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
        for owned in self._queues.values():
            if owned.lease_timer is not None:
                owned.lease_timer.cancel()
        for queue, owned in self._queues.items():
            try:
                if owned.reader is not None:
                    await owned.reader.stop()
            except MillstreamError as error:
                text = "%s: the reader of the queue failed while it stopped: %s"
                log.warning(text, queue, error, extra=self._where(queue))

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [owned.task for owned in self._queues.values() if owned.task is not None]

    def abort(self) -> None:
        """Stop at once and write nothing, for example because the silo was evicted."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for owned in self._queues.values():
            if owned.task is not None:
                owned.task.cancel()
            if owned.lease_timer is not None:
                owned.lease_timer.cancel()
            if owned.reader is not None:
                owned.reader.abort()
