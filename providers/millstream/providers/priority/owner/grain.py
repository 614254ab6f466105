"""The owner of a queue: one grain per queue or shard, whose key is the name.

Owns `QueueOwner`: the calls to a queue, opening it for all callers, the timer for due work, and the
end of the ownership. Waiting is in `polls`, commits are in the store's `OwnedQueue`, and the core
carries out commands.

Invariants:

- Calls interleave, and the queue orders them. Any stored change wakes the waiting callers that it
  may help.
- A queue is opened once at a time, for all callers, even if they are cancelled. If opening takes
  longer than its callers wait, the queue is open for the next caller.
- An owner that lost, deleted or released its queue is at its end: the activation ends, and the next
  one opens the queue again.
- Due work is done when its time has come on the queue's clock.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from millstream.providers.priority.core import errors as errors  # their names resolve at the call
from millstream.providers.priority.core.body import check_number
from millstream.providers.priority.core.commands import (
    Adopt,
    Answered,
    Command,
    Configure,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Look,
    ReadSettings,
    Seen,
    Settle,
    Strays,
)
from millstream.providers.priority.core.errors import (
    OwnerLost,
    PriorityQueueNotFound,
    SettingsConflict,
)
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, LeaseGrant, Moving, PollStatus
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.providers.priority.core.shards import at_creation, is_wish, split_name
from millstream.providers.priority.store.contract import ClockReading, OwnedQueue, PriorityStore
from millstream.runtime import (
    DeactivationReason,
    Grain,
    MillstreamError,
    NotInCluster,
    Overloaded,
    always_interleave,
    grain,
)
from millstream.runtime.extending import Role, Tasks, isolated, open_to, services_of, stopping

from .options import WAIT_MS_MAX, PriorityOptions
from .polls import Polls
from .relative import date
from .spreading import Shard, Spreading

__all__ = ["Keeper", "Polled", "QueueOwner", "owner_of"]

log = logging.getLogger("millstream.priority")

PREFIX = "millstream.PriorityQueue."
ENTERING = (Enqueue, EnqueueMany)
"""These commands, and dequeues, create a missing queue if first use may."""
NEVER_MS = 2**62
NONE_ABOVE = -(2**62)
"""Below all priorities. A dequeue with it returns only the leases that its request id got
before.
"""
AGAIN_MS = 5
"""How soon the owner tries again to do work that was due and was not done, in milliseconds."""


class OwnedHere(Protocol):
    """The queues that this silo owns."""

    def add(self, queue: str, owned: OwnedQueue, /) -> None: ...
    def remove(self, queue: str, owned: OwnedQueue, /) -> None: ...


class Keeper(Protocol):
    """The part of a silo that has the store."""

    @property
    def store(self) -> PriorityStore: ...
    @property
    def options(self) -> PriorityOptions: ...
    @property
    def is_ended(self) -> bool:
        """Whether the silo has ended, perhaps without notice to its grains."""
        ...

    @property
    def owned(self) -> OwnedHere:
        """The queues that this silo owns."""
        ...

    def new_tasks(self) -> Tasks: ...
    def shard(self, name: str, /) -> Shard:
        """The owner of a shard."""
        ...

    def find_created_on_use(self, queue: str, /) -> QueueSettings | None:
        """The settings with which first use creates the queue; None if first use does not create
        it.
        """
        ...


class Polled(NamedTuple):
    """The answer to a poll.

    `now_ms` is the queue's time at which the deadlines of the leases are computed. `layout` is that
    of the queue's settings.
    """

    leases: tuple[LeaseGrant, ...]
    status: PollStatus
    now_ms: int
    layout: int = 0


class QueueOwner(Grain):
    """The owner of one queue. Each part has a class of its own."""

    part: ClassVar[str]

    async def on_activate(self) -> None:
        """Prepare the owner. The queue is opened at its first use."""
        keeper: Keeper = services_of(self).part(self.part)
        self._queue, self._keeper = self.key, keeper
        self._tasks = keeper.new_tasks()
        self._owned: OwnedQueue | None = None
        self._is_over = False
        self._opening: asyncio.Task[OwnedQueue | MillstreamError] | None = None
        self._openers = 0
        self._settings = QueueSettings()
        self._due_ms = NEVER_MS  # the time of the armed timer
        self._timer: asyncio.TimerHandle | None = None
        self._is_sweeping = False
        most = keeper.options.waiting_polls_max
        self._polls = Polls(self._queue, self._look_once, partial(self._use, True), most)
        tasks, period_s = keeper.new_tasks(), keeper.options.settle_period_s
        self._spreading = Spreading(self._queue, tasks, period_s, keeper.shard, self._settle)

    # -- calls

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def do(self, command: Command, request: Request | None) -> Answered:
        """Carry out a command, under a request id once.

        Raises the errors of its operation, `OwnerLost`, StorageUnavailable, Overloaded, and
        `PriorityQueueNotFound` if it does not create the queue.
        """
        is_entering = isinstance(command, ENTERING)
        owned = self._owned or await self._use(is_entering or isinstance(command, Dequeue))
        if is_entering:
            command = date(command, owned.now_ms)
        answer: Any = await owned.do(command, request)
        if isinstance(command, Configure):
            self._set(answer.settings)
            self._polls.on_changed()
        return cast(Answered, answer)

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def poll(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """Dequeue.

        If no message is available, wait for one, at most `wait_ms` or until this owner ends.

        Raises the errors of `do`.
        """
        if wait_ms:
            check_number(self._queue, "wait_ms", wait_ms, 0, WAIT_MS_MAX)
        if command.wanted:
            command = command._replace(wanted=tuple(sorted(command.wanted)))
        if wait_ms:
            found = await self._polls.poll(command, request, wait_ms / 1000)
        else:
            found = await self._dequeue(command, request)
        now_ms = self._owned.now_ms() if found.leases and self._owned is not None else 0
        return Polled(found.leases, found.status, now_ms, self._settings.layout)

    @open_to(Role.CLIENT)
    @always_interleave
    async def leave(self, session: str) -> None:
        """Answer the waiting poll of this session, because its caller has left."""
        self._polls.leave(session)

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def look(self, look: Look) -> Seen:
        """Read the queue. Raises the errors of the read and of `do`."""
        owned = self._owned or await self._open_queue(None)
        seen: Seen = await owned.look(look)
        return seen

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def create(self, settings: QueueSettings) -> SettingsRow:
        """Create the queue. An existing queue with the same settings stays as it is.

        Raises `SettingsConflict` if it has other settings, and the errors of `do`.
        """
        row = await (await self._open_queue(settings)).look(ReadSettings())
        if not is_wish(settings, row.settings):
            what = f"it exists with other settings, of version {row.version}"
            raise SettingsConflict(self._queue, what)
        return row

    @always_interleave
    @isolated
    async def adopt(self, settings: QueueSettings, floor: int) -> Moving:
        """Become a shard of a queue with these settings; later leases get numbers above `floor`.

        Returns the messages that may belong to another shard. Raises the errors of `do`.
        """
        owned = await self._open_queue(settings)
        self._set((await owned.do(Adopt(settings, floor))).settings)
        return await owned.look(Strays()) if settings.shards_before else Moving(False, 0)

    @open_to(Role.OPERATOR)
    @always_interleave
    async def clock(self, is_reset: bool) -> ClockReading:
        """The queue's time, and the wall clock of its machine.

        With `is_reset`, the queue's time is set first. Raises the errors of `do`.
        """
        owned = await self._open_queue(None)
        if not is_reset:
            return await owned.read_clock()
        self._disarm()  # its timer was set by the earlier time
        return await owned.reset_clock()

    @open_to(Role.CLIENT)
    @always_interleave
    async def delete(self) -> None:
        """Delete the queue with its messages, and tell waiting callers. Raises the errors of
        `do`.
        """
        owned = await self._open_queue(None)
        try:
            await owned.delete()
        finally:
            self._lose()
        self._polls.on_deleted()  # before they learn that the owner ends

    @always_interleave
    async def wake(self) -> None:
        """Do due work; called for a queue that may have no owner. A missing queue is ignored."""
        with suppress(PriorityQueueNotFound):
            await self._sweep()

    # -- services for polls

    async def _dequeue(self, command: Dequeue, request: Request) -> Dequeued:
        """Dequeue, in as many steps as the search takes. Raises the errors of `do`."""
        while True:
            found = await self._look_once(command, request)
            if found.leases or found.status is not PollStatus.MORE:
                return found
            await asyncio.sleep(0)

    async def _look_once(self, command: Dequeue, request: Request) -> Dequeued:
        """Make one step of a dequeue. Raises the errors of `do`."""
        owned = self._owned or await self._use(True)
        if command.layout != self._settings.layout:
            command = command._replace(not_above=NONE_ABOVE)
        return await owned.do(command, request)

    # -- opening

    async def _use(self, creates: bool) -> OwnedQueue:
        """The queue, for a use that creates it if `creates` is set and first use may.

        Raises the errors of `_open_queue`.
        """
        return await self._open_queue(
            self._keeper.find_created_on_use(self._queue) if creates else None
        )

    async def _open_queue(self, create: QueueSettings | None) -> OwnedQueue:
        """The queue, opened if necessary. A missing queue is created with `create`, if given.

        Raises `PriorityQueueNotFound`, `OwnerLost`, StorageUnavailable or Overloaded.
        """
        while (owned := self._owned) is None:
            if self._is_over:
                raise OwnerLost(
                    self._queue, "this owner has ended: try again, and the next owner answers"
                )
            outcome = await self._outcome(create)
            is_missing = isinstance(outcome, PriorityQueueNotFound)
            if isinstance(outcome, MillstreamError) and not (is_missing and create):
                raise outcome  # otherwise the queue was opened for a caller that does not create it
        return owned

    async def _outcome(self, create: QueueSettings | None) -> OwnedQueue | MillstreamError:
        most = self._keeper.options.opening_calls_max
        if self._openers >= most:
            what = f"queue {self._queue!r} is being opened, and too many calls wait for it"
            raise Overloaded(what, "opening_calls_max", most)
        if self._opening is None:
            self._opening = self._tasks.start(self._open(create))
        self._openers += 1
        try:
            return await asyncio.shield(self._opening)
        finally:
            self._openers -= 1

    async def _open(self, create: QueueSettings | None) -> OwnedQueue | MillstreamError:
        try:
            made = None if create is None else at_creation(self._queue, create)
            owned = await self._keeper.store.acquire(self._queue, made)
            self._settings = await settings_of(owned)
            if self._is_over:
                await owned.release()
                return owned
        except MillstreamError as error:
            return error
        finally:
            self._opening = None
        self._owned = self._polls.owned = owned
        self._keeper.owned.add(self._queue, owned)
        owned.watch(self._on_stored, self._lose)
        self._on_stored(owned.next_due_ms())
        self._spread()
        return owned

    def _set(self, settings: QueueSettings) -> None:
        """Record the new settings of the queue."""
        is_moved = settings.layout != self._settings.layout
        self._settings = settings
        if is_moved:
            self._spread()

    def _spread(self) -> None:
        """React to a new layout: end polls with the old one, and tell the other shards."""
        self._polls.move(self._settings.layout)
        if split_name(self._queue)[1] == 0:
            self._spreading.begin(self._settings)

    async def _settle(self, layout: int) -> QueueSettings:
        row = await (await self._open_queue(None)).do(Settle(layout))
        self._set(row.settings)
        return row.settings

    # -- stored changes and due work

    def _on_stored(self, due_ms: int | None) -> None:
        """React to a commit, after which work is due at `due_ms`."""
        owned = self._owned
        if owned is None:
            return
        if due_ms is not None and due_ms < self._due_ms:
            self._arm(owned, due_ms)
        if self._polls.sleepers:
            self._polls.tell()

    def _arm(self, owned: OwnedQueue, due_ms: int) -> None:
        # never in the past: otherwise each look would report a change, and no poll would sleep
        now_ms = owned.now_ms()
        due_ms = max(due_ms, now_ms + AGAIN_MS)
        if due_ms >= self._due_ms:
            return
        self._disarm()
        self._due_ms = due_ms
        at_s = asyncio.get_running_loop().time() + (due_ms - now_ms) / 1000
        self._timer = self._tasks.call_at(at_s, self._due)

    def _disarm(self) -> None:
        self._due_ms = NEVER_MS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._disarm()
        if not self._keeper.is_ended:
            self._tasks.start(self._sweep_and_tell())

    async def _sweep_and_tell(self) -> None:
        try:
            await self._sweep()
        except MillstreamError as error:
            # the queue is lost, or the work is tried again: no caller waits for it here
            log.info("queue %r: due work was not done: %s", self._queue, error)

    async def _sweep(self) -> None:
        """Do all due work, step by step. Raises the errors of `_open_queue`."""
        owned = await self._open_queue(None)
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            while True:
                if not (await owned.sweep()).is_more:
                    return
                await asyncio.sleep(0)
        finally:
            self._is_sweeping = False
            self._on_stored(owned.next_due_ms())

    # -- the end of the ownership

    def _lose(self) -> None:
        if self._is_over:
            return
        if self._owned is not None:
            self._keeper.owned.remove(self._queue, self._owned)
        self._is_over, self._owned = True, None
        self._disarm()
        self._polls.stop()
        self._spreading.stop()
        with suppress(NotInCluster):  # the silo was forced to end meanwhile
            self.context.deactivate_when_idle()

    @stopping
    def _stopping(self) -> None:
        """End waits before the activation ends."""
        self._polls.stop()
        self._spreading.stop()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Release the queue when waiting operations are answered, within `release_s`."""
        owned, self._owned, self._is_over = self._owned, None, True
        if owned is not None:
            self._keeper.owned.remove(self._queue, owned)
        self._disarm()
        try:
            async with asyncio.timeout(self._keeper.options.release_s):
                if owned is not None:
                    await owned.release()
                await self._tasks.aclose()
        except TimeoutError:
            self._tasks.cancel()
            log.warning(
                "queue %r was not released: its store did not answer within release_s", self._queue
            )


async def settings_of(owned: OwnedQueue) -> QueueSettings:
    """The settings of a queue. A new queue with several shards gets the number of its layout here.

    The queue is released if its settings cannot be read.
    """
    try:
        found = (await owned.look(ReadSettings())).settings
        if found.shards > 1 and not found.layout:
            found = (await owned.do(Configure(found))).settings
    except BaseException:  # including the end of the owner
        await owned.release()
        raise
    return found


@cache  # one class for each part's name, in every silo and client of the process
def owner_of(part: str) -> type[QueueOwner]:
    """The grain class of a part's owners."""
    named = {"__module__": __name__, "__doc__": QueueOwner.__doc__, "part": part}
    return grain(name=f"{PREFIX}{part}")(type("QueueOwner", (QueueOwner,), named))
