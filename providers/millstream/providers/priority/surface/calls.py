"""Calls of one process to the owner of one shard, which in most cases is the whole queue.

Owns: `ShardCalls`: request ids, asking again, giving back what nobody takes. Not: which errors are
asked through (`asking`), which shard (`routed`), what is asked (`queue`, `lease`, `poll`).
Invariants: a command has one request id, however often it is asked for; what is given back in the
background tells nobody but the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from millstream.providers.priority.core.commands import (
    Command,
    Dequeue,
    Look,
    Release,
)
from millstream.providers.priority.core.errors import Moved, PriorityQueueError, RequestInvalid
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.shards import shard_name
from millstream.providers.priority.owner.grain import Polled, QueueOwner, owner_of
from millstream.runtime import MillstreamError, with_options
from millstream.runtime.extending import Opener, show_text

from .asking import AGAIN, RequestSession, ask, ask_again, sessions_of
from .given import as_given

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
        `routes`: what this process knows of the queue, of shard 0; `polls`: the sessions of polls;
        `start`: starts what may outlive its caller.
    """

    def __init__(
        self, opener: Opener, part: str, name: str, patience_s: float, shard: int = 0
    ) -> None:
        queue = shard_name(name, shard)
        self.queue = name
        self.patience_s = patience_s
        self.new_name = opener.new_name
        self._owner: QueueOwner = opener.grain(owner_of(part), queue)
        sessions = sessions_of(opener, part, queue)
        self._changes, self.polls, self.start = sessions.changes, sessions.polls, sessions.start
        self.routes = (sessions_of(opener, part, name) if shard else sessions).routes

    def until_s(self) -> float:
        """When the patience of an operation ends that begins now."""
        return asyncio.get_running_loop().time() + self.patience_s

    async def here(
        self, command: Command, own: Request | None = None, until_s: float | None = None
    ) -> Any:
        """Have the owner do a command, once. Raises what its operation raises, and what `ask` does.

        Args:
            own: the request id, where the caller has one.
            until_s: when the caller's patience ends, if that is under way.
        """
        if until_s is None:
            until_s = asyncio.get_running_loop().time() + self.patience_s
        session: RequestSession | None = None
        if own is None:
            session = await self._changes.take()
        request = own if session is None else session.next()
        try:
            try:
                return await self._owner.do(command, request)
            except AGAIN as error:
                return await ask_again(partial(self._owner.do, command, request), error, until_s)
        except RequestInvalid as error:
            raise as_given(error) from error.__cause__
        except Moved as error:
            moved = error
        finally:
            if session is not None:
                self._changes.give(session)
        return await self._elsewhere(command, own, until_s, moved)

    async def _elsewhere(
        self, command: Command, own: Request | None, until_s: float, moved: Moved
    ) -> Any:
        """It belongs to another shard."""
        raise moved

    async def look_here(self, look: Look, until_s: float | None = None) -> Any:
        """Look at the shard. Raises as `here`."""
        return await self.of_owner(lambda owner: owner.look(look), until_s)

    async def of_owner(
        self, call: Callable[[QueueOwner], Awaitable[T]], until_s: float | None = None
    ) -> T:
        """Call the owner; what may be done twice. Raises as `here`."""
        return await ask(lambda: call(self._owner), self.until_s() if until_s is None else until_s)

    async def poll_here(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """One call of a poll; not asked again."""
        owner = self._owner
        if wait_ms:
            owner = with_options(owner, timeout=wait_ms / 1000 + ANSWER_S)
        try:
            polled = await owner.poll(command, request, wait_ms)
        except RequestInvalid as error:
            raise as_given(error) from error.__cause__
        if polled.layout != command.layout:
            self.routes.note(polled.layout, command.layout)
        return polled

    async def leave(self, session: str) -> None:
        """Nobody waits for this session's poll any more. What fails of it is nothing: the poll's
        wait ends by itself."""
        try:
            await self._owner.leave(session)
        except MillstreamError as error:
            log.debug("queue %r: a poll was not told to end: %s", self.queue, error)

    def give_back(self, command: Release, /) -> asyncio.Task[None]:
        """Release a message in the background."""
        return self.start(self._release(command))

    async def _release(self, command: Release) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self.here(command)
        except PriorityQueueError as error:
            log.debug("queue %r: %r was not given back: %s", self.queue, command.id, error)
        except (MillstreamError, TimeoutError) as error:
            text = "queue %r: message %s was not given back, its lease ends by itself: %s: %s"
            what = show_text(repr(command.id)), type(error).__name__, error
            log.warning(text, self.queue, *what)
