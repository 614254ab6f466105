"""Reading a priority queue for an agent: leases that the runtime extends and ends.

Owns `DeadlineReceiver`. The agent decides when an event is acknowledged or released.

Invariants:

- A message is out while this receiver has its lease, under a token of its own.
- A message that is not handed out is released without counting the attempt, also if the read was
  cancelled.
- Closing the receiver releases all its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from millstream.providers.priority.core.message import State
from millstream.providers.priority.surface.lease import LOST, Lease
from millstream.providers.priority.surface.queue import PriorityQueue
from millstream.runtime import MillstreamError, QueueUnavailable, StreamError
from millstream.runtime.extending import show_text
from millstream.streams import QueueMessage, Token

from .form import queue_message, token_of

__all__ = ["DeadlineReceiver"]

log = logging.getLogger("millstream.priority")

LEASES_MAX = 1_000
"""Messages that one read leases."""
NO_EVENT = "it is not an event of a stream"


class DeadlineReceiver:
    """The messages of one queue for one owner.

    Args:
        made: Returns the priority queue; raises QueueUnavailable.
        worker: The worker's name, which operators see.
    """

    def __init__(self, made: Callable[[], Awaitable[PriorityQueue]], worker: str) -> None:
        self._made = made
        self._worker = worker
        self._queue: PriorityQueue | None = None
        self._held: dict[Token, Lease] = {}
        self._reading: asyncio.Task[list[Lease]] | None = None
        self._largest = 1  # bytes of the largest message so far
        self._failing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, after: Token | None, /) -> None:
        self._queue = await self._made()

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        if self._is_closed:
            return []
        count = max(1, min(max_events, LEASES_MAX, max_bytes // self._largest))
        worker, queue = self._worker, self._find_started()
        self._reading = asyncio.ensure_future(
            queue.dequeue(worker=worker, count=count, wait_s=wait_s)
        )
        try:
            leases = await self._end(self._reading)
        except MillstreamError as error:
            raise unavailable(queue, error) from None
        finally:
            self._reading = None
        return self._take(leases, max_events, max_bytes)

    async def _end(self, reading: asyncio.Task[list[Lease]]) -> list[Lease]:
        """The leases of a dequeue; none if the receiver was closed meanwhile.

        If the caller is cancelled, the dequeue is cancelled and releases its leases.
        """
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError:
            self._drop(reading)
            raise
        return [] if reading.cancelled() else reading.result()

    def _drop(self, reading: asyncio.Task[list[Lease]]) -> None:
        if not reading.cancel() and reading.exception() is None:
            for lease in reading.result():
                lease.give_back("the read was cancelled")

    def _take(self, leases: Sequence[Lease], max_events: int, max_bytes: int) -> list[QueueMessage]:
        """Keep the leases that may be handed out, and release the others."""
        found: list[QueueMessage] = []
        for lease in leases:
            if self._is_closed:
                lease.give_back("the receiver is closed")
                continue
            message = self._event_of(lease)
            if message is None:
                continue
            size = sum(map(len, message.items))
            self._largest = max(self._largest, size)
            max_events, max_bytes = max_events - len(message.items), max_bytes - size
            if found and (max_events < 0 or max_bytes < 0):
                max_events = -1  # the following messages are less urgent
                lease.give_back("over the limits of one read")
                continue
            self._held[message.token] = lease
            found.append(message)
        return found

    def _event_of(self, lease: Lease) -> QueueMessage | None:
        """The message of a lease; None if another program enqueued something that is no event."""
        try:
            return queue_message(lease)
        except StreamError as error:
            name = show_text(self._find_started().name)
            log.error(
                "priority queue %s: %s: the message becomes errored", name, show_text(str(error))
            )
            self._failing.add(task := asyncio.ensure_future(self._settle([lease], refuse)))
            task.add_done_callback(self._failing.discard)
            return None

    # -- the end of leases

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await self._settle(self._of(also), Lease.complete)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        def release(lease: Lease) -> Awaitable[object]:
            return lease.release(delay_s=delay_s, refund=not has_run)

        await self._settle(self._of(tokens), release)

    async def fail(self, tokens: Sequence[Token], reason: str, /) -> None:
        """Make the messages errored."""
        await self._settle(self._of(tokens), lambda lease: lease.fail(reason))

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        lost = await self._each(self._of(tokens), lambda lease: lease.extend(lease_s))
        for lease in lost:
            self._held.pop(token_of(lease), None)
        return [token for token in tokens if token not in self._held]

    def _of(self, tokens: Sequence[Token]) -> list[Lease]:
        return [self._held[token] for token in tokens if token in self._held]

    async def _settle(
        self, leases: Sequence[Lease], end: Callable[[Lease], Awaitable[object]]
    ) -> None:
        """End leases; a lost lease is over anyway. Raises QueueUnavailable."""

        async def end_one(lease: Lease) -> None:
            await end(lease)
            self._held.pop(token_of(lease), None)

        for lease in await self._each(leases, end_one):
            self._held.pop(token_of(lease), None)

    async def _each(
        self, leases: Sequence[Lease], call: Callable[[Lease], Awaitable[object]]
    ) -> list[Lease]:
        """Call for each lease, and return the lost ones.

        Raises QueueUnavailable for the first failure.
        """
        answers = await asyncio.gather(*map(call, leases), return_exceptions=True)
        lost: list[Lease] = []
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, LOST):
                lost.append(lease)
            elif isinstance(answer, MillstreamError):
                raise unavailable(self._find_started(), answer) from None
            elif isinstance(answer, BaseException):
                raise answer
        return lost

    async def backlog(self) -> int:
        depth = await self._find_started().depth()
        return depth.get(State.PENDING, 0) + depth.get(State.INVISIBLE, 0)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        await self.release(list(self._held), 0.0, False)

    def _find_started(self) -> PriorityQueue:
        if self._queue is None:
            raise QueueUnavailable("this receiver is not started")
        return self._queue


def refuse(lease: Lease) -> Awaitable[object]:
    return lease.fail(NO_EVENT)


def unavailable(queue: PriorityQueue, error: Exception) -> QueueUnavailable:
    return QueueUnavailable(f"priority queue {queue.name!r}: {type(error).__name__}: {error}")
