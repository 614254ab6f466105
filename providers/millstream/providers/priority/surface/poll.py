"""One dequeue of a program: as many polls as it takes, until there are leases or its time is over.

Owns: `Poll`. Not: one call (`calls`), how polls wait (the queue's owner).
Invariants: a call is asked again under its request id until it is answered, so leases whose answer
was lost come with the next; when the caller is cancelled, the poll goes on without it, told to end,
and what it gives goes back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.owner.grain import Polled
from millstream.providers.priority.owner.options import WAIT_MS_MAX

from .asking import AGAIN, ask_again
from .calls import ShardCalls
from .lease import Lease

__all__ = ["Poll", "give_back"]

AGAIN_S = 0.05
"""Pause after a call that gave nothing while there is time left: its owner ends, perhaps."""


class Poll:
    """One dequeue, of one shard; it ends early where the shard has another layout than the command.

    Args:
        until_s: when a first message is waited for no longer.
        patience_s: how much longer the shard is asked while it does not answer; None: as it says.
    """

    def __init__(
        self,
        calls: ShardCalls,
        command: Dequeue,
        until_s: float,
        patience_s: float | None = None,
    ) -> None:
        self._calls = calls
        self._patience_s = calls.patience_s if patience_s is None else max(patience_s, 0.0)
        self._command = command
        self._until_s = until_s
        self._session = ""
        self._is_left = False

    async def leases(self) -> list[Lease]:
        """The leases that it gives. Who is cancelled loses none of them."""
        task = self._calls.start(self._run())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._calls.start(self._abandon(task))
            raise

    async def _abandon(self, task: asyncio.Task[list[Lease]]) -> None:
        self._is_left = True
        if self._session and not task.done():
            await self._calls.leave(self._session)
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            give_back(task.result())

    async def _run(self) -> list[Lease]:
        calls, command = self._calls, self._command
        loop = asyncio.get_running_loop()
        lane = await calls.polls.take()
        self._session = lane.session
        try:
            while not self._is_left:
                request, now_s = lane.next(), loop.time()
                wait_ms = math.ceil(max(self._until_s - now_s, 0.0) * 1000)
                try:
                    polled = await calls.poll_here(command, request, min(wait_ms, WAIT_MS_MAX))
                except AGAIN as error:
                    until_s = max(self._until_s, now_s) + self._patience_s
                    polled = await ask_again(partial(self._ask, request), error, until_s)
                found = self._given(polled)
                if found or polled.layout != command.layout or loop.time() >= self._until_s:
                    return found
                if not self._is_left:
                    await asyncio.sleep(AGAIN_S)
            return []
        finally:
            calls.polls.give(lane)

    async def _ask(self, request: Request) -> Polled:
        left_s = 0.0 if self._is_left else self._until_s - asyncio.get_running_loop().time()
        wait_ms = min(math.ceil(max(left_s, 0.0) * 1000), WAIT_MS_MAX)
        return await self._calls.poll_here(self._command, request, wait_ms)

    def _given(self, polled: Polled) -> list[Lease]:
        """Its leases; of a repeated answer those that hold still."""
        lease_ms, now_ms, found = self._command.lease_ms, polled.now_ms, []
        for row in polled.leases:
            if row.is_valid:
                left_s = (row.deadline_ms - now_ms) / 1000
                found.append(Lease(self._calls, row, left_s, lease_ms))
        return found


def give_back(leases: Sequence[Lease]) -> None:
    """Release messages that nobody takes, in the background, with their attempts."""
    for lease in leases:
        lease.give_back("nobody took it")
