"""What one activation has of its queue in the store.

Owns: `Hold`: opening the queue for all who need it, the timer of what falls due, and noticing that
the queue is lost. Not: who waits for messages (`polls`), the queue itself (the store).
Invariants:
- a queue is opened once at a time, whoever asks, and whoever of them is cancelled; one that takes
  longer than its callers wait is open for the next;
- a hold that was lost, or let go, is over for good: the activation ends, the next one has another;
- whoever waits for what falls due is told when that time has come on the queue's clock: by the
  timer, or by an operation that comes before it, which may have done it by the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

from millstream.providers.priority.core.commands import Configure, Operation, ReadSettings
from millstream.providers.priority.core.errors import OwnerLost, PriorityQueueNotFound
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.core.shards import at_creation
from millstream.providers.priority.store.contract import ClockReading, OwnedQueue, PriorityStore
from millstream.runtime import MillstreamError, Overloaded
from millstream.runtime.extending import Tasks

from .options import PriorityOptions
from .spreading import Shard

__all__ = ["Hold", "Keeper"]

log = logging.getLogger("millstream.priority")

A = TypeVar("A")
NEVER_MS = 2**62
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

    def created_on_use(self, queue: str, /) -> QueueSettings | None:
        """What a queue is like that is created by its first use; None: it is not."""
        ...


class Hold:
    """The hold on one queue.

    Args:
        opened: is called when the queue is open here, once.
        used: is called after each use of the queue, when what it did is stored.
        lost: is called, once, when the queue is lost.
    """

    def __init__(
        self,
        queue: str,
        keeper: Keeper,
        opened: Callable[[], None],
        used: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._keeper = keeper
        self._tasks = keeper.new_tasks()
        self._opened_here = opened
        self._used = used
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._owned: OwnedQueue | None = None
        self._opening: asyncio.Task[OwnedQueue | MillstreamError] | None = None
        self._openers = 0
        self._is_over = False
        self._is_sweeping = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = NEVER_MS  # for which the timer is armed
        self.settings = QueueSettings()

    # -- opening

    async def owned(self, create: QueueSettings | None) -> OwnedQueue:
        """The queue, opened if it is not.

        Args:
            create: of a queue that is not there; None: it is not created.
        Raises: `PriorityQueueNotFound`, `OwnerLost`, StorageUnavailable, Overloaded.
        """
        while (owned := self._owned) is None or self._is_over:
            if self._is_over:
                raise OwnerLost(self._queue, "this owner has ended: the next one answers")
            outcome = await self._opened(create)
            is_missing = isinstance(outcome, PriorityQueueNotFound)
            if isinstance(outcome, MillstreamError) and not (is_missing and create):
                raise outcome  # else somebody looked for it who would not create it
        return owned

    async def _opened(self, create: QueueSettings | None) -> OwnedQueue | MillstreamError:
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
            self.settings = await settings_of(owned)
        except MillstreamError as error:
            return error
        finally:
            self._opening = None
        self._owned = owned
        self._after(owned)
        self._opened_here()
        return owned

    # -- using it

    async def used(self, creates: bool) -> OwnedQueue:
        """The queue for a use of it; `creates`: one that makes it, where queues are created on use.
        Raises as `owned`."""
        owned = self._owned
        if owned is not None and not self._is_over:
            return owned
        return await self.owned(self._keeper.created_on_use(self._queue) if creates else None)

    async def do(self, command: Operation[A], request: Request | None, creates: bool) -> A:
        """Do a command. Raises as `owned`, and what the command's operation raises."""
        owned = await self.used(creates)
        try:
            return await owned.do(command, request)
        finally:
            self._after(owned)

    async def look(self, look: Operation[A]) -> A:
        """Look at the queue. Raises as `owned`, and what the look raises."""
        owned = await self.owned(None)
        try:
            return await owned.look(look)
        finally:
            self._after(owned)

    async def clock(self, is_reset: bool) -> ClockReading:
        """The queue's time beside the machine's, after a reset if that is asked for. Raises as
        `owned`."""
        owned = await self.owned(None)
        try:
            return await (owned.reset_clock() if is_reset else owned.read_clock())
        finally:
            if is_reset:
                self._disarm()  # its timer was set by the time before
            self._after(owned)

    async def delete(self) -> None:
        """Delete the queue; the hold is over then. Raises as `owned`."""
        owned = await self.owned(None)
        try:
            await owned.delete()
        finally:
            self._lose()

    def take_available(self, wanted: Collection[Metadata]) -> Mapping[Metadata, int]:
        """What may be had since this was asked last, as of `OwnedQueue`."""
        return {} if self._owned is None else self._owned.take_available(wanted)

    def now_ms(self) -> int:
        """The queue's time; it is open, or was."""
        assert self._owned is not None, "it was used before"
        return self._owned.now_ms()

    def _after(self, owned: OwnedQueue) -> None:
        if owned.is_lost:
            self._lose()
        elif not self._is_over:
            self._arm(owned)
            self._used()

    def _lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._disarm()
            self._lost()

    # -- what is due

    def _arm(self, owned: OwnedQueue) -> None:
        now_ms = owned.now_ms()
        if self._due_ms <= now_ms:
            self._due()  # which does what this operation did not do by the way
        due_ms = owned.next_due_ms()
        if due_ms is None:
            return
        # never in the past: else each look would be told of a change, and none would sleep
        due_ms = max(due_ms, now_ms + AGAIN_MS)
        if due_ms >= self._due_ms:
            return
        self._disarm()
        self._due_ms = due_ms
        at_s = self._loop.time() + (due_ms - now_ms) / 1000
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
            await self.sweep()
        except MillstreamError as error:
            # the queue is lost, or it is tried again: nobody waits for it here
            log.info("queue %r: what is due was not done: %s", self._queue, error)

    async def sweep(self) -> None:
        """Do all that is due, step by step. Raises as `owned`."""
        owned = await self.owned(None)
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            while True:
                swept = await owned.sweep()
                self._used()
                if not swept.is_more:
                    return
                await asyncio.sleep(0)
        finally:
            self._is_sweeping = False
            self._after(owned)

    # -- the end

    async def close(self) -> None:
        """Let the queue go, when what waits is answered; at most `release_s`."""
        self._is_over = True
        self._disarm()
        owned = self._owned
        try:
            async with asyncio.timeout(self._keeper.options.release_s):
                if owned is not None:
                    await owned.release()
                await self._tasks.aclose()
        except TimeoutError:
            self._tasks.cancel()
            log.warning("queue %r was not released: its store does not answer", self._queue)


async def settings_of(owned: OwnedQueue) -> QueueSettings:
    """The settings of a queue; of a new one with several shards the layout is numbered now."""
    found = (await owned.look(ReadSettings())).settings
    if found.shards > 1 and not found.layout:
        found = (await owned.do(Configure(found))).settings
    return found
