"""Calls of one process to the owner of one shard, which for most queues is the whole queue.

Owns `ShardCalls`: request ids, retries, and the release of messages that no caller takes. The
retried errors are in `asking`, the choice of the shard is in `routed`, and the operations are in
`queue`, `lease` and `poll`.

Invariants: a command keeps its request id for all retries. A release in the background reports
failures only to the log.
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
"""How long an operation is retried, in seconds, unless the handle has another value."""
ANSWER_S = 10.0
"""How much longer than its wait the call of a poll may take, in seconds."""
GIVE_BACK_S = 10.0
"""How long the release of a message that no caller takes is retried, in seconds."""


class ShardCalls:
    """The calls to one shard, for the handles and leases of one queue.

    `new_name` returns a unique name, `routes` has the known layout of the queue, `polls` has the
    sessions of polls, and `start` starts a task that may outlive its caller.

    Args:
        opener: The client, silo or grain that makes the calls.
        part: The name of the part.
        name: The name of the queue.
        patience_s: How long an operation is retried, in seconds.
        shard: The number of the shard; shard 0 has the queue's name.
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
        """Carry out a command in this shard, once. Raises the errors of its operation and of `ask`.

        `own` is the caller's request id, if it has one. `until_s` is the end of the caller's
        patience, if it has begun.
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
        """Carry out a command that belongs to another shard; subclasses do it."""
        raise moved

    async def look_here(self, look: Look, until_s: float | None = None) -> Any:
        """Read from this shard. Raises the errors of `here`."""
        return await self.of_owner(lambda owner: owner.look(look), until_s)

    async def of_owner(
        self, call: Callable[[QueueOwner], Awaitable[T]], until_s: float | None = None
    ) -> T:
        """Call the owner; the call may be carried out twice. Raises the errors of `here`."""
        return await ask(lambda: call(self._owner), self.until_s() if until_s is None else until_s)

    async def poll_here(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """Make one call of a poll, without retries."""
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
        """Tell the owner that no caller waits for this session's poll.

        A failure is harmless, because the wait ends by itself.
        """
        try:
            await self._owner.leave(session)
        except MillstreamError as error:
            log.debug("queue %r: a poll could not be ended early: %s", self.queue, error)

    def give_back(self, command: Release, /) -> asyncio.Task[None]:
        """Release a message in the background."""
        return self.start(self._release(command))

    async def _release(self, command: Release) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self.here(command)
        except PriorityQueueError as error:
            log.debug("queue %r: message %r was not released: %s", self.queue, command.id, error)
        except (MillstreamError, TimeoutError) as error:
            text = "queue %r: message %s was not released, and its lease will expire: %s: %s"
            what = show_text(repr(command.id)), type(error).__name__, error
            log.warning(text, self.queue, *what)
