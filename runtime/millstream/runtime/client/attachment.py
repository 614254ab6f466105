"""The attachment of a client with observers to one gateway, which passes calls to it.

This module owns `Attachment`. It chooses the gateway, attaches there, renews the lease, and moves
to another gateway when the present one is lost, leaves or does not answer. `observers` serves the
calls that arrive, and `cluster/clients.py` is the other side.

Invariants:

- The number of the attachment rises with each change of gateway, and after a pause in which the
  lease may have run out.
- Nothing is sent before the first observer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from millstream.runtime.backoff import Backoff
from millstream.runtime.calls.remote import Remote
from millstream.runtime.cluster.client_leases import RENEWALS
from millstream.runtime.cluster.clients import ClientTarget
from millstream.runtime.errors import MillstreamError, NotHosted, Rejected, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.address import endpoint_of
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .gateways import Gateways

__all__ = ["Attachment"]

ATTACH_SPEC: Any = ClientTarget.attach.__millstream_spec__  # type: ignore[attr-defined]
DETACH_SPEC: Any = ClientTarget.detach.__millstream_spec__  # type: ignore[attr-defined]
LOOK_S = 0.2
"""Seconds between two looks whether the gateway is still there."""
DETACH_S = 1.0
"""Seconds that a closing client waits for its gateway to note that it closes."""
RETRY = Backoff(first_s=0.05, factor=2.0, ceiling_s=1.0)

log = logging.getLogger("millstream.client")


class Attachment:
    """The gateway by which the observers of a client are called.

    Args:
        secret: proves the name of the client.
    """

    def __init__(
        self,
        secret: bytes,
        gateways: Gateways,
        turns: Turns,
        tasks: Tasks,
        peers: Peers,
        remote: Remote,
    ) -> None:
        self._secret = secret
        self._gateways = gateways
        self._turns = turns
        self._tasks = tasks
        self._peers = peers
        self._remote = remote
        self._number = 0
        self._peer: Peer | None = None  # the gateway of the present attachment
        self._kept_until_s = 0.0  # the lease is certain until then
        self._failed: dict[str, MillstreamError] = {}  # by gateway, since the last success
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Wait until the client is attached.

        Raises SiloUnavailable if no gateway attaches it within `call_timeout_s`, and NotHosted if
        the gateways do not know observers.
        """
        if self._task is None:
            self._task = self._tasks.start(self._run())
        if self._peer is not None:
            return
        waiter: asyncio.Future[None] = self._turns.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._turns.options.call_timeout_s):
                await waiter
        except TimeoutError:
            why = "; ".join(str(error) for error in self._failed.values()) or "none answers"
            text = f"no gateway attaches this client, so grains cannot call its observers: {why}"
            raise SiloUnavailable(text, may_have_run=False) from None

    async def _run(self) -> None:
        """Stay attached, forever."""
        attempt = 0
        while True:
            peer = await self._choose()
            lease_s = None if peer is None else await self._attach(peer)
            if peer is not None and lease_s is not None:
                attempt = 0
                await self._stay(peer, lease_s / RENEWALS)
                continue
            attempt += 1
            await asyncio.sleep(RETRY.whole_s(attempt))

    # -- choosing

    async def _choose(self) -> Peer | None:
        """Return the present gateway if it is still good, or else the first one that is connected.

        A gateway that has failed since the last success comes last.
        """
        if self._peer is not None and self._is_good(self._peer):
            return self._peer
        order = self._gateways.order(ClientTarget.target_name)
        for name in sorted(order, key=lambda name: endpoint_of(name) in self._failed):
            try:
                peer = self._peers.get(name)
                if not peer.writer.is_ready:
                    await peer.writer.ready()
            except MillstreamError as error:
                self._failed[endpoint_of(name)] = error
                continue
            if not peer.is_leaving:
                return peer
        return None

    def _is_good(self, peer: Peer) -> bool:
        """Return True if a gateway is connected, stays, and has answered the last request."""
        if peer.is_closed or peer.is_leaving or endpoint_of(peer.name) in self._failed:
            return False
        known = self._gateways.known
        return not known or peer.name in known

    # -- attaching

    async def _attach(self, peer: Peer) -> float | None:
        """Attach to a gateway, or renew the lease there. Returns the lease, or None on failure."""
        now = self._turns.loop.time()
        if peer is not self._peer or now >= self._kept_until_s:
            self._number += 1
        try:
            lease_s: float = await self._call(peer, ATTACH_SPEC)
        except Rejected as error:  # the number was used, or is too low
            log.info("gateway %s did not attach this client: %s", peer.name, error)
            self._kept_until_s = 0.0
            return None
        except (MillstreamError, TypeError) as error:
            log.info("gateway %s did not attach this client: %s", peer.name, error)
            self._on_failed(peer, error)
            return None
        self._peer, self._kept_until_s = peer, now + lease_s
        self._failed.clear()
        self._tell(None)
        return lease_s

    def _call(self, peer: Peer, spec: Any) -> Any:
        args = (self._secret, self._number)
        return self._remote.call(peer, ClientTarget.target_name, "", spec, args)

    def _on_failed(self, peer: Peer, error: Exception) -> None:
        if isinstance(error, MillstreamError):
            self._failed[endpoint_of(peer.name)] = error
        names = {endpoint_of(name) for name in self._gateways.order("")}
        if all(isinstance(self._failed.get(name), NotHosted) for name in names):
            self._tell(
                NotHosted(
                    "the silos of this cluster do not know observers, because their version of "
                    "Millstream is older than that of this client: update the silos first"
                )
            )

    def _tell(self, error: Exception | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    async def _stay(self, peer: Peer, within_s: float) -> None:
        """Wait until the lease has to be renewed, or the gateway is lost."""
        until_s = self._turns.loop.time() + within_s
        while (left_s := until_s - self._turns.loop.time()) > 0 and self._is_good(peer):  # noqa: ASYNC110  many causes
            await asyncio.sleep(min(LOOK_S, left_s))

    async def aclose(self) -> None:
        """Tell the gateway that the client closes, so that later callers need not wait."""
        if self._task is None:
            return
        self._task.cancel()
        peer, self._peer = self._peer, None
        if peer is None or peer.is_closed:
            return
        try:
            async with asyncio.timeout(DETACH_S):
                await self._call(peer, DETACH_SPEC)
        except (MillstreamError, TimeoutError) as error:
            log.info("gateway %s may not know that this client closes: %s", peer.name, error)
