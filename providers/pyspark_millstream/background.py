"""The clients of this process, on an event loop in a thread of its own: Spark's tasks block.

Owns: the thread, its loop, and one `Client` per cluster and gateways. Not: what is sent (`writer`).
Invariants: a client is used on its loop only; a process that was forked has a loop of its own; a
client that could not connect is not kept; at most `CLIENTS_MAX` are kept, and one that is in use is
not closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

from millstream.runtime import Client, RuntimeOptions, SiloUnavailable, connect
from millstream.runtime.extending import Backoff
from millstream.runtime.run import loop_factory

__all__ = ["Background", "background", "end_background"]

CLIENTS_MAX = 8
CALL_TIMEOUT_S = 30.0
RETRY = Backoff(0.05, 2.0, 2.0)
T = TypeVar("T")
Route = tuple[tuple[str, ...], str]


class Where(Protocol):
    """Which cluster, and how long it is waited for: options of a write or a read."""

    @property
    def gateways(self) -> tuple[str, ...]: ...
    @property
    def cluster(self) -> str: ...
    @property
    def patience_s(self) -> float: ...


class Kept:
    """A client, and how many use it."""

    __slots__ = ("client", "users")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


class Background:
    """A thread that runs an event loop, and the clients on it."""

    def __init__(self) -> None:
        factory = loop_factory() or asyncio.new_event_loop
        self.loop = factory()
        self._kept: dict[Route, Kept] = {}
        self._opening = asyncio.Lock()
        self._submitting = Lock()
        self._is_closed = False
        self._thread = Thread(target=self.loop.run_forever, name="millstream", daemon=True)
        self._thread.start()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run it there, and wait for its result. Cancels it if the wait is interrupted.

        Raises what it raises; CancelledError: this was closed meanwhile; RuntimeError: before.
        """
        future = self.start(coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coro: Coroutine[Any, Any, T], *, is_last: bool = False) -> Future[T]:
        """Run it there. Raises RuntimeError: this was closed before, or the last was started."""
        with self._submitting:  # nothing comes behind the last, where nobody would end it
            if self._is_closed:
                coro.close()
                raise RuntimeError("the clients of this process are closed")
            self._is_closed = is_last
            return asyncio.run_coroutine_threadsafe(coro, self.loop)

    @asynccontextmanager
    async def client(self, options: Where) -> AsyncIterator[Client]:
        """The client of the gateways that are named; waits for one that answers.

        Raises SiloUnavailable after `patience_s`, ConfigError (another cluster or version).
        """
        route = options.gateways, options.cluster
        async with self._opening:
            kept = self._kept.pop(route, None)
            if kept is None:
                kept = Kept(await _connect(options))
            self._kept[route] = kept  # the last in use is the last to go
            kept.users += 1
        try:
            yield kept.client
        finally:
            kept.users -= 1
            await self._close_some()

    async def _close_some(self) -> None:
        unused = [route for route, kept in self._kept.items() if not kept.users]
        for route in unused[: max(0, len(self._kept) - CLIENTS_MAX)]:
            await self._kept.pop(route).client.aclose()

    @property
    def clients(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def close(self) -> None:
        """End what runs here, close the clients, and end the thread."""
        self.start(self._close_all(), is_last=True).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()  # a thread waits for it, and would wait for ever
        await asyncio.gather(*others, return_exceptions=True)
        while self._kept:
            await self._kept.popitem()[1].client.aclose()


async def _connect(options: Where) -> Client:
    """A client that has reached a gateway."""
    call_timeout_s = min(CALL_TIMEOUT_S, options.patience_s)
    runtime = RuntimeOptions(call_timeout_s=call_timeout_s)
    loop = asyncio.get_running_loop()
    end_s, failures = loop.time() + options.patience_s, 0
    while True:
        client = connect(*options.gateways, cluster=options.cluster, options=runtime)
        try:
            return await client.__aenter__()
        except SiloUnavailable as error:
            failures += 1
            left_s = end_s - loop.time()
            if left_s <= 0:
                error.add_note(f"tried again for patience_s {options.patience_s:g}")
                raise
            await asyncio.sleep(min(RETRY.whole_s(failures), left_s))


_lock = Lock()
_of_process: dict[int, Background] = {}


def background() -> Background:
    """That of this process, started when it is first asked for."""
    with _lock:
        found = _of_process.get(os.getpid())
        if found is None:  # also where this process was forked from one that had its own
            found = _of_process[os.getpid()] = Background()
        return found


def end_background() -> None:
    """Close what this process has, for tests and programs that go on; it starts anew when asked."""
    with _lock:
        found = _of_process.pop(os.getpid(), None)
    if found is not None:
        found.close()
