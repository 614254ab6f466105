"""The search for the client of an observer, from any silo.

`ClientSearches` finds the connection of a client that is attached here, or the connection to its
gateway. It is also the `Locator` of calls that other silos pass to this gateway. `clients` knows
the clients of this silo, `directory` the rows of all, and `router` asks here for calls to
observers.

Invariants:

- A call waits here while its client is cut off. It goes on when the client attaches again, here or
  elsewhere, and fails when the lease runs out or the client closes.
- The waiting calls of one client hold at most `observer_bytes_max` bytes, or one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.relay import ClientMoved
from millstream.runtime.calls.search import Searches
from millstream.runtime.definition.names import client_of
from millstream.runtime.errors import ClientUnavailable, Overloaded, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.text import show_text
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .client_leases import Losses
from .clients import LOOK, AttachedClients
from .directory.directory import GrainDirectory
from .directory.partition import CLIENT_KIND
from .table import Status, TableView

__all__ = ["ClientSearches"]


class ClientSearches:
    """Finds the clients of observers (`ClientLocator`)."""

    def __init__(
        self,
        address: str,
        turns: Turns,
        tasks: Tasks,
        clients: AttachedClients,
        directory: GrainDirectory,
        peers: Peers,
        wall_s: Callable[[], float],
    ) -> None:
        self._address = address
        self._now = turns.loop.time
        self._options = turns.options
        self._clients = clients
        self._directory = directory
        self._peers = peers
        self._wall_s = wall_s
        self._losses = Losses(turns.options.client_lease_s)
        self._held_bytes: dict[str, int] = {}  # of the calls that wait for a client
        self._searches = Searches(turns, tasks, self._locate, self.on_lost)
        self.looked_for = self._searches.under_way
        self.has_waiting = self._searches.has_waiting
        self.knows = clients.knows
        self.disown = clients.disown

    def follow(self, view: TableView) -> None:
        """Take a newer view of the membership."""
        live = {row.silo for row in view.rows if row.status is not Status.DEAD}
        gone = [row for row in view.rows if row.status is Status.DEAD]
        dead = {row.silo: max(row.started_s, row.alive_s) for row in gone}
        self._losses.follow(live, dead, self._now(), self._wall_s())

    # -- from anywhere

    def find_anywhere(self, client: str) -> Destination | None:
        """Return the connection to a client, or to its gateway, if it is known without asking.

        Raises SiloUnavailable for a gateway that refused a connection a moment ago.
        """
        if self._clients.knows(client):
            return self._clients.connection(client)
        silo = self._directory.locations.get(CLIENT_KIND, client)
        return None if silo is None or silo == self._address else self._peers.get(silo)

    async def locate(self, key: str, is_wanted: Callable[[], bool]) -> Peer:
        """Find the client of an observer: its connection here, or the connection to its gateway.

        A client that is not found may be on its way to another gateway. The search then goes on,
        for at most `client_lease_s`, and as long as a call waits (`is_wanted`). Raises
        ClientUnavailable, SiloUnavailable.
        """
        client, attempt = client_of(key), 0
        late_s = self._now() + self._options.client_lease_s
        while True:
            try:
                peer = await self._clients.wait_here(client) or await self._at_gateway(client)
                if peer is not None and not peer.writer.is_ready:
                    await peer.writer.ready()
                failed: SiloUnavailable | None = None
            except SiloUnavailable as error:  # for example, its gateway has just crashed
                peer, failed = None, error
                self._directory.locations.forget(CLIENT_KIND, client)
            if peer is not None:
                return peer
            now = self._now()
            if failed is None and now >= self._losses.until_s:
                raise self._make_gone_error(client)
            if now >= late_s or not is_wanted():
                raise failed or self._make_gone_error(client)
            attempt += 1
            await asyncio.sleep(min(LOOK.whole_s(attempt), max(late_s - now, 0.0)))

    async def _at_gateway(self, client: str) -> Peer | None:
        """Return the connection to the gateway of a client, or None if it has no row."""
        locations = self._directory.locations
        silo = locations.get(CLIENT_KIND, client)
        if silo is None or silo == self._address:
            silo = await self._directory.lookup(CLIENT_KIND, client)
        if silo is None or silo == self._address:
            return None
        locations.learn(CLIENT_KIND, client, silo)
        return self._peers.get(silo)

    def _make_gone_error(self, client: str) -> ClientUnavailable:
        lease_s = self._options.client_lease_s
        return ClientUnavailable(
            f"{show_text(client)} is gone: no gateway has a client of this name; it was closed, or "
            f"did not renew its lease within {lease_s:g} s (client_lease_s)",
            client=client,
        )

    # -- for calls that other silos pass to this gateway (`Locator`)

    def find(self, kind: GrainKind, key: str, version: int = 1, /) -> Destination | None:
        """Return the connection to the client of an observer, or None if calls must wait."""
        if self.looked_for and (kind.name, key) in self.looked_for:
            return None
        return self._clients.connection(client_of(key))

    def wait(
        self,
        kind: GrainKind,
        key: str,
        pause_s: float = 0.0,
        size_bytes: int = 0,
        version: int = 1,
        /,
    ) -> asyncio.Future[Destination]:
        """Wait for the client of an observer (see `Searches.wait`)."""
        return self.wait_in(self._searches, kind, key, pause_s, size_bytes)

    def wait_in(
        self, searches: Searches, kind: GrainKind, key: str, pause_s: float, size_bytes: int
    ) -> asyncio.Future[Destination]:
        """Wait for the client of an observer in a search, and count the bytes of the call.

        Raises Overloaded above `observer_bytes_max`, for all calls that wait for the client here.
        """
        client = client_of(key)
        held, limit = self._held_bytes.get(client, 0), self._options.observer_bytes_max
        if held and held + size_bytes > limit:
            text = f"{show_text(client)}: {held} bytes of calls wait, no room for {size_bytes} more"
            raise Overloaded(text, "observer_bytes_max", limit)
        waiter = searches.wait(kind, key, pause_s, size_bytes)
        if size_bytes:
            self._held_bytes[client] = held + size_bytes
            waiter.add_done_callback(partial(self._give_back, client, size_bytes))
        return waiter

    def _give_back(self, client: str, size_bytes: int, _: asyncio.Future[Destination]) -> None:
        left = self._held_bytes.pop(client) - size_bytes
        if left:
            self._held_bytes[client] = left

    async def _locate(self, kind: GrainKind, key: str) -> Destination:
        peer = await self._clients.wait_here(client_of(key))
        if peer is None:
            raise ClientMoved(f"{client_of(key)} is not attached to {self._address}")
        return peer

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """Do nothing: the caller looks the client up again."""

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """Do nothing: a lost connection is known already."""
