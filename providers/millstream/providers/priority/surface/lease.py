"""A message that this program has, for a time: to be completed, or given back.

Owns: `Lease`: ending a lease, and keeping it while a block runs. Not: asking (`queue`).
Invariants: what this side believes of time is a hint, the queue decides; a lease that was ended
here is not ended again by its block; a block that has lost its lease is cancelled and says so; no
block begins with a lease that is over, or is a block already.
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
    """The queue that a lease is of."""

    @property
    def queue(self) -> str: ...
    async def here(self, ending: Ending, /) -> Done:
        """End or extend a lease of its."""
        ...

    def give_back(self, command: Release, /) -> asyncio.Task[None]:
        """Release in the background."""
        ...


class Lease:
    """One lease of one message: `async with lease: await work(lease.payload)`.

    While the block runs the lease is extended, at every third of its time. At its end the message
    is completed. An error releases it, with the error as its reason, and uses an attempt; a
    cancellation releases it and gives the attempt back. A block whose lease is lost (the message
    was cancelled, its time has passed, another worker has it) is cancelled as `asyncio.timeout`
    does it, at the next extension at the latest, and raises `LeaseLost`; so does a block that
    swallows this cancellation, or ends before it, with a lease that is lost.
    A lease is one block, once: one that has ended, or whose time has passed, is refused at the
    beginning, with `LeaseLost`; one that is a block already with RuntimeError. To try again,
    dequeue again.

    Attributes: `id`, `payload`, `priority`, `metadata`: the message; `token`: hand it to whatever
    the work writes to, so that it can refuse an older one; `deadline_ms`: when the lease is over,
    by the queue's clock; `attempt`, 1 the first time, and `attempts_left`.
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
        self._worker: asyncio.Task[object] | None = None  # of the block
        self._cancelling = 0  # how often it was cancelled before the block
        self._is_interrupted = False

    def __repr__(self) -> str:
        return f"<lease of {self.id!r} in {self._lessor.queue!r}, attempt {self.attempt}>"

    @property
    def is_lost(self) -> bool:
        """May another worker have the message, as far as this side knows? The lease was refused or
        given back, or its time has passed here. Not after `complete`, `fail` and `cancel`."""
        if self._lost is not None or self._is_given_back:
            return True
        return not self._is_ended and self._loop.time() >= self._until_s

    @property
    def left_s(self) -> float:
        """What is left of it, in seconds, as far as this side knows."""
        return max(0.0, self._until_s - self._loop.time())

    # -- ending it

    async def complete(self) -> Done:
        """The work is done. Raises `LeaseLost`, `MessageFinished`, `MessageNotFound`."""
        return await self._end(Complete(self.id, self.token))

    async def fail(self, reason: str = "") -> Done:
        """The work cannot be done: errored, whatever attempts are left. Raises as `complete`."""
        return await self._end(Fail(self.id, self.token, self._cut(reason)))

    async def cancel(self, reason: str = "") -> Done:
        """The work is not needed any more. Raises as `complete`."""
        return await self._end(Cancel(self.id, self.token, self._cut(reason)))

    async def release(
        self, *, delay_s: float = 0.0, refund: bool = False, reason: str = ""
    ) -> Done:
        """Give the message back, to be had again after `delay_s`.

        Args:
            refund: the attempt was none, as the work was not begun.
        Raises: as `complete`; `RequestInvalid` (the delay).
        """
        delay_ms = milliseconds(self._lessor.queue, "delay_s", delay_s) or 0
        check_flag(self._lessor.queue, "refund", refund)
        return await self._end(Release(self.id, self.token, delay_ms, refund, self._cut(reason)))

    async def extend(self, lease_s: float | None = None) -> Done:
        """The lease holds until `lease_s` from now, if that is later.

        Args:
            lease_s: default: as it was asked for by the dequeue, or as message and queue say.
        Raises: as `complete`; `RequestInvalid`.
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
        """Release it in the background, with its attempt: the work was not begun."""
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

    # -- a block

    async def __aenter__(self) -> Lease:
        if self._keeper is not None:
            raise RuntimeError(f"{self!r} is a block already: a lease is one block, once")
        if self._is_ended or self.is_lost:
            why = "has ended" if self._is_ended or self._lost else "is over, its time has passed"
            what = f"message {self.id!r}: the lease {tuple(self.token)} {why}: dequeue again"
            raise LeaseLost(self._lessor.queue, what)
        self._worker = asyncio.current_task()
        assert self._worker is not None, "a block runs in a task"
        self._cancelling = self._worker.cancelling()
        self._keeper = asyncio.create_task(self._keep(self._worker))
        return self

    async def _keep(self, worker: asyncio.Task[object]) -> None:
        """Extend until told to end, or until it is lost: then interrupt the block."""
        while not self.is_lost and not self._is_ended:
            await asyncio.sleep(self._lease_s / EXTENSIONS_PER_LEASE)
            try:
                async with asyncio.timeout_at(self._until_s):
                    await self.extend()
            except (MillstreamError, TimeoutError):
                continue  # lost, or tried again while there is time
        if not self._is_ended:
            self._is_interrupted = worker.cancel()

    def _was_interrupted(self, kind: type[BaseException] | None) -> bool:
        """Did the block end by the cancellation of its keeper, and by no other?"""
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
            why = self._lost or "its time has passed"
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
        """Release; what goes wrong with that does not hide the block's own error."""
        is_none = not isinstance(error, Exception)  # cancelled, or the program ends
        reason = cut(f"{type(error).__name__}: {error}")
        self._is_ended = self._is_given_back = True
        release = Release(self.id, self.token, 0, is_none, reason)
        await asyncio.shield(self._lessor.give_back(release))


def cut(reason: str) -> str:
    """The reason, as long as one may be."""
    data = reason.encode(errors="replace")
    if len(data) <= REASON_BYTES_MAX:
        return data.decode()
    return data[:REASON_BYTES_MAX].decode(errors="ignore")
