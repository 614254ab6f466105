"""The destinations of a silo's calls.

`SiloRouter` owns the order of the lookup: this silo, remembered locations, the directory,
placement. `search` waits for a location, and `caller` and `relay` send calls. Calls to a grain keep
their order while its location is being searched. For an observer, `client_search` finds
its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.search import Searches
from millstream.runtime.definition.names import client_of
from millstream.runtime.definition.placement import Placement
from millstream.runtime.errors import NotHosted, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .client_search import ClientSearches
from .directory.directory import GrainDirectory
from .directory.partition import CLIENT_KIND
from .gateways import Loads
from .member import Member
from .placement import choose_silo, placement_in
from .table import Status

__all__ = ["SiloRouter"]


class SiloRouter:
    """The `Locator` of a silo.

    Args:
        roll: returns an index below its argument. It is the only source of chance in placement.
    """

    def __init__(
        self,
        address: str,
        turns: Turns,
        tasks: Tasks,
        member: Member,
        directory: GrainDirectory,
        catalog: Catalog,
        peers: Peers,
        loads: Loads,
        clients: ClientSearches,
        roll: Callable[[int], int],
    ) -> None:
        self._address = address
        self._turns = turns
        self._member = member
        self._directory = directory
        self._catalog = catalog
        self._peers = peers
        self._loads = loads
        self._clients = clients
        self._roll = roll
        self._searches = Searches(turns, tasks, self._locate, self.on_lost)
        self.looked_for = self._searches.under_way
        self.has_waiting = self._searches.has_waiting
        """True if calls wait for this grain's location. Later calls must not overtake them."""

    # -- finding (`Locator`)

    def find(self, kind: GrainKind, key: str, /) -> Destination | None:
        """Return the grain's destination if it is known without asking and no call waits for it."""
        if self.looked_for and (kind.name, key) in self.looked_for:
            return None
        if kind.is_observer:
            return self._clients.find_anywhere(client_of(key))
        activation = self._catalog.find(kind.name, key)
        if activation is not None:
            return activation
        if kind.hosted is not None and self._directory.is_alone:
            return self._catalog.obtain(kind, key)
        silo = self._directory.locations.get(kind.name, key)
        if silo is None or silo == self._address:
            return None
        return self._peers.get(silo)

    def silo_of(self, kind: str, key: str) -> str:
        """Return the silo that has the grain, as far as it is known without asking, or ""."""
        if self._catalog.find(kind, key) is not None:
            return self._address
        return self._directory.locations.get(kind, key) or ""

    def wait(
        self, kind: GrainKind, key: str, pause_s: float = 0.0, size_bytes: int = 0, /
    ) -> asyncio.Future[Destination]:
        """Wait for the grain's location (see `Searches.wait`)."""
        if kind.is_observer:
            return self._clients.wait_in(self._searches, kind, key, pause_s, size_bytes)
        return self._searches.wait(kind, key, pause_s, size_bytes)

    async def _locate(self, kind: GrainKind, key: str) -> Destination:
        if kind.is_observer:
            return await self._clients.locate(
                key, partial(self._searches.is_wanted, kind.name, key)
            )
        activation = self._catalog.find(kind.name, key)
        if activation is not None:
            return activation
        silo = self._directory.locations.get(kind.name, key)
        if silo is None or silo == self._address:
            silo = await self._directory.lookup(kind.name, key) or self._choose(kind, key)
        if silo == self._address:
            return self._catalog.obtain(kind, key)
        self._directory.locations.learn(kind.name, key, silo)
        return self._peers.get(silo)

    def _choose(self, kind: GrainKind, key: str) -> str:
        candidates = self.silos_hosting(kind.name)
        if not candidates:
            if self._turns.ended:
                text = f"{self._address} stopped while it looked for {kind.name}/{key}"
                raise SiloUnavailable(text, may_have_run=False)
            self.check_hosted(kind.name)
            text = f"{kind.name}/{key}: a silo that hosts it has just become active: try again"
            raise SiloUnavailable(text, may_have_run=False)
        grain, loads = f"{kind.name}/{key}", self._loads.known
        placement = self._placement_of(kind)
        return choose_silo(placement, candidates, self._address, grain, loads, self._roll)

    def _placement_of(self, kind: GrainKind) -> Placement:
        """Return the placement strategy of a type.

        It comes from the type's definition here, or from a silo that hosts the type.
        """
        if kind.hosted is not None:
            return kind.hosted.options.placement
        return placement_in(self._member.view, kind.name)

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

    # -- moves

    def find_others(self, kind: GrainKind) -> list[str]:
        """Return the other active silos that host a grain type, sorted."""
        return [silo for silo in self.silos_hosting(kind.name) if silo != self._address]

    def choose_among(self, kind: GrainKind, key: str, silos: Sequence[str]) -> str:
        """Choose one of some silos by the placement of the type."""
        grain, loads, placement = f"{kind.name}/{key}", self._loads.known, self._placement_of(kind)
        return choose_silo(placement, silos, self._address, grain, loads, self._roll)

    # -- the silos that host a type

    def silos_hosting(self, name: str) -> list[str]:
        """Return the active silos that host a grain type, sorted."""
        rows = {row.silo: row for row in self._member.view.rows}
        return [silo for silo in self._member.active() if name in rows[silo].grain_types]

    def is_settling(self) -> bool:
        """Return True if this silo or another one is about to become active.

        Something that no silo has now may then be available soon.
        """
        view = self._member.view
        return view.row(self._address) is None or bool(view.with_status(Status.JOINING))

    def check_hosted(self, name: str) -> None:
        """Raise NotHosted if no silo hosts a grain type.

        Raises SiloUnavailable instead if silos that host the type are starting or stopping, for
        example during a restart.
        """
        found: dict[Status, set[str]] = {status: set() for status in Status}
        for row in self._member.view.rows:
            found[row.status].update(row.grain_types)
        hosted = found[Status.ACTIVE]
        if name in hosted:
            return
        is_starting = self._member.view.row(self._address) is None
        if is_starting or name in found[Status.JOINING] | found[Status.STOPPING]:
            raise SiloUnavailable(
                f"no active silo hosts grain type {name!r} at the moment, because silos of the "
                "cluster are starting or stopping: try again",
                may_have_run=False,
            )
        raise NotHosted(
            f"no active silo hosts grain type {name!r}; the cluster hosts "
            f"{', '.join(sorted(hosted)) or 'none'}. Try again while silos are being restarted"
        )
