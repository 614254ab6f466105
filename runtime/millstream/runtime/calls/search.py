"""The search for a grain's location, shared by all calls that wait for it.

`Searches` owns one search for each grain whose location is unknown or cannot be reached, and the
calls that wait for it. `router` and `client` know the locations.

Invariants:

- There is at most one search per grain at a time.
- Waiting calls continue in the order of their arrival. Later calls queue behind them.
- No call gets a destination that is known to be useless.
- A search fails after `redirects_max` tries, for all waiting calls. While the grain's silo is
  stopping, the search continues as long as a call waits.
- Woken calls run one loop iteration later. A search therefore exists until an iteration without new
  calls, and direct turns of the grain wait until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.errors import MillstreamError, Overloaded, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import SiloLeaving

from .locator import Destination

__all__ = ["Searches"]

LEAVING_LOOK_S = 0.05
Waiter = asyncio.Future[Destination]


class Search:
    """The calls that wait for one grain's location, and the result of the search."""

    __slots__ = ("found", "held_bytes", "kind", "pause_s", "version", "waiters")

    def __init__(self, kind: GrainKind) -> None:
        self.kind = kind
        self.waiters: list[Waiter] = []
        self.found: Destination | Exception | None = None
        self.pause_s = 0.0
        self.version = 1  # the highest that a waiting call wants
        self.held_bytes = 0

    def wait(self, waiter: Waiter, pause_s: float) -> None:
        """Add a waiting call. Another search for it begins after the longest pause."""
        self.pause_s = max(self.pause_s, pause_s)
        self.waiters.append(waiter)

    @property
    def is_wanted(self) -> bool:
        """True if a call still waits."""
        return not all(waiter.done() for waiter in self.waiters)

    @property
    def is_stale(self) -> bool:
        """True if the found destination has ended, closed or is leaving.

        A failed search is stale too: its error is true only for the calls that waited then.
        """
        if isinstance(self.found, Activation):
            return self.found.is_gone
        if isinstance(self.found, Peer):
            return self.found.is_closed or self.found.is_leaving
        return True


class Searches:
    """The searches of one process.

    Args:
        locate: makes one try to find a grain; raises SiloUnavailable if another try may succeed.
        lost: called with a grain whose silo could not be reached.

    `under_way` contains a key for each grain that is being searched. Fast paths read it directly.
    """

    def __init__(
        self,
        turns: Turns,
        tasks: Tasks,
        locate: Callable[[GrainKind, str], Awaitable[Destination]],
        lost: Callable[[GrainKind, str], None],
    ) -> None:
        self._turns = turns
        self._tasks = tasks
        self._locate = locate
        self._lost = lost
        self._searches: dict[tuple[str, str], Search] = {}
        self.under_way: Mapping[tuple[str, str], object] = self._searches

    def has_waiting(self, kind: str, key: str) -> bool:
        """True if calls wait for this grain's location. Later calls must not overtake them."""
        return bool(self._searches) and (kind, key) in self._searches

    def is_wanted(self, kind: str, key: str) -> bool:
        """True if a call still waits for this grain's location."""
        search = self._searches.get((kind, key))
        return search is not None and search.is_wanted

    def version_of(self, kind: str, key: str) -> int:
        """Return the highest version of its type that a call for this grain wants."""
        search = self._searches.get((kind, key))
        return 1 if search is None else search.version

    def wait(
        self,
        kind: GrainKind,
        key: str,
        pause_s: float = 0.0,
        size_bytes: int = 0,
        version: int = 1,
    ) -> Waiter:
        """Return a future for a destination that accepts calls at once.

        The waiting call holds `size_bytes` meanwhile. A search that begins with this call begins
        after `pause_s`, because callers that sleep on their own would wake in any order.

        Callbacks and awaiting tasks run in the order of waiting. Raises Overloaded. The future
        raises NotHosted, or SiloUnavailable if every try failed.
        """
        search = self._searches.get((kind.name, key))
        waiting, held_bytes = (0, 0) if search is None else (len(search.waiters), search.held_bytes)
        what, limit = f"{kind.name}/{key} is not located yet", self._turns.options.waiting_calls_max
        if waiting >= limit:
            raise Overloaded(what, "waiting_calls_max", limit)
        self._turns.waiting_bytes.take(what, size_bytes, held_bytes)
        if search is None:
            search = self._searches[kind.name, key] = Search(kind)
            self._tasks.start(self._run(search, key, pause_s))
        waiter: Waiter = self._turns.loop.create_future()
        if size_bytes:
            search.held_bytes += size_bytes
            waiter.add_done_callback(partial(self._give_back, search, size_bytes))
        search.wait(waiter, pause_s)
        search.version = max(search.version, version)
        return waiter

    def _give_back(self, search: Search, size_bytes: int, _: Waiter) -> None:
        """Stop counting the bytes of a call that continues or gave up."""
        search.held_bytes -= size_bytes
        self._turns.waiting_bytes.give_back(size_bytes)

    async def _run(self, search: Search, key: str, pause_s: float) -> None:
        try:
            if pause_s:
                await asyncio.sleep(pause_s)
            search.pause_s = 0.0
            search.found = await self._find(search, key)
        except MillstreamError as error:
            search.found = error
        except BaseException:
            search.found = SiloUnavailable(
                "this process stopped looking for the grain", may_have_run=False
            )
            raise
        finally:
            if isinstance(search.found, Activation):
                search.found.hold(True)  # direct turns must not overtake the waiting calls
            self._wake(search, key)

    async def _find(self, search: Search, key: str) -> Destination:
        options, kind = self._turns.options, search.kind
        attempt, pause_s = 0, 0.0
        while True:
            if pause_s:
                await asyncio.sleep(pause_s)
            try:
                destination = await self._locate(kind, key)
                if not isinstance(destination, Activation) and not destination.writer.is_ready:
                    await destination.writer.ready()
                return destination
            except SiloLeaving:
                self._lost(kind, key)
                if not search.is_wanted:
                    raise
                pause_s = LEAVING_LOOK_S  # not a try: the silo will end
            except SiloUnavailable:
                self._lost(kind, key)
                attempt += 1
                if attempt == options.redirects_max:
                    raise
                pause_s = options.retry_first_s * 2 ** (attempt - 1)

    def _wake(self, search: Search, key: str) -> None:
        """Let the waiting calls continue. Later calls continue after them."""
        waiters, search.waiters = search.waiters, []
        for waiter in waiters:
            if not waiter.done():
                self._tell(waiter, search)
        if waiters:
            self._turns.loop.call_soon(self._go_on, search, key)  # runs after the woken calls
            return
        if self._searches.get((search.kind.name, key)) is search:
            del self._searches[search.kind.name, key]
        if isinstance(search.found, Activation):
            search.found.hold(False)

    def _go_on(self, search: Search, key: str) -> None:
        """Wake the later calls, or search again if the result is stale."""
        if not (search.waiters and search.is_stale):
            self._wake(search, key)
            return
        if isinstance(search.found, Activation):
            search.found.hold(False)
        search.found = None
        self._tasks.start(self._run(search, key, search.pause_s))

    def _tell(self, waiter: Waiter, search: Search) -> None:
        if isinstance(search.found, Exception):
            known, name = self._turns.known_errors, search.kind.name
            waiter.set_exception(isolate_error(search.found, known, name))
        else:
            assert search.found is not None
            waiter.set_result(search.found)
