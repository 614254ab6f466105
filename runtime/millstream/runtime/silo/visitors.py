"""The connections that other processes opened to this silo, and how they end.

This module owns these connections, the clients among them, and the goodbyes that were sent and
received. The module `peers` owns connections to others, `arrivals` takes the calls, and
`gateway_news` keeps clients informed. A peer that leaves in order keeps its connection until its
last call is answered. A silo can always connect, however many clients and strangers there are,
although it is recognised as a silo only after its handshake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from millstream.runtime.cluster.table import Status, TableView
from millstream.runtime.repeated import Repeated
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.framing import FrameError
from millstream.runtime.wire.message import GatewayView, Goodbye
from millstream.runtime.wire.transport import Link

from .gateway_news import GatewayNews

__all__ = ["Visitors"]

STOPPING = "stopping"
REFUSED_EVERY_S = 10.0
"""The least time between two log lines about refused connections, in seconds."""
NEWCOMERS_MAX = 32
"""Connections that may start a handshake above `connections_max`, because one of them may be a
silo.
"""

log = logging.getLogger("millstream.silo")


class Visitors:
    """The other ends of a silo's connections (`Welcome`).

    Args:
        lost: Called with each connection that others opened, once it is closed.

    Attributes:
        inbound: The connections that others opened.
        clients: The clients among them, by id.
        newcomers: Those that have not finished their handshake, the oldest first.
    """

    def __init__(
        self,
        end: LocalEnd,
        outgoing: Callable[[], Iterable[Peer]],
        lost: Callable[[Peer], None],
    ) -> None:
        self._end = end
        self._outgoing = outgoing
        self._lost = lost
        self.inbound: dict[Peer, None] = {}
        self.clients: dict[str, Peer] = {}
        self.newcomers: dict[Peer, None] = {}
        self._silo_count = 0  # silos in `inbound`
        self._news = GatewayNews(end, self.clients)
        self._leaving: set[str] = set()  # silos that are stopping
        self._is_gateway_open = True
        self._is_stopping = False
        self._refused = Repeated(log, end.loop.time, REFUSED_EVERY_S)

    def accept(self, link: Link) -> None:
        """Accept a connection. If there are too many, the oldest newcomer is closed."""
        is_full = len(self.inbound) - self._silo_count >= self._end.options.connections_max
        if is_full and len(self.newcomers) >= NEWCOMERS_MAX:
            self._refuse(next(iter(self.newcomers)))
        peer = Peer(self._end, "", self._on_lost)
        self.inbound[peer] = self.newcomers[peer] = None
        peer.attach(link)

    def _refuse(self, peer: Peer) -> None:
        """Close a connection because there are too many, and log it."""
        limit = self._end.options.connections_max
        self._refused.note(f"refused a connection of {peer.where}: connections_max is {limit}")
        peer.close("too many connections (connections_max)")

    def on_greeted(self, peer: Peer, /) -> None:
        """Register a client if there is room, and send a goodbye if this silo takes no calls of the
        peer.
        """
        if peer in self.newcomers:
            del self.newcomers[peer]
            self._silo_count += peer.is_silo
            clients = len(self.inbound) - len(self.newcomers) - self._silo_count
            if clients > self._end.options.connections_max and not peer.is_silo:
                self._refuse(peer)
                return
        is_open = not self._is_stopping and (peer.is_silo or self._is_gateway_open)
        if not is_open and peer in self.inbound:
            peer.writer.send(Goodbye(STOPPING))
        if not peer.is_silo:
            self.clients[peer.name] = peer

    def _on_lost(self, peer: Peer) -> None:
        is_new = peer in self.newcomers
        self.newcomers.pop(peer, None)
        if peer in self.inbound:
            del self.inbound[peer]
            self._silo_count -= peer.is_silo and not is_new
        if self.clients.get(peer.name) is peer:
            del self.clients[peer.name]
        self._lost(peer)

    def leaving(self, peer: Peer, /) -> None:
        """Record that a silo is stopping. Its row says so, too, but may be read later."""
        if peer.is_silo:
            self._leaving.add(peer.name)

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        """Refuse a list of gateways: a silo uses its membership table only. Raises FrameError."""
        raise FrameError(
            "the peer sent a list of gateways to a silo; only a silo may send it, to a client"
        )

    def has_left(self, silo: str) -> bool:
        """Return whether a silo is stopping, so that it takes no new calls."""
        return silo in self._leaving

    def follow(self, view: TableView, live: Collection[str]) -> None:
        """Close the connections of silos that are not alive in a newer view, and inform the
        clients.
        """
        self._news.follow(view)
        self._leaving.update(view.with_status(Status.STOPPING))
        self._leaving &= {row.silo for row in view.rows}
        for peer in [*self._outgoing(), *self.inbound]:
            if peer.is_leaving or peer.name in self._leaving:
                continue  # it leaves in order: its link closes after its last answer
            if peer.is_silo and "@" in peer.name and peer.name not in live:
                peer.close("evicted from the cluster")

    # -- when this silo leaves

    def close_gateway(self) -> None:
        """Tell clients to send new calls through other gateways."""
        self._is_gateway_open = False
        for peer in list(self.clients.values()):
            peer.writer.send(Goodbye(STOPPING))

    def say_goodbye(self) -> None:
        """Tell silos to send no new calls."""
        self._is_stopping = True
        for peer in list(self.inbound):
            if peer.is_silo:
                peer.writer.send(Goodbye(STOPPING))

    @property
    def is_gateway_open(self) -> bool:
        """Whether clients may send new calls; False from the first step of a stop."""
        return self._is_gateway_open

    @property
    def is_serving(self) -> bool:
        """Whether a visitor waits for an answer."""
        return any(peer.is_serving for peer in self.inbound)

    def close(self) -> None:
        """Close the connections that others opened."""
        self._news.close()
        for peer in list(self.inbound):
            peer.close("the silo is stopping")
