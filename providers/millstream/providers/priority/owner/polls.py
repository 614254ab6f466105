"""Polls of one queue: looking for messages, and waiting until it is worth to look again.

Owns: `Polls`. Not: who looks when (`waiting`), the queue (its owner).
Invariants: a poll that sleeps costs a timer and nothing else; whatever ends it, the next of its
group is woken if there may be something; a session waits in one place only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, PollStatus

from .waiting import QueueWaiters, Waiter

__all__ = ["Polls"]


class Sleeper:
    """One poll that waits: asleep, or about to look."""

    __slots__ = ("error", "future", "is_over")

    def __init__(self) -> None:
        self.future: asyncio.Future[bool] | None = None
        self.is_over = False
        self.error: PriorityQueueNotFound | None = None

    def wake(self) -> None:
        """Look again."""
        self._answer(True)

    def end(self) -> None:
        """Wait no longer."""
        self.is_over = True
        self._answer(False)

    def _answer(self, looks_again: bool) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(looks_again)

    async def sleep(self, until_s: float) -> bool:
        """True: look again. False: it is over, or the time has come."""
        loop = asyncio.get_running_loop()
        self.future = loop.create_future()
        timer = loop.call_at(until_s, self._answer, False)
        try:
            return await self.future
        finally:
            timer.cancel()
            self.future = None


class Polls:
    """The polls of one queue.

    A poll that was told to end looks no more: who asks again under its request id learns all that
    it gave.

    Args:
        dequeue: what a poll does each time it looks.
        available: see `OwnedQueue.take_available`.
        waiting_max: how many may wait.
    Attributes: `sleepers`, those who wait, by their sessions.
    """

    def __init__(
        self,
        queue: str,
        dequeue: Callable[[Dequeue, Request], Awaitable[Dequeued]],
        available: Callable[[Collection[Metadata]], Mapping[Metadata, int]],
        waiting_max: int,
    ) -> None:
        self._queue = queue
        self._look = dequeue
        self._available = available
        self._layout = 0  # of the queue
        self._waiting = QueueWaiters(queue, waiting_max)
        self.sleepers: dict[str, Sleeper] = {}
        self._is_stopped = False

    async def poll(self, command: Dequeue, request: Request, wait_s: float) -> Dequeued:
        """Dequeue; if nothing can be had, again when it may, until `wait_s` from now.

        Raises: what the dequeue raises; Overloaded; of a queue that is deleted meanwhile
        `PriorityQueueNotFound`.
        """
        if self._is_stopped:
            return await self._look(command, request)
        until_s = asyncio.get_running_loop().time() + wait_s
        sleeper = Sleeper()
        waiter, looks = self._waiting.enter(command.wanted, sleeper.wake)
        self._come(request.session, sleeper)
        self.tell()  # so that what comes from now on is noted
        try:
            return await self._wait(command, request, until_s, waiter, sleeper, looks)
        finally:
            self._waiting.leaves(waiter)
            if self.sleepers.get(request.session) is sleeper:
                del self.sleepers[request.session]
            if not self._waiting.filters:
                self._available(())  # nothing need be noted

    def _come(self, session: str, sleeper: Sleeper) -> None:
        """Whoever of the session waits still was given up by it."""
        self.leave(session)
        self.sleepers[session] = sleeper

    async def _wait(
        self,
        command: Dequeue,
        request: Request,
        until_s: float,
        waiter: Waiter,
        sleeper: Sleeper,
        looks: bool,
    ) -> Dequeued:
        found = Dequeued((), PollStatus.EMPTY)
        while True:
            if looks:
                self._waiting.looks(waiter)
                found = await self._look(command, request)
                if found.status in (PollStatus.EMPTY, PollStatus.BLOCKED):
                    self._waiting.found_none(waiter)
            if sleeper.error is not None:
                raise sleeper.error
            if found.leases or sleeper.is_over or command.layout != self._layout:
                return found
            if not self._waiting.sleeps(waiter):
                looks = True
                continue
            looks = await sleeper.sleep(until_s) and not sleeper.is_over
            if not looks and sleeper.error is None:
                return found

    # -- told by others

    def tell(self) -> None:
        """Something is stored: wake whom that may have helped."""
        helped = self._available(self._waiting.filters)
        if helped:
            self._waiting.on_changed(helped)

    def on_changed(self) -> None:
        """The queue is another one by its settings: all who wait look again."""
        self._waiting.on_changed()

    def leave(self, session: str) -> None:
        """Nobody waits for the session's poll any more."""
        sleeper = self.sleepers.get(session)
        if sleeper is not None:
            sleeper.end()

    def stop(self) -> None:
        """Nobody waits here any more: the owner ends."""
        self._is_stopped = True
        for sleeper in list(self.sleepers.values()):
            sleeper.end()

    def move(self, layout: int) -> None:
        """The queue has other shards: who waits asks all of them."""
        if layout == self._layout:
            return
        self._layout = layout
        for sleeper in list(self.sleepers.values()):
            sleeper.end()

    def on_deleted(self) -> None:
        """The queue is gone, and who waited is told."""
        for sleeper in list(self.sleepers.values()):
            what = "it was deleted while this poll waited"
            sleeper.error = PriorityQueueNotFound(self._queue, what)
            sleeper.end()
