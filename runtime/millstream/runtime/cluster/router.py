"""Where the calls of a silo go.

Owns: `SiloRouter`: the order of looking (here, remembered, directory, placement). Not: waiting for
a place (`search`), sending (`calls`, `relay`). Invariant: calls to a grain whose place is looked
for keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millstream.runtime.calls.callee import Served
from millstream.runtime.calls.search import Place, Searches
from millstream.runtime.errors import Rejected, SiloUnavailable
from millstream.runtime.turns.activation import Activation
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call

from .placement import choose_silo

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost
    from millstream.runtime.turns.catalog import GrainTable

__all__ = ["SiloRouter"]

log = logging.getLogger("millstream.router")


class SiloRouter:
    """Finds grains for this silo's callers."""

    def __init__(self, host: SiloHost) -> None:
        self._host = host
        self._searches = Searches(host, self._locate, self.lost)

    def find(self, table: GrainTable, key: str, /) -> Place | None:
        """Where the grain is, if that is known without asking and nobody waits for it."""
        if self._searches.has(table.name, key):
            return None
        activation = table.activations.get(key)
        if activation is not None:
            return activation
        host = self._host
        if host.directory.is_alone and table.hosted is not None:
            return host.catalog.obtain(table, key)
        silo = host.directory.locations.get(table.name, key)
        if silo is None or silo == host.address:
            return None
        return host.peers.get(silo)

    def stand(self, table: GrainTable, key: str, pause_s: float = 0.0, /) -> asyncio.Future[Place]:
        """Stand in line for the grain's place (see `Searches.stand`)."""
        return self._searches.stand(table, key, pause_s)

    def has_line(self, kind: str, key: str) -> bool:
        """Do calls wait for this grain's place? Later ones must not overtake them."""
        return self._searches.has(kind, key)

    async def _locate(self, table: GrainTable, key: str) -> Place:
        host = self._host
        activation = table.activations.get(key)
        if activation is not None:
            return activation
        silo = host.directory.locations.get(table.name, key)
        if silo is None or silo == host.address:
            silo = await host.directory.lookup(table.name, key) or self._place(table, key)
        if silo == host.address:
            return host.catalog.obtain(table, key)
        host.directory.locations.learn(table.name, key, silo)
        return host.peers.get(silo)

    def _place(self, table: GrainTable, key: str) -> str:
        host = self._host
        candidates = host.silos_hosting(table.name)
        if not candidates:
            if not host.is_running:
                raise SiloUnavailable(f"{host.address} stopped looking for {table.name}/{key}")
            raise Rejected(
                f"no active silo hosts grain type {table.name!r}; the cluster hosts "
                f"{', '.join(host.hosted_names()) or 'none'}"
            )
        placement = host.placement_of(table.name)
        grain = f"{table.name}/{key}"
        return choose_silo(
            placement, candidates, host.address, grain, host.loads.known, host.env.choice
        )

    def moved(self, table: GrainTable, key: str, peer: Peer, silo: str, /) -> None:
        """The grain is not at `peer`."""
        self._host.directory.locations.forget(table.name, key)
        if silo:
            self.learn(table.name, key, silo)

    def lost(self, table: GrainTable, key: str, /) -> None:
        """The grain's silo cannot be reached: look it up again next time."""
        self._host.directory.locations.forget(table.name, key)

    def learn(self, kind: str, key: str, silo: str, /) -> None:
        """The grain is at `silo`."""
        if silo != self._host.address and self._host.membership.is_live(silo):
            self._host.directory.locations.learn(kind, key, silo)

    def resend(self, call: Call, /) -> None:
        """Send a one-way call on, after the activation that had it ended."""
        self._host.spawn(self._resend(call))

    async def _resend(self, call: Call) -> None:
        call.hops += 1
        if call.hops > self._host.options.redirects_max:
            log.error(
                "one-way %s/%s.%s gave up after %d hops",
                call.kind,
                call.key,
                call.method,
                call.hops,
            )
            return
        table = self._host.tables[call.kind]
        place = await self.stand(table, call.key)
        if isinstance(place, Activation):
            spec = self._host.spec_of(table, call.method)
            Served(self._host, None, call, spec).submit(place)
        else:
            place.send_one_way(call)
