"""The owner of a queue: a grain for each, its key is the queue's name.

Owns: `QueueOwner`: what of a queue can be called, opening it for all who need it, the timer of what
falls due, and noticing that it is lost. Not: waiting (`polls`), commits (the store's `OwnedQueue`),
what a command does (the core).
Invariants:
- calls interleave, the queue orders them; what is stored wakes whom that may help, whoever changed
  it;
- a queue is opened once at a time, whoever asks, and whoever of them is cancelled; one that takes
  longer than its callers wait is open for the next;
- a queue that was lost, deleted, or let go, is over for good: the activation ends, and the next one
  opens it anew;
- what falls due is done when that time has come on the queue's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from millstream.providers.priority.core import errors as errors  # known where it is called
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
from millstream.providers.priority.core.message import Metadata
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
"""These, and dequeues, create a queue that is not there, where that is allowed."""
NEVER_MS = 2**62
NONE_ABOVE = -(2**62)
"""Below all priorities: a dequeue gives nothing, but for what it gave under its request id."""
AGAIN_MS = 5
"""How soon is looked again for what is due already, and was not done."""


class Keeper(Protocol):
    """The part of a silo that has the store."""

    @property
    def store(self) -> PriorityStore: ...
    @property
    def options(self) -> PriorityOptions: ...
    @property
    def is_ended(self) -> bool:
        """Has its silo ended, perhaps without a word to its grains?"""
        ...

    def new_tasks(self) -> Tasks: ...
    def shard(self, name: str, /) -> Shard:
        """The owner of a shard."""
        ...

    def find_created_on_use(self, queue: str, /) -> QueueSettings | None:
        """The settings of a queue that its first use creates; None: a use creates none."""
        ...


class Polled(NamedTuple):
    """What a poll is answered with.

    `now_ms`: the queue's time, by which leases have their deadlines; `layout`: of its settings.
    """

    leases: tuple[LeaseGrant, ...]
    status: PollStatus
    now_ms: int
    layout: int = 0


class QueueOwner(Grain):
    """One queue; each part that has queues has a class of its own."""

    part: ClassVar[str]

    async def on_activate(self) -> None:
        """Make ready; the queue is opened when somebody needs it."""
        keeper: Keeper = services_of(self).part(self.part)
        self._queue, self._keeper = self.key, keeper
        self._tasks = keeper.new_tasks()
        self._owned: OwnedQueue | None = None
        self._is_over = False
        self._opening: asyncio.Task[OwnedQueue | MillstreamError] | None = None
        self._openers = 0
        self._settings = QueueSettings()
        self._due_ms = NEVER_MS  # for which the timer is armed
        self._timer: asyncio.TimerHandle | None = None
        self._is_sweeping = False
        most = keeper.options.waiting_polls_max
        self._polls = Polls(self._queue, self._dequeue, self._take_available, most)
        tasks, period_s = keeper.new_tasks(), keeper.options.settle_period_s
        self._spreading = Spreading(self._queue, tasks, period_s, keeper.shard, self._settle)

    # -- what can be asked

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def do(self, command: Command, request: Request | None) -> Answered:
        """Do a command; with a request id once. Raises what its operation raises, `OwnerLost`,
        StorageUnavailable, Overloaded, and `PriorityQueueNotFound` if it creates none."""
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
        """Dequeue; if nothing can be had, wait for it: so long, or until this owner ends. Raises as
        `do`."""
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
        """Nobody waits for the answer of this session's poll: let it be answered."""
        self._polls.leave(session)

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def look(self, look: Look) -> Seen:
        """Look at the queue. Raises what the look raises, and as `do`."""
        owned = self._owned or await self._open_queue(None)
        seen: Seen = await owned.look(look)
        return seen

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def create(self, settings: QueueSettings) -> SettingsRow:
        """Create the queue; one that has these settings already is left alone.

        Raises: `SettingsConflict`: it has others; and as `do`.
        """
        row = await (await self._open_queue(settings)).look(ReadSettings())
        if not is_wish(settings, row.settings):
            what = f"it exists with other settings, of version {row.version}"
            raise SettingsConflict(self._queue, what)
        return row

    @always_interleave
    @isolated
    async def adopt(self, settings: QueueSettings, floor: int) -> Moving:
        """Be a shard of a queue with these settings, whose leases have higher numbers than `floor`;
        what is on its way to another shard. Raises as `do`."""
        owned = await self._open_queue(settings)
        self._set((await owned.do(Adopt(settings, floor))).settings)
        return await owned.look(Strays()) if settings.shards_before else Moving(False, 0)

    @open_to(Role.OPERATOR)
    @always_interleave
    async def clock(self, is_reset: bool) -> ClockReading:
        """The queue's time beside its machine's; `is_reset`: set it to that first. Raises as
        `do`."""
        owned = await self._open_queue(None)
        if not is_reset:
            return await owned.read_clock()
        self._disarm()  # its timer was set by the time before
        return await owned.reset_clock()

    @open_to(Role.CLIENT)
    @always_interleave
    async def delete(self) -> None:
        """Delete the queue with its messages. Who waits for messages is told. Raises as `do`."""
        owned = await self._open_queue(None)
        try:
            await owned.delete()
        finally:
            self._lose()
        self._polls.on_deleted()  # before they hear that the owner ends

    @always_interleave
    async def wake(self) -> None:
        """Do what is due; asked where nobody may own the queue. One that is gone is left alone."""
        with suppress(PriorityQueueNotFound):
            await self._sweep()

    # -- what polls ask

    async def _dequeue(self, command: Dequeue, request: Request) -> Dequeued:
        """Dequeue, in as many steps as it takes to know what can be had. Raises as `do`."""
        owned = self._owned or await self._use(True)
        if command.layout != self._settings.layout:
            command = command._replace(not_above=NONE_ABOVE)
        while True:
            found = await owned.do(command, request)
            if found.leases or found.status is not PollStatus.MORE:
                return found
            await asyncio.sleep(0)

    def _take_available(self, wanted: Collection[Metadata]) -> Mapping[Metadata, int]:
        """Counts of messages that became available since the last call; see `OwnedQueue`."""
        return {} if self._owned is None else self._owned.take_available(wanted)

    # -- opening

    async def _use(self, creates: bool) -> OwnedQueue:
        """The queue for a use of it; `creates`: one that makes it, where queues are created on use.
        Raises as `_open_queue`."""
        return await self._open_queue(
            self._keeper.find_created_on_use(self._queue) if creates else None
        )

    async def _open_queue(self, create: QueueSettings | None) -> OwnedQueue:
        """The queue, opened if it is not.

        Args:
            create: of a queue that is not there; None: it is not created.
        Raises: `PriorityQueueNotFound`, `OwnerLost`, StorageUnavailable, Overloaded.
        """
        while (owned := self._owned) is None:
            if self._is_over:
                raise OwnerLost(self._queue, "this owner has ended: the next one answers")
            outcome = await self._outcome(create)
            is_missing = isinstance(outcome, PriorityQueueNotFound)
            if isinstance(outcome, MillstreamError) and not (is_missing and create):
                raise outcome  # else somebody looked for it who would not create it
        return owned

    async def _outcome(self, create: QueueSettings | None) -> OwnedQueue | MillstreamError:
        most = self._keeper.options.opening_calls_max
        if self._openers >= most:
            what = f"queue {self._queue!r} is being opened, as many calls as may wait for it"
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
        self._owned = owned
        owned.watch(self._on_stored, self._lose)
        self._on_stored(owned.next_due_ms())
        self._spread()
        return owned

    def _set(self, settings: QueueSettings) -> None:
        """The queue has these settings now."""
        is_moved = settings.layout != self._settings.layout
        self._settings = settings
        if is_moved:
            self._spread()

    def _spread(self) -> None:
        """The layout is another one than was known."""
        self._polls.move(self._settings.layout)
        if split_name(self._queue)[1] == 0:
            self._spreading.begin(self._settings)

    async def _settle(self, layout: int) -> QueueSettings:
        row = await (await self._open_queue(None)).do(Settle(layout))
        self._set(row.settings)
        return row.settings

    # -- what is stored, and due

    def _on_stored(self, due_ms: int | None) -> None:
        """Something is stored, and this is due next."""
        owned = self._owned
        if owned is None:
            return
        if due_ms is not None and due_ms < self._due_ms:
            self._arm(owned, due_ms)
        if self._polls.sleepers:
            self._polls.tell()

    def _arm(self, owned: OwnedQueue, due_ms: int) -> None:
        # never in the past: else each look would be told of a change, and none would sleep
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
            # the queue is lost, or it is tried again: nobody waits for it here
            log.info("queue %r: what is due was not done: %s", self._queue, error)

    async def _sweep(self) -> None:
        """Do all that is due, step by step. Raises as `_open_queue`."""
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

    # -- the end

    def _lose(self) -> None:
        if self._is_over:
            return
        self._is_over, self._owned = True, None
        self._disarm()
        self._polls.stop()
        self._spreading.stop()
        with suppress(NotInCluster):  # its end was forced meanwhile
            self.context.deactivate_when_idle()

    @stopping
    def _stopping(self) -> None:
        """The activation is about to end."""
        self._polls.stop()
        self._spreading.stop()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Let the queue go, when what waits is answered; at most `release_s`."""
        owned, self._owned, self._is_over = self._owned, None, True
        self._disarm()
        try:
            async with asyncio.timeout(self._keeper.options.release_s):
                if owned is not None:
                    await owned.release()
                await self._tasks.aclose()
        except TimeoutError:
            self._tasks.cancel()
            log.warning("queue %r was not released: its store does not answer", self._queue)


async def settings_of(owned: OwnedQueue) -> QueueSettings:
    """The settings of a queue; of a new one with several shards the layout is numbered now.
    The queue is released if its settings cannot be read."""
    try:
        found = (await owned.look(ReadSettings())).settings
        if found.shards > 1 and not found.layout:
            found = (await owned.do(Configure(found))).settings
    except BaseException:  # also the end of the owner
        await owned.release()
        raise
    return found


@cache  # one class for each part's name, in every silo and client of the process
def owner_of(part: str) -> type[QueueOwner]:
    """The owners of a part's queues."""
    named = {"__module__": __name__, "__doc__": QueueOwner.__doc__, "part": part}
    return grain(name=f"{PREFIX}{part}")(type("QueueOwner", (QueueOwner,), named))
