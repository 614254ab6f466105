"""One dequeue from a queue with several shards: the most urgent of all messages, within a bound.

Owns `ShardedPoll`. The known heads are in `layouts`, and one shard is in `poll`.

The dequeue compares the most urgent priorities of all shards, at most `HEADS_S` old. It leases no
message that is less urgent than one that it has seen elsewhere and that no caller took since. If
other callers took everything in `LOOKS_MAX` looks, it leases the most urgent message of the best
shard.

Invariants: a cancelled caller, or one with more leases than it asked for, releases them without
counting the attempts. A missing shard has no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from millstream.providers.priority.core.commands import Dequeue, Heads
from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.results import HeadPriorities

from .calls import ShardCalls
from .layouts import HEADS_MAX, HeadBoard, Plan, Routes
from .lease import Lease
from .poll import give_back, leases_of

__all__ = ["ShardedPoll"]

LOOKS_MAX = 3
"""How often the dequeue looks at heads while other callers are faster."""


class ShardedPoll:
    """One dequeue.

    Args:
        shards: All shards of the queue.
        routes: The known layout.
        command: The dequeue.
        until_s: The end of the wait for a first message.
    """

    def __init__(
        self, shards: Sequence[ShardCalls], routes: Routes, command: Dequeue, until_s: float
    ) -> None:
        self._shards = shards
        self._routes = routes
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._until_s = until_s
        self._patient_s = until_s + shards[0].patience_s

    async def leases(self) -> list[Lease]:
        """The leases, the most urgent first."""
        while True:
            found = await self._take()
            if found or self._loop.time() >= self._until_s or self._is_over:
                return found
            found = await self._wait()
            if found or self._is_over:
                return found

    @property
    def _is_over(self) -> bool:
        """Whether the queue has other shards by now."""
        return self._routes.is_other(self._command.layout)

    # -- available messages

    async def _take(self) -> list[Lease]:
        board = self._routes.board(self._command.wanted)
        for attempt in range(LOOKS_MAX):
            plan = await self._plan(board, is_first=attempt == 0)
            if plan is None:
                return []
            is_last = attempt == LOOKS_MAX - 1
            found = await self._dequeue(plan, None if is_last else plan.not_above)
            if found or self._is_over:
                return found
        return []

    async def _plan(self, board: HeadBoard, *, is_first: bool) -> Plan | None:
        count = self._command.at_most
        if not is_first or not board.knows(count, self._loop.time()):
            asked, looked_s = max(count, HEADS_MAX), self._loop.time()
            look = Heads(asked, self._command.wanted)
            asking = [heads_of(shard, look, self._patient_s) for shard in self._shards]
            heads = await asyncio.gather(*asking)
            board.note(heads, asked, looked_s)
        return board.plan(count)

    async def _dequeue(self, plan: Plan, not_above: int | None) -> list[Lease]:
        """Lease the planned messages of each shard."""
        polls = [
            self._shards[0].start(self._poll(shard, count, not_above, self._loop.time()))
            for shard, count in plan.counts.items()
        ]
        try:
            await asyncio.wait(polls)
        except asyncio.CancelledError:
            self._abandon(polls)
            raise
        return await self._gather(polls)

    async def _poll(
        self, shard: int, count: int, not_above: int | None, until_s: float
    ) -> list[Lease]:
        command = self._command._replace(at_most=count, not_above=not_above)
        try:
            patience_s = self._patient_s - until_s
            return await leases_of(self._shards[shard], command, until_s, patience_s)
        except PriorityQueueNotFound:
            if shard == 0:
                raise
            return []

    # -- messages that arrive

    async def _wait(self) -> list[Lease]:
        """Wait at all shards until one has a message."""
        count = self._command.at_most
        polls = [
            self._shards[0].start(self._poll(shard, count, None, self._until_s))
            for shard in range(len(self._shards))
        ]
        try:
            await self._until_one_is_of_use(polls)
        except asyncio.CancelledError:
            self._abandon(polls)
            raise
        waiting = [task for task in polls if not task.done()]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        return await self._gather(polls)

    async def _until_one_is_of_use(self, polls: Sequence[asyncio.Task[list[Lease]]]) -> None:
        waiting = set(polls)
        while waiting and not self._is_over:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(is_of_use(task) for task in done):
                return

    # -- results

    async def _gather(self, polls: Sequence[asyncio.Task[list[Lease]]]) -> list[Lease]:
        """The leases of all polls, without the surplus, which is released.

        Without leases, the error of the first failed poll is raised.
        """
        found = sorted(
            (lease for task in polls for lease in list_leases(task)), key=lambda one: one.priority
        )
        if not found:
            for task in polls:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        count = self._command.at_most
        give_back(found[count:])
        return found[:count]

    def _abandon(self, polls: Sequence[asyncio.Task[list[Lease]]]) -> None:
        """Cancel the polls, and release their leases."""
        for task in polls:
            task.cancel()
        for task in polls:
            task.add_done_callback(lambda done: give_back(list_leases(done)))


def is_of_use(task: asyncio.Task[list[Lease]]) -> bool:
    """Whether the poll has leases or failed."""
    return task.cancelled() or task.exception() is not None or bool(task.result())


def list_leases(task: asyncio.Task[list[Lease]]) -> list[Lease]:
    """The leases of a finished poll; none if it failed."""
    is_good = not task.cancelled() and task.exception() is None
    return task.result() if is_good else []


async def heads_of(shard: ShardCalls, look: Heads, until_s: float) -> Sequence[int]:
    """The heads of one shard; none of a missing shard."""
    try:
        return cast(HeadPriorities, await shard.look_here(look, until_s)).priorities
    except PriorityQueueNotFound:
        return ()
