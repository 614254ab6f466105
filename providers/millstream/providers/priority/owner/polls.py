"""Polls of one queue: looking for messages, and waiting until it is worth to look again.

Owns: `Polls`. Not: who looks when (`waiting`), the queue (`hold`).
Invariants: a poll that sleeps costs a timer and nothing else; whatever ends it, the next of its
group is woken if there may be something; a session waits in one place only.
"""

from __future__ import annotations

import asyncio

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, PollStatus

from .hold import Hold
from .waiting import Waiter, Waiting

__all__ = ["Polls"]


NONE_ABOVE = -(2**62)
"""Below all priorities: a dequeue gives nothing, but for what it gave under its request id."""


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
    """The polls of one queue."""

    def __init__(self, queue: str, hold: Hold, waiting_max: int) -> None:
        self._queue = queue
        self._hold = hold
        self._waiting = Waiting(queue, waiting_max)
        self._sleepers: dict[str, Sleeper] = {}
        self._is_stopped = False

    async def poll(self, command: Dequeue, request: Request, wait_s: float) -> Dequeued:
        """Dequeue; if nothing can be had, again when it may, until `wait_s` from now.

        Raises: what the command's operation and `Hold.owned` raise; Overloaded; of a queue that is
        deleted meanwhile `PriorityQueueNotFound`.
        """
        if wait_s <= 0 or self._is_stopped:
            return await self._look(command, request)
        until_s = asyncio.get_running_loop().time() + wait_s
        sleeper = Sleeper()
        waiter, looks = self._waiting.enter(command.wanted, sleeper.wake)
        self._come(request.session, sleeper)
        try:
            return await self._wait(command, request, until_s, waiter, sleeper, looks)
        finally:
            self._waiting.leaves(waiter)
            if self._sleepers.get(request.session) is sleeper:
                del self._sleepers[request.session]

    def _come(self, session: str, sleeper: Sleeper) -> None:
        """Whoever of the session waits still was given up by it."""
        self.leave(session)
        self._sleepers[session] = sleeper

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
            if found.leases or sleeper.is_over or self._is_elsewhere(command):
                return found
            if not self._waiting.sleeps(waiter):
                looks = True
                continue
            looks = await sleeper.sleep(until_s)
            if not looks and not sleeper.is_over:
                return found

    def _is_elsewhere(self, command: Dequeue) -> bool:
        """Is the caller to ask other shards, too, and then to wait at all of them?"""
        return command.layout != self._hold.settings.layout

    async def _look(self, command: Dequeue, request: Request) -> Dequeued:
        """Dequeue, in as many steps as it takes to know what can be had."""
        await self._hold.used(True)
        if self._is_elsewhere(command):
            command = command._replace(not_above=NONE_ABOVE)
        while True:
            found = await self._hold.do(command, request, creates=True)
            if found.leases or found.status is not PollStatus.MORE:
                return found
            await asyncio.sleep(0)

    # -- told by others

    def tell(self) -> None:
        """The queue was used: wake whom that may have helped."""
        helped = self._hold.take_available(self._waiting.filters)
        if helped:
            self._waiting.changed(helped)

    def changed(self) -> None:
        """The queue is another one by its settings: all who wait look again."""
        self._waiting.changed()

    def leave(self, session: str) -> None:
        """Nobody waits for the session's poll any more."""
        sleeper = self._sleepers.get(session)
        if sleeper is not None:
            sleeper.end()

    def stop(self) -> None:
        """Nobody waits here any more: the owner ends."""
        self._is_stopped = True
        for sleeper in list(self._sleepers.values()):
            sleeper.end()

    def moved(self) -> None:
        """The queue has other shards: who waits asks all of them."""
        for sleeper in list(self._sleepers.values()):
            sleeper.end()

    def deleted(self) -> None:
        """The queue is gone, and who waited is told."""
        for sleeper in list(self._sleepers.values()):
            what = "it was deleted while this poll waited"
            sleeper.error = PriorityQueueNotFound(self._queue, what)
            sleeper.end()
