"""The clients of this process, on an event loop in its own thread, because Spark's tasks block.

This module owns the thread, its loop, and one `Client` for each cluster and list of gateways.
`writer` owns the rows. Invariants: a client is used only on its loop. A forked process has its own
loop. A client that could not connect is not kept. At most `CLIENTS_MAX` clients are kept, and a
client in use is not closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

from millstream.runtime import Client, RuntimeOptions, SiloUnavailable, Tls, connect
from millstream.runtime.extending import Backoff
from millstream.runtime.run import loop_factory

__all__ = ["Background", "background", "end_background"]

CLIENTS_MAX = 8
CALL_TIMEOUT_S = 30.0
RETRY = Backoff(0.05, 2.0, 2.0)
T = TypeVar("T")
Route = tuple[tuple[str, ...], str]


class Where(Protocol):
    """The cluster, and how long to wait for it: options of a write or a read."""

    @property
    def gateways(self) -> tuple[str, ...]: ...
    @property
    def cluster(self) -> str: ...
    @property
    def patience_s(self) -> float: ...


class Kept:
    """A client, and the number of its users."""

    __slots__ = ("client", "users")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


class Background:
    """A thread that runs an event loop, and the clients on the loop."""

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
        """Run a coroutine on the loop, and return its result; an interrupted wait cancels it.

        Raises its errors, CancelledError if this object is closed meanwhile, and RuntimeError if it
        was closed before.
        """
        future = self.start(coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coro: Coroutine[Any, Any, T], *, is_last: bool = False) -> Future[T]:
        """Run a coroutine on the loop. Raises RuntimeError after close or the last coroutine."""
        with self._submitting:  # no coroutine follows the last one, because nobody would end it
            if self._is_closed:
                coro.close()
                raise RuntimeError("the clients of this process are closed")
            self._is_closed = is_last
            return asyncio.run_coroutine_threadsafe(coro, self.loop)

    @asynccontextmanager
    async def client(self, options: Where) -> AsyncIterator[Client]:
        """Yield the client of the gateways; wait until a gateway answers.

        Raises SiloUnavailable after `patience_s`, ConfigError (another cluster or version).
        """
        route = options.gateways, options.cluster
        async with self._opening:
            kept = self._kept.pop(route, None)
            if kept is None:
                kept = Kept(await _connect(options))
            self._kept[route] = kept  # the client that was used last is closed last
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
        """The number of clients that are kept."""
        return len(self._kept)

    def close(self) -> None:
        """Cancel the tasks of the loop, close the clients, and end the thread."""
        self.start(self._close_all(), is_last=True).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()  # otherwise a thread would wait for it for ever
        await asyncio.gather(*others, return_exceptions=True)
        while self._kept:
            await self._kept.popitem()[1].client.aclose()


def find_tls() -> Tls | None:
    """Return the files for TLS of this machine, in the directory of `MILLSTREAM_TLS`."""
    directory = os.environ.get("MILLSTREAM_TLS", "")
    return Tls.in_directory(directory) if directory else None


async def _connect(options: Where) -> Client:
    """Return a client that has reached a gateway."""
    call_timeout_s = min(CALL_TIMEOUT_S, options.patience_s)
    runtime = RuntimeOptions(call_timeout_s=call_timeout_s)
    loop = asyncio.get_running_loop()
    end_s, failures = loop.time() + options.patience_s, 0
    while True:
        client = connect(
            *options.gateways, cluster=options.cluster, options=runtime, tls=find_tls()
        )
        try:
            return await client.__aenter__()
        except SiloUnavailable as error:
            failures += 1
            left_s = end_s - loop.time()
            if left_s <= 0:
                error.add_note(f"retried for patience_s {options.patience_s:g}")
                raise
            await asyncio.sleep(min(RETRY.whole_s(failures), left_s))


_lock = Lock()
_of_process: dict[int, Background] = {}


def background() -> Background:
    """Return the object of this process; the first call creates it."""
    with _lock:
        found = _of_process.get(os.getpid())
        if found is None:  # also in a process that was forked from one with its own
            found = _of_process[os.getpid()] = Background()
        return found


def end_background() -> None:
    """Close the clients of this process, for tests and long programs; the next use starts again."""
    with _lock:
        found = _of_process.pop(os.getpid(), None)
    if found is not None:
        found.close()
