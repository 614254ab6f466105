"""`Lease`: a message that this program holds for a limited time.

Owns ending a lease, and extending it while a block runs.

Invariants:

- The time in this process is only a hint; the queue decides whether a lease is valid.
- A block does not end a lease that the program has ended.
- A block whose lease is lost is cancelled and raises `LeaseLost`.
- A block does not begin with a lease that is over, or that is a block already.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from millstream.providers.priority.core.body import REASON_BYTES_MAX, check_flag
from millstream.providers.priority.core.commands import Cancel, Complete, Extend, Fail, Release
from millstream.providers.priority.core.errors import (
    LeaseLost,
    MessageFinished,
    MessageNotFound,
    PriorityQueueNotFound,
    RequestInvalid,
)
from millstream.providers.priority.core.message import LeaseToken, Metadata
from millstream.providers.priority.core.results import Done
from millstream.providers.priority.core.results import LeaseGrant as LeaseRow
from millstream.runtime import MillstreamError

from .given import milliseconds

__all__ = ["LOST", "Lease"]

LOST = (LeaseLost, MessageFinished, MessageNotFound, PriorityQueueNotFound)
Ending = Complete | Fail | Cancel | Extend | Release
EXTENSIONS_PER_LEASE = 3


class Lessor(Protocol):
    """The queue calls that a lease needs."""

    @property
    def queue(self) -> str: ...
    async def here(self, ending: Ending, /) -> Done:
        """Send a command that ends or extends the lease."""
        ...

    def give_back(self, command: Release, /) -> asyncio.Task[None]:
        """Release the message in the background."""
        ...


class Lease:
    """One lease of one message: `async with lease: await work(lease.payload)`.

    **The block.** While the block runs, the lease is extended at every third of its length.

    | the block | the message |
    |---|---|
    | ends without an error | is completed |
    | raises an error | is released; the error is the reason, and the attempt counts |
    | is cancelled | is released, and the attempt does not count |

    **Lost leases.** A lease is lost if the message was cancelled, the time has passed, or another
    worker has the message. The block of a lost lease is cancelled as `asyncio.timeout` cancels, at
    the latest at the next extension, and raises `LeaseLost`. A block that suppresses this
    cancellation, or that ends earlier with a lost lease, raises `LeaseLost`, too. Stop the work
    then, and write nothing more.

    **Fencing.** A worker that was suspended may not know that its lease is over. Send `token.epoch`
    with each write, and let the target refuse a lower epoch than it has seen.

    A lease is one block, once. To try again, dequeue again.

    Attributes:
        id: The message's id.
        payload: Its content.
        priority: Its priority.
        metadata: Its pairs, in the order of their keys.
        token: The token of this lease, a fencing token.
        deadline_ms: End of the lease by the queue's clock, in Unix milliseconds.
        attempt: Number of this attempt, 1 for the first.
        attempts_left: How many attempts are left.

    Raises:
        LeaseLost: At the beginning of the block: the lease has ended or its time has passed. At the
            end: it was lost.
        RuntimeError: The lease is a block already.
    """

    def __init__(self, lessor: Lessor, row: LeaseRow, left_s: float, lease_ms: int | None) -> None:
        self.id = row.id
        self.payload = row.payload
        self.priority = row.priority
        self.metadata: Metadata = row.metadata
        self.token: LeaseToken = row.token
        self.deadline_ms = row.deadline_ms
        self.attempt = row.attempt
        self.attempts_left = row.attempts_left
        self._lessor = lessor
        self._lease_ms = lease_ms
        self._loop = asyncio.get_running_loop()
        self._lease_s = left_s
        self._until_s = self._loop.time() + left_s
        self._lost: MillstreamError | None = None
        self._is_ended = False
        self._is_given_back = False
        self._keeper: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[object] | None = None  # the task of the block
        self._cancelling = 0  # how often the task was cancelled before the block
        self._is_interrupted = False

    def __repr__(self) -> str:
        return f"<lease of {self.id!r} in {self._lessor.queue!r}, attempt {self.attempt}>"

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the message, as far as this process knows.

        True after the lease was refused or released, or when its time has passed. False
        after `complete`, `fail` and `cancel`.
        """
        if self._lost is not None or self._is_given_back:
            return True
        return not self._is_ended and self._loop.time() >= self._until_s

    @property
    def left_s(self) -> float:
        """The remaining time of the lease in seconds, as far as this process knows."""
        return max(0.0, self._until_s - self._loop.time())

    # -- ending the lease

    async def complete(self, reason: str = "") -> Done:
        """Complete the message: the work is done.

        Args:
            reason: A note about the work, which `get` shows. A text above 1,024 bytes is cut.

        Returns:
            The message's new state. A repeat has the same result.

        Raises:
            LeaseLost: The lease is over; another worker may have the message.
            MessageFinished: The message was finished in another way.
            MessageNotFound: The message does not exist.
            PriorityQueueNotFound: The queue was deleted.
        """
        return await self._end(Complete(self.id, self.token, self._cut(reason)))

    async def fail(self, reason: str = "") -> Done:
        """Make the message errored at once, even if attempts are left.

        Args:
            reason: Why the work failed. A text above 1,024 bytes is cut.

        Returns:
            The message's new state.

        Raises:
            PriorityQueueError: As in `complete`.
        """
        return await self._end(Fail(self.id, self.token, self._cut(reason)))

    async def cancel(self, reason: str = "") -> Done:
        """Cancel the message: the work is not needed.

        Args:
            reason: Why. A text above 1,024 bytes is cut.

        Returns:
            The message's new state.

        Raises:
            PriorityQueueError: As in `complete`.
        """
        return await self._end(Cancel(self.id, self.token, self._cut(reason)))

    async def release(
        self, *, delay_s: float = 0.0, refund: bool = False, reason: str = ""
    ) -> Done:
        """Release the message, so that a worker can lease it again.

        Without attempts left, the message becomes errored.

        Args:
            delay_s: How long no worker can lease it, in seconds.
            refund: Whether this attempt does not count, because the work did not start.
            reason: Why. A text above 1,024 bytes is cut.

        Returns:
            The message's new state.

        Raises:
            PriorityQueueError: As in `complete`.
            RequestInvalid: An argument is not valid.
        """
        delay_ms = milliseconds(self._lessor.queue, "delay_s", delay_s) or 0
        check_flag(self._lessor.queue, "refund", refund)
        return await self._end(Release(self.id, self.token, delay_ms, refund, self._cut(reason)))

    async def extend(self, lease_s: float | None = None) -> Done:
        """Extend the lease. A lease is never shortened.

        Inside an `async with` block this is not necessary.

        Args:
            lease_s: The lease then ends so many seconds from now, at least. None uses the length
                that the dequeue asked for, or else the setting of the message or the queue.

        Returns:
            The message's state; `due_ms` is the new end of the lease.

        Raises:
            PriorityQueueError: As in `complete`.
            RequestInvalid: `lease_s` is not valid.
        """
        given_ms = milliseconds(self._lessor.queue, "lease_s", lease_s)
        lease_ms = self._lease_ms if given_ms is None else given_ms
        sent_s = self._loop.time()
        done = await self._end(Extend(self.id, self.token, lease_ms))
        self.deadline_ms = done.due_ms
        held_s = self._lease_s if lease_ms is None else lease_ms / 1000
        self._until_s = max(self._until_s, sent_s + held_s)
        return done

    def give_back(self, reason: str = "") -> None:
        """Release the message in the background, without counting the attempt.

        Use it for a message on which no work was started. The method returns at once and raises no
        error of the queue.

        Args:
            reason: Why. A text above 1,024 bytes is cut.
        """
        release = Release(self.id, self.token, 0, True, self._cut(reason))
        self._is_ended = self._is_given_back = True
        self._lessor.give_back(release)

    def _cut(self, reason: str) -> str:
        if not isinstance(reason, str):
            what = f"is {type(reason).__name__}, not a text"
            raise RequestInvalid(self._lessor.queue, "reason", what)
        return cut(reason)

    async def _end(self, ending: Ending) -> Done:
        try:
            done = await self._lessor.here(ending)
        except LOST as error:
            self._lost = error
            raise
        if not isinstance(ending, Extend):
            self._is_ended = True
            self._is_given_back = isinstance(ending, Release)
        return done

    # -- the block

    async def __aenter__(self) -> Lease:
        if self._keeper is not None:
            raise RuntimeError(f"{self!r} is already in use by a block: enter a lease only once")
        if self._is_ended or self.is_lost:
            why = "has ended" if self._is_ended or self._lost else "is over: its time has passed"
            what = f"message {self.id!r}: the lease {tuple(self.token)} {why}; dequeue again"
            raise LeaseLost(self._lessor.queue, what)
        self._worker = asyncio.current_task()
        assert self._worker is not None, "a block runs in a task"
        self._cancelling = self._worker.cancelling()
        self._keeper = asyncio.create_task(self._keep(self._worker))
        return self

    async def _keep(self, worker: asyncio.Task[object]) -> None:
        """Extend the lease until it ends; if it is lost, cancel the block."""
        while not self.is_lost and not self._is_ended:
            await asyncio.sleep(self._lease_s / EXTENSIONS_PER_LEASE)
            try:
                async with asyncio.timeout_at(self._until_s):
                    await self.extend()
            except (MillstreamError, TimeoutError):
                continue  # the lease is lost, or there is time for another attempt
        if not self._is_ended:
            self._is_interrupted = worker.cancel()

    def _was_interrupted(self, kind: type[BaseException] | None) -> bool:
        """Whether the error `kind` that ends the `async with` block is only the cancellation by
        the task that extends the lease."""
        if not self._is_interrupted or self._worker is None:
            return False
        self._is_interrupted = False
        is_only = self._worker.uncancel() <= self._cancelling
        return is_only and kind is asyncio.CancelledError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        if self._was_interrupted(kind):
            why = self._lost or "the lease is over: its time has passed"
            raise LeaseLost(self._lessor.queue, f"message {self.id!r}: {why}") from error
        if self._is_ended:
            return
        if error is None:
            await self._complete()
        else:
            await self._hand_back(error)

    async def _complete(self) -> None:
        try:
            await self.complete()
        except LeaseLost:
            raise
        except LOST as error:
            raise LeaseLost(self._lessor.queue, f"message {self.id!r}: {error}") from error

    async def _hand_back(self, error: BaseException) -> None:
        """Release the message. A failure of this does not hide the error of the block."""
        is_none = not isinstance(error, Exception)  # a cancellation, or the end of the program
        reason = cut(f"{type(error).__name__}: {error}")
        self._is_ended = self._is_given_back = True
        release = Release(self.id, self.token, 0, is_none, reason)
        await asyncio.shield(self._lessor.give_back(release))


def cut(reason: str) -> str:
    """The reason, cut to the maximum length."""
    data = reason.encode(errors="replace")
    if len(data) <= REASON_BYTES_MAX:
        return data.decode()
    return data[:REASON_BYTES_MAX].decode(errors="ignore")
