"""Group commit: operations change the queue in memory at once, and are stored together.

Owns `CommittingQueue`, an `OwnedQueue` over a core and a `Hold`. The `Hold` stores the commits.

An operation changes the core at its call. While one commit is in progress, the changes of further
operations accumulate. When the commit ends, the core is drained again.

Invariants:

- An answer leaves only when every change on which it may be based is stored. An operation that
  changed something, or ran after undrained changes, waits for the next commit. Others wait for the
  commit in progress. If there is neither, the answer leaves at once.
- An answer that needs no commit leaves only while the ownership is known to hold. If only the store
  can tell, the answer waits for a commit that begins later, even an empty one.
- After a failed commit or a lost ownership, the core is never used again.
- Commits run in a task of their own, so the end of a caller does not end them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from millstream.providers.priority.core.commands import Operation, perform
from millstream.providers.priority.core.core import STEPS_INLINE_MAX, PriorityCore
from millstream.providers.priority.core.errors import OwnerLost
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Swept
from millstream.runtime import Env, MillstreamError, Overloaded, StorageError

from .clock import TOLERANCE_MS, QueueClock
from .contract import ClockReading
from .hold import TAKEN_OVER, Hold
from .limits import StoreLimits

__all__ = ["CommittingQueue"]

log = logging.getLogger("millstream.priority")
A = TypeVar("A")
STEP_TOLD_MS = 60_000
"""A step of the machine's clock of at least this is logged, in milliseconds."""
Waiting = list[asyncio.Future[None]]


class CommittingQueue:
    """The ownership of one queue by one owner: see `OwnedQueue`.

    Args:
        core: The queue as it is stored. No other object may use the core.
        stored_due_ms: The stored time of the next due work.
        hold: The place where commits are stored.
        env: Clock and tasks.
        limits: Limits of waiting work.
        ended: Called when the ownership has ended and no caller waits.
    """

    def __init__(
        self,
        core: PriorityCore,
        stored_due_ms: int | None,
        hold: Hold,
        env: Env,
        limits: StoreLimits,
        ended: Callable[[CommittingQueue], None],
    ) -> None:
        self._core: PriorityCore | None = core
        self._why_lost = ""
        self.name, self.epoch = hold.queue, hold.epoch
        self._hold = hold
        self._env = env
        self._limits = limits
        self._ended = ended
        self._on_stored: Callable[[int | None], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = self._open_clock(core)
        self._ahead_ms = core.ahead_ms  # ahead of wall clocks, as the core has it
        self._told_ms = 0  # difference of both clocks at the last log line
        self._stored_due_ms = stored_due_ms
        if stored_due_ms is not None:
            self._stored_due_ms = stored_due_ms + max(core.ahead_ms, 0)
        self._keep_apart(core)
        self._task: asyncio.Task[None] | None = None
        self._deletion: asyncio.Task[None] | None = None
        self._current: Waiting = []  # for the commit in progress
        # for the commit in progress, from callers that came after it began
        self._late: Waiting = []
        self._next: Waiting = []  # for the next commit

    @property
    def is_lost(self) -> bool:
        return self._core is None

    def watch(self, stored: Callable[[int | None], None], lost: Callable[[], None], /) -> None:
        self._on_stored, self._on_lost = stored, lost

    async def do(self, command: Operation[A], request: Request | None = None, /) -> A:
        core = self._core
        if core is None or self._task is not None:
            core = self._ready()
        self._hold.check_room()
        try:
            answer = perform(core, self.now_ms(), command, request)
        except MillstreamError:
            await self._until_stored(core)
            raise
        except BaseException as error:
            self._lose(error)
            raise
        stored = self._wait_stored(core)
        if stored is not None:
            await stored
        return answer

    async def look(self, look: Operation[A], /) -> A:
        core = self._core
        if core is None:
            raise self._make_lost_error()
        self._check_waiting()
        try:
            return look.on(core, self.now_ms())
        finally:
            await self._until_stored(core)

    async def sweep(self, steps: int = STEPS_INLINE_MAX, /) -> Swept:
        core = self._ready()
        self._hold.check_room()
        try:
            swept = core.sweep(self.now_ms(), steps)
        except BaseException as error:
            self._lose(error)
            raise
        if core.is_drained and self._task is None and self._stored_due_ms != swept.next_due_ms:
            # otherwise the store would report due work for ever, though there is none
            await self._join(core, self._next)
        else:
            await self._until_stored(core)
        return swept

    def next_due_ms(self) -> int | None:
        return None if self._core is None else self._core.next_due_ms()

    def take_available(self, wanted: Collection[Metadata], /) -> Mapping[Metadata, int]:
        return {} if self._core is None else self._core.take_available(wanted)

    def is_answered(self, request: Request, /) -> bool:
        return self._core is not None and self._core.sessions.is_answered(request)

    # -- the clock

    def _open_clock(self, core: PriorityCore) -> QueueClock:
        step_max_ms = int(self._limits.clock_step_max_s * 1000)
        clocks = self._wall_ms(), int(self._loop.time() * 1000)
        return QueueClock(core.now_ms, core.ahead_ms, *clocks, step_max_ms)

    def now_ms(self) -> int:
        clock, core = self._clock, self._core
        now_ms = clock.read(int(self._env.wall_s() * 1000), int(self._loop.time() * 1000))
        if core is not None and abs(clock.apart_ms - self._ahead_ms) > TOLERANCE_MS:
            self._keep_apart(core)
        elif clock.step_ms >= STEP_TOLD_MS:
            text = "queue %r: its time stepped %.0f s forward with this machine's clock"
            log.warning(text, self.name, clock.step_ms / 1000)
        return now_ms

    def _wall_ms(self) -> int:
        return int(self._env.wall_s() * 1000)

    def _keep_apart(self, core: PriorityCore) -> None:
        """Record and log the difference between the queue's time and the machine's."""
        apart_ms = self._clock.apart_ms
        if apart_ms != core.ahead_ms:
            core.set_ahead(apart_ms)
        self._ahead_ms = apart_ms
        is_told = self._told_ms and abs(apart_ms - self._told_ms) < STEP_TOLD_MS
        self._told_ms = self._told_ms if is_told else apart_ms
        if apart_ms and not is_told:
            text = (
                "queue %r: its time is %.0f s %s this machine's clock, and advances at the rate of"
                " real time. If that clock is right, run: millstream pq clock QUEUE --reset"
            )
            side = "ahead of" if apart_ms > 0 else "behind"
            log.warning(text, self.name, abs(apart_ms) / 1000, side)

    async def read_clock(self) -> ClockReading:
        if self._core is None:
            raise self._make_lost_error()
        return ClockReading(self.now_ms(), self._wall_ms())

    async def reset_clock(self) -> ClockReading:
        core, before_ms, wall_ms = self._ready(), self.now_ms(), self._wall_ms()
        self._hold.check_room()
        log.warning("queue %r: its time is set from %d to %d ms", self.name, before_ms, wall_ms)
        core.set_clock(wall_ms)
        self._ahead_ms = 0
        self._clock.reset(wall_ms, int(self._loop.time() * 1000))
        await self._until_stored(core)
        return ClockReading(wall_ms, wall_ms)

    # -- limits

    def _ready(self) -> PriorityCore:
        """The core, if another operation may change it."""
        core = self._core
        if core is None:
            raise self._make_lost_error()
        if self._task is not None:
            self._check_waiting()
            self._check_uncommitted(core)
        return core

    def _check_waiting(self) -> None:
        limits = self._limits
        if len(self._current) + len(self._late) + len(self._next) >= limits.waiting_max:
            what = f"queue {self.name!r}: its store is slow, and too many operations wait"
            raise Overloaded(what, "waiting_max", limits.waiting_max)

    def _check_uncommitted(self, core: PriorityCore) -> None:
        limits = self._limits
        rows, payload_bytes = core.count_undrained()
        if rows >= limits.uncommitted_max:
            raise self._too_much("uncommitted_max", limits.uncommitted_max)
        if payload_bytes >= limits.uncommitted_bytes_max:
            raise self._too_much("uncommitted_bytes_max", limits.uncommitted_bytes_max)

    def _too_much(self, limit: str, value: int) -> Overloaded:
        what = f"queue {self.name!r}: its store is slow, and too many changes wait for it"
        return Overloaded(what, limit, value)

    # -- commits

    def _wait_stored(self, core: PriorityCore) -> asyncio.Future[None] | None:
        """Return a future that ends when all operations so far are stored.

        None means that they are stored, and no other owner can have answered since. Raises
        `OwnerLost`.
        """
        if core.recorder.is_touched:
            return self._join(core, self._next)
        if self._current:
            return self._join(core, self._late)
        if self._task is not None:
            return self._join(core, self._next)
        is_held = self._hold.is_held()
        if is_held is None:
            return self._join(core, self._next)
        if not is_held:
            raise self._lose(OwnerLost(self.name, TAKEN_OVER))
        return None

    async def _until_stored(self, core: PriorityCore) -> None:
        stored = self._wait_stored(core)
        if stored is not None:
            await stored

    def _join(self, core: PriorityCore, waiting: Waiting) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.append(future)
        if self._task is None:
            context = self._env.new_context()
            self._task = self._loop.create_task(self._commit(core), context=context)
        return future

    async def _commit(self, core: PriorityCore) -> None:
        """Commit until no caller waits. Operations that run before the first drain share it."""
        try:
            while self._next:
                self._current += self._next
                self._next = []
                changes, due_ms = core.drain(), core.next_due_ms()
                # other silos look for due work by their wall clocks, so the stored time must not
                # use one that is far ahead of the queue's time
                ahead_ms = max(self._ahead_ms, 0)
                await self._hold.commit(changes, None if due_ms is None else due_ms - ahead_ms)
                self._stored_due_ms = due_ms
                for future in self._current:
                    if not future.done():
                        future.set_result(None)
                self._current = []
                if self._late:
                    self._let_late()
                if self._on_stored is not None and self._core is not None:
                    self._on_stored(due_ms)
        except BaseException as error:
            self._lose(error)
            if not isinstance(error, MillstreamError):
                raise
        finally:
            self._task = None

    def _let_late(self) -> None:
        """Answer late callers, unless another owner may have come since the commit."""
        late, self._late = self._late, []
        is_held = self._hold.is_held()
        if is_held:
            for future in late:
                if not future.done():
                    future.set_result(None)
        else:
            self._next += late
            if is_held is not None:
                raise OwnerLost(self.name, TAKEN_OVER)

    # -- the end of the ownership

    def _make_lost_error(self) -> OwnerLost:
        return OwnerLost(self.name, self._why_lost)

    def _lose(self, cause: BaseException) -> OwnerLost:
        """End the ownership, and fail all waiting callers."""
        waiting = [*self._current, *self._late, *self._next]
        self._current, self._late, self._next = [], [], []
        self._core, self._why_lost = None, why_lost(cause)
        for future in waiting:
            if not future.done():
                future.set_exception(self._error_for(cause))
        self._ended(self)
        if self._on_lost is not None:
            self._on_lost()
        return self._make_lost_error()

    def _error_for(self, cause: BaseException) -> MillstreamError:
        """The error for one waiting caller; a shared error would share its traceback."""
        if isinstance(cause, StorageError):
            return type(cause)(*cause.args)
        return self._make_lost_error()

    async def delete(self) -> None:
        if self._core is None:
            raise self._make_lost_error()
        self._core, self._why_lost = None, "it was deleted"
        loop, context = asyncio.get_running_loop(), self._env.new_context()
        self._deletion = loop.create_task(self._delete(), context=context)
        await asyncio.shield(self._deletion)  # the deletion continues without its caller

    async def _delete(self) -> None:
        await self._wait_answered()
        if self._why_lost != "it was deleted":
            raise self._make_lost_error()
        try:
            await self._hold.delete()
        finally:
            self._ended(self)

    async def release(self) -> None:
        if self._core is not None:
            self._core, self._why_lost = None, "it was released"
        await self._wait_answered()
        if self._deletion is not None:
            await asyncio.wait([self._deletion])
        self._ended(self)

    async def _wait_answered(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


def why_lost(cause: BaseException) -> str:
    if isinstance(cause, OwnerLost):
        return TAKEN_OVER
    if isinstance(cause, StorageError):
        return f"a commit failed: {cause}"
    return f"its owner failed with {type(cause).__name__}: {cause}"
