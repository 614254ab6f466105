"""Outgoing connections to other silos, by address.

`Peers` owns one `Peer` per silo and connects in the background.

Invariants:

- A peer exists as soon as it is requested, so messages to it keep their order.
- The connection to a silo that the membership view calls dead is dropped, and its outstanding calls
  fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.runtime.errors import SiloUnavailable
from millstream.runtime.tasks import Tasks

from .address import Address, endpoint_of
from .connection import LocalEnd, Peer
from .handshake import HandshakeError
from .transport import Transport

__all__ = ["Peers", "SiloLeaving"]

log = logging.getLogger("millstream.peers")


class SiloLeaving(SiloUnavailable):
    """The silo is stopping and takes no new calls. Its grains move when it has stopped."""


class Peers:
    """The outgoing connections of one silo or client.

    Args:
        has_left: returns True for a silo that is known to be stopping; no connection to it is
            opened.
        lost: called with each name whose connection has closed.

    Attributes:
        refusals: by address, the reason why this process and the process there can never talk. An
            operator has to correct the cause.
    """

    def __init__(
        self,
        end: LocalEnd,
        transport: Transport,
        tasks: Tasks,
        has_left: Callable[[str], bool],
        lost: Callable[[str], None],
    ) -> None:
        self._end = end
        self._transport = transport
        self._tasks = tasks
        self._has_left = has_left
        self._lost = lost
        self._peers: dict[str, Peer] = {}
        self._refused_at: dict[str, float] = {}
        self.refusals: dict[str, HandshakeError] = {}
        self._is_closed = False

    def get(self, silo: str, *, is_system: bool = False) -> Peer:
        """Return the connection to a silo, and open it if there is none.

        Raises SiloUnavailable at once if the address refused a connection less than
        `connect_retry_s` ago. Raises SiloLeaving for a silo that is stopping, unless `is_system` is
        True.
        """
        peer = self._peers.get(silo)
        if peer is not None and not peer.is_closed:
            if peer.is_leaving and not is_system:
                raise SiloLeaving(f"{silo} is stopping", may_have_run=False)
            return peer
        if self._is_closed:
            raise SiloUnavailable(f"{silo}: this process is stopping", may_have_run=False)
        if not is_system and self._has_left(silo):
            raise SiloLeaving(f"{silo} is stopping", may_have_run=False)
        refused_at = self._refused_at.get(silo)
        now = self._end.loop.time()
        if refused_at is not None and now - refused_at < self._end.options.connect_retry_s:
            text = f"{silo} refused a connection a moment ago"
            raise SiloUnavailable(text, may_have_run=False)
        self.refusals.pop(silo, None)
        peer = self._peers[silo] = Peer(self._end, silo, self._on_closed)
        self._tasks.start(self._open(silo, peer))
        return peer

    async def _open(self, silo: str, peer: Peer) -> None:
        try:
            link = await self._transport.connect(Address.parse(endpoint_of(silo)))
        except (SiloUnavailable, ValueError) as error:  # ValueError: the name is no address
            self._note_refusal(silo)
            peer.close(str(error))
            return
        self._refused_at.pop(silo, None)
        if peer.is_closed:
            link.abort()
            return
        peer.attach(link)

    def _note_refusal(self, silo: str) -> None:
        """Remember a refused connection, and forget outdated refusals."""
        now, kept_s = self._end.loop.time(), self._end.options.connect_retry_s
        refused = {name: at for name, at in self._refused_at.items() if now - at < kept_s}
        self._refused_at = {**refused, silo: now}

    def know_as(self, name: str, peer: Peer) -> None:
        """Make a connection available under one more name."""
        self._peers.setdefault(name, peer)

    def _on_closed(self, peer: Peer) -> None:
        for name in [name for name, found in self._peers.items() if found is peer]:
            del self._peers[name]
            if peer.refusal is not None:
                self.refusals[name] = peer.refusal
            self._lost(name)

    def drop(self, silo: str) -> None:
        """Close the connection to a silo that is dead. Its outstanding calls fail."""
        peer = self._peers.get(silo)
        if peer is not None:
            peer.close("evicted from the cluster")
        self._refused_at.pop(silo, None)

    def list_known(self) -> list[Peer]:
        """Return the open connections."""
        return list(self._peers.values())

    async def aclose(self) -> None:
        """Close every connection."""
        self._is_closed = True
        await self._tasks.aclose()
        for peer in list(self._peers.values()):
            peer.close("this process is stopping")
