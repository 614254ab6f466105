"""The destinations of a silo's calls.

`SiloRouter` owns the order of the lookup: this silo, remembered locations, the directory, placement
(`placer`). Stateless workers need no lookup: their calls stay here, or go to a random silo.
`search` waits for a location, and `caller` and `relay` send calls. Calls to a grain keep their
order while its location is being searched. For an observer, `client_search` finds its client.
"""

from __future__ import annotations

import asyncio
from functools import partial

from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.search import Searches
from millstream.runtime.definition.names import client_of
from millstream.runtime.errors import SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .client_search import ClientSearches
from .directory.directory import GrainDirectory
from .directory.partition import CLIENT_KIND
from .member import Member
from .placer import Placer
from .table import Status

__all__ = ["SiloRouter"]


class SiloRouter:
    """The `Locator` of a silo."""

    def __init__(
        self,
        address: str,
        turns: Turns,
        tasks: Tasks,
        member: Member,
        directory: GrainDirectory,
        catalog: Catalog,
        peers: Peers,
        placer: Placer,
        clients: ClientSearches,
    ) -> None:
        self._address = address
        self._turns = turns
        self._member = member
        self._directory = directory
        self._catalog = catalog
        self._peers = peers
        self._placer = placer
        self._clients = clients
        self._searches = Searches(turns, tasks, self._locate, self.on_lost)
        self.looked_for = self._searches.under_way
        self.has_waiting = self._searches.has_waiting
        """True if calls wait for this grain's location. Later calls must not overtake them."""

    # -- finding (`Locator`)

    def find(self, kind: GrainKind, key: str, version: int = 1, /) -> Destination | None:
        """Return the grain's destination if it is known without asking and no call waits for it."""
        if self.looked_for and (kind.name, key) in self.looked_for:
            return None
        if kind.is_observer:
            return self._clients.find_anywhere(client_of(key))
        if version > kind.version:
            return self._find_newer(kind, key, version)
        activation = self._catalog.find(kind.name, key)
        if activation is not None:
            return activation
        if kind.hosted is not None and self._directory.is_alone and kind.may_be_anywhere:
            return self._catalog.obtain(kind, key)
        silo = self._directory.locations.get(kind.name, key)
        if silo is None:
            return self._find_worker(kind, key, version)
        if silo == self._address:
            return None
        return self._peers.get(silo)

    def _find_newer(self, kind: GrainKind, key: str, version: int) -> Destination | None:
        """Return the silo for a call that wants a later version than this silo hosts, if it is
        known.

        An activation of this silo has to leave first, after a search.
        """
        if kind.workers_max:
            return self._find_worker(kind, key, version)
        if self._catalog.find(kind.name, key) is not None:
            return None
        silo = self._directory.locations.get(kind.name, key)
        return None if silo is None or silo == self._address else self._peers.get(silo)

    def _find_worker(self, kind: GrainKind, key: str, version: int) -> Destination | None:
        """Return a new worker here, or a silo for the call, if the type has stateless workers.

        No location of a worker is remembered, so calls of silos that do not host the type spread
        over those that do.
        """
        silo = self._placer.find_worker_silo(kind, version)
        if silo == self._address:
            return self._catalog.obtain(kind, key)
        return self._peers.get(silo) if silo else None

    def silo_of(self, kind: str, key: str) -> str:
        """Return the silo that has the grain, as far as it is known without asking, or ""."""
        if self._catalog.find(kind, key) is not None:
            return self._address
        return self._directory.locations.get(kind, key) or ""

    def wait(
        self,
        kind: GrainKind,
        key: str,
        pause_s: float = 0.0,
        size_bytes: int = 0,
        version: int = 1,
        /,
    ) -> asyncio.Future[Destination]:
        """Wait for the grain's location (see `Searches.wait`). Raises VersionNotHosted."""
        if version > 1:
            self._placer.check_version(kind, key, version)
        if kind.is_observer:
            return self._clients.wait_in(self._searches, kind, key, pause_s, size_bytes)
        found = self._find_here(kind, key, version) if kind.workers_max and not pause_s else None
        if found is not None:
            future: asyncio.Future[Destination] = self._turns.loop.create_future()
            future.set_result(found)
            return future
        return self._searches.wait(kind, key, pause_s, size_bytes, version)

    def _find_here(self, kind: GrainKind, key: str, version: int) -> Activation | None:
        """Return a worker of this silo. Calls do not share a search for it, because each call
        chooses a worker of its own."""
        try:
            found = self.find(kind, key, version)
        except SiloUnavailable:
            return None
        return found if isinstance(found, Activation) else None

    async def _locate(self, kind: GrainKind, key: str) -> Destination:
        if kind.is_observer:
            return await self._clients.locate(
                key, partial(self._searches.is_wanted, kind.name, key)
            )
        version = self._searches.version_of(kind.name, key)
        is_newer = version > kind.version
        here = None if is_newer and kind.workers_max else self._catalog.find(kind.name, key)
        found = here or self._find_worker(kind, key, version)
        if found is not None:
            return found
        silo = self._directory.locations.get(kind.name, key)
        if silo is None or silo == self._address:
            silo = await self._directory.lookup(kind.name, key)
            silo = silo or await self._placer.choose(kind, key, version)
        if silo == self._address:
            activation = self._catalog.obtain(kind, key)
            if is_newer:  # the entry in the directory is old: the activation replaces it and leaves
                self._catalog.outgrow(activation, version)
            return activation
        self._directory.locations.learn(kind.name, key, silo)
        return self._peers.get(silo)

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """Forget that the grain is at `peer`, and remember its new silo if one is given."""
        self.on_lost(kind, key)
        if silo and not kind.is_observer:
            self.learn(kind.name, key, silo)

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """Forget the location of a grain whose silo cannot be reached."""
        row = (CLIENT_KIND, client_of(key)) if kind.is_observer else (kind.name, key)
        self._directory.locations.forget(*row)

    def learn(self, kind: str, key: str, silo: str) -> None:
        """Remember that the grain is at `silo`."""
        if silo != self._address and self._member.is_live(silo):
            self._directory.locations.learn(kind, key, silo)

    def is_settling(self) -> bool:
        """Return True if this silo or another one is about to become active.

        Something that no silo has now may then be available soon.
        """
        view = self._member.view
        return view.row(self._address) is None or bool(view.with_status(Status.JOINING))
