"""Asking again while the cluster does not answer, without doing anything twice.

Owns: `ask`: which errors are asked through, for how long; request ids and their sessions, by
process and queue. Not: what is asked (`queue`).
The next request of a session acknowledges the answer of the one before. So a request that is lost,
or slow, holds up no other.
Invariants: a session is used by one request at a time; a request is asked again under its own
number only; there are at most `OPEN_MAX` sessions of changes and `POLLS_OPEN_MAX` of polls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

from millstream.providers.priority.core.errors import FilterNotReady, OwnerLost
from millstream.providers.priority.core.requests.sessions import Request
from millstream.runtime import CallTimeout, Rejected, SiloUnavailable, StorageUnavailable
from millstream.runtime.extending import Backoff, Opener

from .layouts import Routes

__all__ = [
    "AGAIN",
    "OPEN_MAX",
    "POLLS_OPEN_MAX",
    "OpenSessions",
    "RequestSession",
    "ask",
    "ask_again",
    "sessions_of",
]

T = TypeVar("T")
OPEN_MAX = 64
"""Changes that one process has under way in one queue; the next one waits."""
POLLS_OPEN_MAX = 1_000
"""The same of polls."""
QUEUES_KEPT_MAX = 1_000
"""Queues whose sessions one process remembers; handles that are kept have theirs for good."""
PAUSES = Backoff(first_s=0.05, ceiling_s=2.0)
AGAIN = (
    SiloUnavailable,
    CallTimeout,
    Rejected,
    OwnerLost,
    StorageUnavailable,
    FilterNotReady,
)
"""Perhaps it was done, perhaps not: asked again under its number, it is done once."""


async def ask(call: Callable[[], Awaitable[T]], until_s: float) -> T:
    """Call, again after errors that may pass, until then. Raises the last error."""
    try:
        return await call()
    except AGAIN as error:
        return await ask_again(call, error, until_s)


async def ask_again(call: Callable[[], Awaitable[T]], error: Exception, until_s: float) -> T:
    """Call again after an error that may pass, until then. Raises the last error."""
    loop, attempt = asyncio.get_running_loop(), 0
    while True:
        attempt += 1
        pause_s = PAUSES.whole_s(attempt)
        if loop.time() + pause_s >= until_s:
            raise error
        await asyncio.sleep(pause_s)
        try:
            return await call()
        except AGAIN as found:
            error = found


class RequestSession:
    """Requests under one name, one at a time; `number` is that of the latest."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0

    def next(self) -> Request:
        """A new request, which acknowledges all before it."""
        self.number += 1
        return Request(self.name, self.number, self.number - 1)


class SessionPool:
    """The sessions of one process and queue.

    Args:
        new_name: makes a name that nothing else in the life of the cluster has.
    """

    def __init__(self, new_name: Callable[[], str], most: int) -> None:
        self._new_name = new_name
        # the latest used is used next, so idle ones are forgotten
        self._free: list[RequestSession] = []
        self._left = most  # that may be made still
        self._waiting: deque[asyncio.Future[RequestSession]] = deque()

    async def take(self) -> RequestSession:
        """A session of one's own, to be given back; waits while all are in use."""
        if self._free:
            return self._free.pop()
        if self._left:
            self._left -= 1
            return RequestSession(self._new_name())
        future: asyncio.Future[RequestSession] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(future.result())
            raise

    def give(self, session: RequestSession) -> None:
        """Let others have it; who has waited for longest is the first."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(session)
                return
        self._free.append(session)


class OpenSessions:
    """What one process has under way in one queue."""

    def __init__(self, new_name: Callable[[], str]) -> None:
        self.routes = Routes()
        self.changes = SessionPool(new_name, OPEN_MAX)
        self.polls = SessionPool(new_name, POLLS_OPEN_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what may outlive its caller."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_known: WeakKeyDictionary[Opener, dict[tuple[str, str], OpenSessions]] = WeakKeyDictionary()


def names_of(opener: Opener) -> Callable[[], str]:
    """Its names, without keeping it: what is kept by its key would keep that for good."""
    method = WeakMethod(opener.new_name)

    def new_name() -> str:
        found = method()
        assert found is not None, "who asks has it"
        return found()

    return new_name


def sessions_of(opener: Opener, part: str, queue: str) -> OpenSessions:
    """Those of this process: all handles of a queue share them."""
    known = _known.setdefault(opener, {})
    found = known.pop((part, queue), None) or OpenSessions(names_of(opener))
    known[part, queue] = found  # the latest used is the last
    if len(known) > QUEUES_KEPT_MAX:
        del known[next(iter(known))]
    return found
