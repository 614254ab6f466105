"""Finding the place of a grain once for all the calls that wait for it.

Owns: one search per grain whose place is not known or cannot be reached, and the line of calls
behind it. Not: where a grain is (`router`, `client`). Invariants: one search per grain at a time;
who stands in line goes on in the order of standing, and a later call stands behind them; nobody is
given a place of which it was known that it is of no use any more; a search ends after
`redirects_max` tries, for everyone in the line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.errors import MillstreamError, Overloaded, SiloUnavailable
from millstream.runtime.turns.activation import Activation
from millstream.runtime.wire.connection import Peer

if TYPE_CHECKING:
    from millstream.runtime.turns.catalog import GrainTable

    from .engine import Host

__all__ = ["Place", "Searches"]

Place = Activation | Peer
Waiter = asyncio.Future[Place]


class Search:
    """The calls that wait for one grain's place, and what was found."""

    __slots__ = ("found", "pause_s", "table", "waiters")

    def __init__(self, table: GrainTable) -> None:
        self.table = table
        self.waiters: list[Waiter] = []
        self.found: Place | Exception | None = None
        self.pause_s = 0.0

    def stand(self, waiter: Waiter, pause_s: float) -> None:
        """Take a place in line; if it is looked for again, then after the longest pause."""
        self.pause_s = max(self.pause_s, pause_s)
        self.waiters.append(waiter)

    @property
    def is_stale(self) -> bool:
        """What was found has ended, or closed, or leaves."""
        if isinstance(self.found, Activation):
            return self.found.is_gone
        return isinstance(self.found, Peer) and (self.found.is_closed or self.found.is_leaving)


class Searches:
    """The searches of one host.

    Args:
        locate: one try to find a grain; raises SiloUnavailable if another try may succeed.
        lost: told of a grain whose place could not be reached.
    """

    def __init__(
        self,
        host: Host,
        locate: Callable[[GrainTable, str], Awaitable[Place]],
        lost: Callable[[GrainTable, str], None],
    ) -> None:
        self._host = host
        self._locate = locate
        self._lost = lost
        self._searches: dict[tuple[str, str], Search] = {}

    def has(self, kind: str, key: str) -> bool:
        """Do calls wait for this grain's place? Later ones must not overtake them."""
        return bool(self._searches) and (kind, key) in self._searches

    def stand(self, table: GrainTable, key: str, pause_s: float = 0.0) -> Waiter:
        """Take a place in line now; the future gives a place that takes calls at once.

        A search that begins with this call begins after `pause_s`: callers that each slept would
        wake in any order.

        Its callbacks, and who awaits it, run in the order of the line. Raises Overloaded; the
        future Rejected, or SiloUnavailable when every try failed.
        """
        search = self._searches.get((table.name, key))
        if search is None:
            search = self._searches[table.name, key] = Search(table)
            self._host.spawn(self._run(search, key, pause_s))
        limit = self._host.options.waiting_calls_max
        if len(search.waiters) >= limit:
            raise Overloaded(f"{table.name}/{key} is not found yet", "waiting_calls_max", limit)
        waiter: Waiter = self._host.loop.create_future()
        search.stand(waiter, pause_s)
        return waiter

    async def _run(self, search: Search, key: str, pause_s: float) -> None:
        try:
            if pause_s:
                await asyncio.sleep(pause_s)
            search.pause_s = 0.0
            search.found = await self._find(search.table, key)
        except MillstreamError as error:
            search.found = error
        except BaseException:
            search.found = SiloUnavailable(f"{self._host.address} stopped looking for it")
            raise
        finally:
            if isinstance(search.found, Activation):
                search.found.hold(True)  # direct turns would overtake those who stand in line
            self._wake(search, key)

    async def _find(self, table: GrainTable, key: str) -> Place:
        options = self._host.options
        unreached: SiloUnavailable | None = None
        for attempt in range(options.redirects_max):
            if attempt:
                await asyncio.sleep(options.retry_first_s * 2 ** (attempt - 1))
            try:
                place = await self._locate(table, key)
                if not isinstance(place, Activation) and not place.is_ready:
                    await place.ready()
                return place
            except SiloUnavailable as error:
                unreached = error
                self._lost(table, key)
        assert unreached is not None
        raise unreached

    def _wake(self, search: Search, key: str) -> None:
        """Let the line go on; who came meanwhile stands behind it, and goes on after it."""
        waiters, search.waiters = search.waiters, []
        for waiter in waiters:
            if not waiter.done():
                self._tell(waiter, search)
        if waiters:
            self._host.loop.call_soon(self._go_on, search, key)  # runs after what was just woken
            return
        if self._searches.get((search.table.name, key)) is search:
            del self._searches[search.table.name, key]
        if isinstance(search.found, Activation):
            search.found.hold(False)

    def _go_on(self, search: Search, key: str) -> None:
        """Wake who came meanwhile, unless that leads nowhere: then look for the place again."""
        if not (search.waiters and search.is_stale):
            self._wake(search, key)
            return
        if isinstance(search.found, Activation):
            search.found.hold(False)
        search.found = None
        self._host.spawn(self._run(search, key, search.pause_s))

    def _tell(self, waiter: Waiter, search: Search) -> None:
        if isinstance(search.found, Exception):
            known, place = self._host.known_errors, search.table.name
            waiter.set_exception(isolate_error(search.found, known, place))
        else:
            assert search.found is not None
            waiter.set_result(search.found)
