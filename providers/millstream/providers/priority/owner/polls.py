"""The polls of one queue: looking for messages, and waiting until another look may help.

Owns `Polls`. The order of looks is decided in `waiting`, and the queue belongs to its owner.

Invariants: a sleeping poll costs a timer and nothing else. The end of a poll, for any reason, wakes
the next one of its group if there may be a message. At most one poll of a session waits. A poll
that repeats an earlier one does not sleep before its first look, so the leases of the earlier one
reach their caller at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, PollStatus
from millstream.providers.priority.store.contract import OwnedQueue

from .waiting import QueueWaiters, Waiter

__all__ = ["Polls"]


class Sleeper:
    """One waiting poll, asleep or about to look."""

    __slots__ = ("error", "future", "is_over")

    def __init__(self) -> None:
        self.future: asyncio.Future[bool] | None = None
        self.is_over = False
        self.error: PriorityQueueNotFound | None = None

    def wake(self) -> None:
        """Look again."""
        self._answer(True)

    def end(self) -> None:
        """Stop waiting."""
        self.is_over = True
        self._answer(False)

    def _answer(self, looks_again: bool) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(looks_again)

    async def sleep(self, until_s: float) -> bool:
        """Sleep. True means to look again; False means that the wait has ended."""
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

    A poll that was told to end does not look again. A repeated request with the same request id
    returns everything that the poll leased. `sleepers` has the waiting polls by session. `owned` is
    set while the queue is open.

    Args:
        queue: Name of the queue.
        look: One look of a poll.
        opening: Opens the queue, so that `owned` is set. Raises the errors of a look.
        waiting_max: Maximum number of waiting polls.
    """

    def __init__(
        self,
        queue: str,
        look: Callable[[Dequeue, Request], Awaitable[Dequeued]],
        opening: Callable[[], Awaitable[object]],
        waiting_max: int,
    ) -> None:
        self._queue = queue
        self._look = look
        self._open = opening
        self.owned: OwnedQueue | None = None
        self._layout = 0  # of the queue
        self._waiting = QueueWaiters(queue, waiting_max)
        self.sleepers: dict[str, Sleeper] = {}
        self._is_stopped = False

    async def poll(self, command: Dequeue, request: Request, wait_s: float) -> Dequeued:
        """Dequeue. Without an available message, look again when there may be one.

        The wait takes at most `wait_s`. Raises the errors of the dequeue, Overloaded, and
        `PriorityQueueNotFound` if the queue is deleted meanwhile.
        """
        if self._is_stopped:
            return await self._look(command, request)
        until_s = asyncio.get_running_loop().time() + wait_s
        sleeper = Sleeper()
        waiter, looks = self._waiting.enter(command.wanted, sleeper.wake)
        looks = looks or request.session in self.sleepers  # it may be a repeated one
        self._come(request.session, sleeper)  # before any wait: the last poll to arrive remains
        self.tell()  # so that messages that arrive from now on are noted
        try:
            if not looks:
                looks = await self._is_answered(request) and not sleeper.is_over
            return await self._wait(command, request, until_s, waiter, sleeper, looks)
        finally:
            self._waiting.leaves(waiter)
            if self.sleepers.get(request.session) is sleeper:
                del self.sleepers[request.session]
            if not self._waiting.filters and self.owned is not None:
                self.owned.take_available(())  # nothing has to be noted

    async def _is_answered(self, request: Request) -> bool:
        """Whether the request is a repeated one that leased messages. Opens the queue."""
        if self.owned is None:
            await self._open()
        return self.owned is not None and self.owned.is_answered(request)

    def _come(self, session: str, sleeper: Sleeper) -> None:
        """Register the poll, and end an earlier one of the session, which its caller has given
        up.
        """
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
            if found.status is PollStatus.MORE:
                await asyncio.sleep(0)
                continue
            if not self._waiting.sleeps(waiter):
                looks = True
                continue
            looks = await sleeper.sleep(until_s) and not sleeper.is_over
            if not looks and sleeper.error is None:
                return found

    # -- notifications

    def tell(self) -> None:
        """Wake the polls that a commit may have helped."""
        if self.owned is None:
            return
        helped = self.owned.take_available(self._waiting.filters)
        if helped:
            self._waiting.on_changed(helped)

    def on_changed(self) -> None:
        """Let all waiting polls look again, because the settings have changed."""
        self._waiting.on_changed()

    def leave(self, session: str) -> None:
        """End the waiting poll of a session."""
        sleeper = self.sleepers.get(session)
        if sleeper is not None:
            sleeper.end()

    def stop(self) -> None:
        """End all waits, because the owner ends."""
        self._is_stopped, self.owned = True, None
        for sleeper in list(self.sleepers.values()):
            sleeper.end()

    def move(self, layout: int) -> None:
        """End all waits, because the queue has another layout and callers must ask all shards."""
        if layout == self._layout:
            return
        self._layout = layout
        for sleeper in list(self.sleepers.values()):
            sleeper.end()

    def on_deleted(self) -> None:
        """End all waits with `PriorityQueueNotFound`."""
        for sleeper in list(self.sleepers.values()):
            what = "it was deleted while this poll waited"
            sleeper.error = PriorityQueueNotFound(self._queue, what)
            sleeper.end()
