"""The gateways of a client: its connections, and the gateway of each grain.

This module owns `Gateways`, the `Locator` of a client. The module `gateway_list` knows which
gateways may be used, `list_updates` asks for the list, and `gateway_calls` calls system targets.
Calls to one grain go through one gateway while it is connected and the list does not assign them to
another one, so they keep their order. A call that was sent ends with SiloUnavailable if its gateway
is lost. A call that was not sent yet goes through another gateway.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.remote import Remote
from millstream.runtime.calls.search import Searches
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.errors import SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import GatewayView
from millstream.runtime.wire.peers import Peers

from .gateway_list import GatewayList
from .list_updates import ListUpdates

__all__ = ["Gateways"]

EVICTED_SPEC: Any = GatewayTarget.list_evicted.__millstream_spec__  # type: ignore[attr-defined]

log = logging.getLogger("millstream.client")


class Gateways:
    """The gateways of one client (`Locator`, `Welcome`)."""

    def __init__(
        self,
        gateway_list: GatewayList,
        updates: ListUpdates,
        turns: Turns,
        tasks: Tasks,
        peers: Peers,
        remote: Remote,
    ) -> None:
        self._list = gateway_list
        self._updates = updates
        self._peers = peers
        self._remote = remote
        self._searches = Searches(turns, tasks, self._locate, self.on_lost)
        self.looked_for = self._searches.under_way
        self.has_waiting = self._searches.has_waiting
        """Whether calls wait for a connection to this grain's gateway."""

    @property
    def known(self) -> list[str]:
        """The gateways in the latest list of the cluster, without those that leave."""
        return self._list.known

    def order(self, name: str = "") -> list[str]:
        """Return all gateways in the order in which they are tried for a name."""
        return self._list.order(name)

    # -- `Locator`

    def find(self, kind: GrainKind, key: str, version: int = 1, /) -> Destination | None:
        """Return the connection that carries the grain's calls: the first one that works, or may
        work. None: there is none, or calls wait for the grain's location.
        """
        if self.looked_for and (kind.name, key) in self.looked_for:
            return None
        if self._list.only:
            try:
                return self._peers.get(self._list.only)
            except SiloUnavailable:
                pass
        for gateway in self._list.order(f"{kind.name}/{key}"):
            try:
                return self._peers.get(gateway)
            except SiloUnavailable:
                continue
        return None

    def wait(
        self,
        kind: GrainKind,
        key: str,
        pause_s: float = 0.0,
        size_bytes: int = 0,
        version: int = 1,
        /,
    ) -> asyncio.Future[Destination]:
        """Wait for a gateway (see `Searches.wait`)."""
        return self._searches.wait(kind, key, pause_s, size_bytes)

    async def _locate(self, kind: GrainKind, key: str) -> Destination:
        return await self.ready(kind.name, key)

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """Do nothing: the gateway looks the grain up again."""

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """Do nothing: the next attempt tries all gateways."""

    def find_only(self) -> Peer | None:
        """Return the connection to the only gateway; None if there are several, or it is
        not ready.
        """
        if not self._list.only:
            return None
        try:
            peer = self._peers.get(self._list.only)
        except SiloUnavailable:
            return None
        return peer if peer.writer.is_ready else None

    async def ready(self, *name: str) -> Peer:
        """Return a connected gateway, without those that refuse. Raises SiloUnavailable."""
        if (only := self.find_only()) is not None:  # the first gateway of every name
            return only
        refused: list[str] = []
        for gateway in self._list.order("/".join(name)):
            try:
                peer = self._peers.get(gateway)
                if not peer.writer.is_ready:
                    await peer.writer.ready()
                return peer
            except SiloUnavailable as error:
                refused.append(str(error))
        raise SiloUnavailable(f"no gateway answers: {'; '.join(refused)}", may_have_run=False)

    # -- called by connections (`Welcome`)

    def on_greeted(self, peer: Peer, /) -> None:
        """Register the whole name of a gateway that was known by its address."""
        if self._list.is_evicted(peer.name):
            peer.close("the silo was evicted from the cluster, and has not noticed yet")
        else:
            self._peers.know_as(peer.name, peer)

    def leaving(self, peer: Peer, /) -> None:
        """Send new calls to other gateways, and ask the leaving one for the present list of
        gateways before its connection closes.
        """
        self._list.leave(peer.name)
        self._updates.ask_leaving(peer)

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        """Take a list of gateways from a gateway, requested or not."""
        self._list.learn(view, peer.table_id)

    # -- called by the watch for evictions

    def oldest_calls(self) -> dict[str, int]:
        """Return, for each connected gateway, the id of the oldest unanswered call.

        The id is 0 if all calls are answered.
        """
        oldest: dict[str, int] = {}
        for peer in self._peers.list_known():  # of two connections to one gateway, the one in use
            if "@" in peer.name:
                oldest[peer.name] = peer.writer.oldest_call or oldest.get(peer.name, 0)
        return oldest

    def gateways_to_ask(self) -> list[str]:
        """Return the gateways in the latest list; the other known addresses if it is empty."""
        return self._list.known or self._list.order("")

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        """Ask a gateway which of the silos are dead in the membership table. Raises
        MillstreamError."""
        peer = self._peers.get(gateway)
        evicted: list[str] = await self._remote.call(
            peer, GatewayTarget.target_name, "", EVICTED_SPEC, (silos,)
        )
        return evicted

    def drop_evicted(self, silo: str, /) -> None:
        """Never use a gateway again. Calls that wait for it end with SiloUnavailable."""
        log.warning("gateway %s was evicted from the cluster: its outstanding calls fail", silo)
        self._list.evict(silo)
        for peer in self._peers.list_known():
            if peer.name == silo:
                peer.close("evicted from the cluster")
