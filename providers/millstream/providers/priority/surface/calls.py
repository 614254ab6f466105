"""Calls of one process to the owner of one shard, which in most cases is the whole queue.

Owns: `ShardCalls`: request ids, asking again, giving back what nobody takes. Not: which errors are
asked through (`asking`), which shard (`routed`), what is asked (`queue`, `lease`, `poll`).
Invariants: a command has one request id, however often it is asked for; what is given back in the
background tells nobody but the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any, TypeVar, cast

from millstream.providers.priority.core.commands import (
    Command,
    Dequeue,
    Look,
    Release,
)
from millstream.providers.priority.core.errors import PriorityQueueError, RequestInvalid
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Done
from millstream.providers.priority.core.shards import shard_name
from millstream.providers.priority.owner.grain import Polled, QueueOwner, owner_of
from millstream.runtime import MillstreamError, with_options
from millstream.runtime.extending import Opener, shown

from .asking import Lanes, ask, sessions_of
from .given import as_given
from .lease import Ending

__all__ = ["PATIENCE_S", "ShardCalls"]

log = logging.getLogger("millstream.priority")

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long an operation is asked again, unless the handle says otherwise."""
ANSWER_S = 10.0
"""How much longer than its wait the call of a poll may take."""
GIVE_BACK_S = 10.0
"""How long a message that nobody takes is tried to be given back."""


class ShardCalls:
    """What the handles and leases of one queue ask a shard with.

    Args:
        shard: 0 has the queue's name.
    Attributes: `queue`, its name; `patience_s`; `new_name`: makes a name that nothing else has;
        `routes`: what this process knows of the queue, of shard 0.
    """

    def __init__(
        self, opener: Opener, part: str, name: str, patience_s: float, shard: int = 0
    ) -> None:
        queue = shard_name(name, shard)
        self.queue = name
        self.patience_s = patience_s
        self.new_name = opener.new_name
        self._owner: QueueOwner = opener.grain(owner_of(part), queue)
        self._sessions = sessions_of(opener, part, queue)
        whole = sessions_of(opener, part, name) if shard else self._sessions
        self.routes = whole.routes

    def within(self, patience_s: float) -> ShardCalls:
        """The same, with what is left of an operation's patience; not for polls, whose leases keep
        what they were given by."""
        found = copy(self)
        found.patience_s = max(patience_s, 0.0)
        return found

    @property
    def polls(self) -> Lanes:
        """Where polls have their request ids."""
        return self._sessions.polls

    def start(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what may outlive its caller."""
        return self._sessions.start(coro)

    async def do(self, command: Command, own: Request | None = None) -> object:
        """Do a command, once. Raises what its operation raises, and what `ask` does.

        Args:
            own: the request id, where the caller has one.
        """
        if own is not None:
            return await self._done(command, own)
        lanes = self._sessions.changes
        lane = await lanes.take()
        try:
            return await self._done(command, lane.next())
        finally:
            lanes.give(lane)

    async def _done(self, command: Command, request: Request) -> object:
        try:
            return await self.ask(lambda: self._owner.do(command, request))
        except RequestInvalid as error:
            raise as_given(error) from error.__cause__

    async def look(self, look: Look) -> object:
        """Look at the queue. Raises as `do`."""
        return await self.ask(lambda: self._owner.look(look))

    async def of_owner(self, call: Callable[[QueueOwner], Coroutine[Any, Any, T]]) -> T:
        """Call the owner; what may be done twice. Raises as `do`."""
        return await self.ask(lambda: call(self._owner))

    async def ask(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call, and again while the cluster does not answer."""
        return await ask(call, self.patience_s)

    async def poll(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """One call of a poll; not asked again."""
        owner = self._owner
        if wait_ms:
            owner = with_options(owner, timeout=wait_ms / 1000 + ANSWER_S)
        try:
            polled = await owner.poll(command, request, wait_ms)
        except RequestInvalid as error:
            raise as_given(error) from error.__cause__
        self.routes.note(polled.layout, command.layout)
        return polled

    async def leave(self, session: str) -> None:
        """Nobody waits for this session's poll any more. What fails of it is nothing: the poll's
        wait ends by itself."""
        try:
            await self._owner.leave(session)
        except MillstreamError as error:
            log.debug("queue %r: a poll was not told to end: %s", self.queue, error)

    async def end(self, ending: Ending, /) -> Done:
        """End or extend a lease."""
        return cast(Done, await self.do(ending))

    def give_back(self, command: Release, /) -> asyncio.Task[None]:
        """Release a message in the background."""
        return self.start(self._release(command))

    async def _release(self, command: Release) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self.do(command)
        except PriorityQueueError as error:
            log.debug("queue %r: %r was not given back: %s", self.queue, command.id, error)
        except (MillstreamError, TimeoutError) as error:
            text = "queue %r: message %s was not given back, its lease ends by itself: %s: %s"
            what = shown(repr(command.id)), type(error).__name__, error
            log.warning(text, self.queue, *what)
