"""Retries while the cluster does not answer, without carrying out anything twice.

Owns `ask`, which decides the retried errors and their time, and the request sessions of each
process and queue. `queue` has the operations.

The next request of a session acknowledges the answer of the previous one. Each open request has a
session of its own, so a lost or slow request delays no other.

Invariants: one request at a time uses a session. A retry keeps the number of its request. There are
at most `OPEN_MAX` sessions for changes and `POLLS_OPEN_MAX` for polls.
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
"""Concurrent changes by one process in one queue; the next one waits."""
POLLS_OPEN_MAX = 1_000
"""Concurrent polls by one process in one queue; the next one waits."""
QUEUES_KEPT_MAX = 1_000
"""Queues whose sessions one process remembers. A handle keeps its sessions as long as it exists."""
PAUSES = Backoff(first_s=0.05, ceiling_s=2.0)
AGAIN = (
    SiloUnavailable,
    CallTimeout,
    Rejected,
    OwnerLost,
    StorageUnavailable,
    FilterNotReady,
)
"""Errors after which the request may have been carried out. A retry under its number is safe."""


async def ask(call: Callable[[], Awaitable[T]], until_s: float) -> T:
    """Call, and retry after temporary errors until `until_s`. Raises the last error."""
    try:
        return await call()
    except AGAIN as error:
        return await ask_again(call, error, until_s)


async def ask_again(call: Callable[[], Awaitable[T]], error: Exception, until_s: float) -> T:
    """Retry after a temporary error until `until_s`. Raises the last error."""
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
    """Requests under one name, one at a time. `number` is that of the latest request."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0

    def next(self) -> Request:
        """Return a new request, which acknowledges all earlier ones."""
        self.number += 1
        return Request(self.name, self.number, self.number - 1)


class SessionPool:
    """The sessions of one process and queue.

    Args:
        new_name: Returns a name that is unique in the life of the cluster.
        most: Maximum number of sessions.
    """

    def __init__(self, new_name: Callable[[], str], most: int) -> None:
        self._new_name = new_name
        # the latest used one is used next, so the queue forgets idle ones
        self._free: list[RequestSession] = []
        self._left = most  # sessions that may still be created
        self._waiting: deque[asyncio.Future[RequestSession]] = deque()

    async def take(self) -> RequestSession:
        """Take a session, and wait while all are in use. Return it with `give`."""
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
        """Pass a session on to the caller that has waited longest, or keep it for the next one."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(session)
                return
        self._free.append(session)


class OpenSessions:
    """The running requests of one process in one queue."""

    def __init__(self, new_name: Callable[[], str]) -> None:
        self.routes = Routes()
        self.changes = SessionPool(new_name, OPEN_MAX)
        self.polls = SessionPool(new_name, POLLS_OPEN_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that may outlive its caller."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_known: WeakKeyDictionary[Opener, dict[tuple[str, str], OpenSessions]] = WeakKeyDictionary()


def names_of(opener: Opener) -> Callable[[], str]:
    """The opener's function for names, without a reference to the opener.

    A value that references its own key would keep a `WeakKeyDictionary` entry for ever.
    """
    method = WeakMethod(opener.new_name)

    def new_name() -> str:
        found = method()
        assert found is not None, "the caller keeps the opener"
        return found()

    return new_name


def sessions_of(opener: Opener, part: str, queue: str) -> OpenSessions:
    """The sessions of this process; all handles of a queue share them."""
    known = _known.setdefault(opener, {})
    found = known.pop((part, queue), None) or OpenSessions(names_of(opener))
    known[part, queue] = found  # the latest used queue is the last one
    if len(known) > QUEUES_KEPT_MAX:
        del known[next(iter(known))]
    return found
