"""The clients with observers that have this silo as their gateway.

`AttachedClients` owns their connections and their rows in the directory, and serves the `$client`
target. `client_leases` decides, `directory` keeps the rows, and `client_search` finds clients for
calls.

Invariants:

- A client is attached by its secret, so a client cannot attach under the name of another one.
- A row is registered before the client is told that it is attached, and again at each renewal.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from millstream.runtime.backoff import Backoff
from millstream.runtime.calls.system_target import SystemTarget
from millstream.runtime.definition.markers import open_to, timeout
from millstream.runtime.errors import (
    ClientUnavailable,
    NotAllowed,
    Rejected,
    SiloUnavailable,
)
from millstream.runtime.role import Role
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer

from .client_leases import SECRET_BYTES, Leases, name_client
from .directory.directory import GrainDirectory
from .directory.partition import CLIENT_KIND

__all__ = ["ATTACH_S", "AttachedClients", "ClientTarget"]

log = logging.getLogger("millstream.gateway")

ATTACH_S = 3.0
"""Seconds that a client waits for a gateway to attach it before it tries another one."""
LOOK = Backoff(first_s=0.05, factor=2.0, ceiling_s=1.0)
"""The pauses between two looks for a client that is cut off."""


class RowKind(NamedTuple):
    """The type of the rows of clients, in the form of a grain's kind."""

    name: str


class ClientRow:
    """The registration of one attached client, in the form of an activation's."""

    __slots__ = ("id", "is_gone", "key", "version")
    kind = RowKind(CLIENT_KIND)

    def __init__(self, client: str, number: int) -> None:
        self.key = client
        self.id = number
        self.version = 0
        self.is_gone = False


class ClientTarget(SystemTarget):
    """The `$client` target: a client with observers attaches here, and renews its lease."""

    target_name = CLIENT_KIND

    def __init__(self, clients: AttachedClients, peer: Peer | None = None) -> None:
        self._clients = clients
        self._peer = peer

    def bind(self, peer: Peer) -> ClientTarget:
        """Return the target of one connection."""
        return ClientTarget(self._clients, peer)

    def _client_peer(self) -> Peer:
        if self._peer is None or self._peer.is_silo:
            raise NotAllowed("only clients attach to a gateway, not silos")
        return self._peer

    @timeout(ATTACH_S)
    @open_to(Role.CLIENT)
    async def attach(self, secret: bytes, number: int) -> float:
        """Attach a client to this gateway, or renew its lease. Returns the lease in seconds.

        Args:
            secret: the secret of the client, `SECRET_BYTES` bytes. Its name follows from it.
            number: the number of the attachment, which the client counts up.

        Raises Rejected: the client has attached again since; Overloaded; SiloUnavailable.
        """
        return await self._clients.attach(self._client_peer(), secret, number)

    @timeout(ATTACH_S)
    @open_to(Role.CLIENT)
    async def detach(self, secret: bytes, number: int) -> None:
        """Note that a client closes. Later calls to its observers fail at once."""
        self._client_peer()
        self._clients.detach(secret, number)


class AttachedClients:
    """The clients that are attached to this silo (`Holder`)."""

    def __init__(
        self,
        address: str,
        turns: Turns,
        tasks: Tasks,
        directory: GrainDirectory,
    ) -> None:
        self._address = address
        self._turns = turns
        self._now = turns.loop.time
        self._options = turns.options
        self._tasks = tasks
        self._directory = directory
        self._leases = Leases(turns.options.client_lease_s, turns.options.observing_clients_max)
        self._rows: dict[str, ClientRow] = {}
        self._connected: dict[str, Peer] = {}
        self._names: dict[Peer, str] = {}
        self._watchers: dict[str, asyncio.Event] = {}  # searches for a client that is cut off
        self._disowned: set[str] = set()  # clients whose rows are being removed
        self._timer: asyncio.TimerHandle | None = None
        directory.add_holder(self)

    # -- the rows of the directory (`Holder`)

    def all(self) -> list[ClientRow]:
        """Return the rows of the attached clients."""
        return list(self._rows.values())

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """Forget a client that has attached to another gateway later."""
        row = self._rows.get(key)
        if kind == CLIENT_KIND and row is not None and row.id == activation_id:
            self._forget(key)

    # -- attaching

    async def attach(self, peer: Peer, secret: bytes, number: int) -> float:
        """Attach a client, or renew its lease (see `ClientTarget.attach`)."""
        client = self._check(peer, secret)
        self._leases.take(client, number, self._now())
        self._arm()
        row = self._rows.get(client)
        if row is None or row.id != number:
            row = self._rows[client] = ClientRow(client, number)
        winner = await self._directory.register(row)
        if winner is not None and self._rows.get(client) is row:
            self._forget(client)
        lease = self._leases.find(client)  # much may have happened meanwhile
        if self._rows.get(client) is not row or lease is None or lease.is_closed or peer.is_closed:
            raise Rejected(f"{client} has attached again or closed since its attachment {number}")
        self._connect(client, peer)
        return self._options.client_lease_s

    def _check(self, peer: Peer, secret: bytes) -> str:
        if len(secret) != SECRET_BYTES:
            raise Rejected(f"the secret of a client has {SECRET_BYTES} bytes, not {len(secret)}")
        client = name_client(secret)
        if peer.is_closed:
            raise Rejected(f"{client}: the connection has closed")
        if self._names.setdefault(peer, client) != client:
            raise Rejected(f"{peer.name} has attached another client on this connection")
        return client

    def _connect(self, client: str, peer: Peer) -> None:
        limit = self._options.observer_bytes_max
        peer.writer.limit_calls("observer_bytes_max", limit)
        self._connected[client] = peer
        self._wake(client)

    def detach(self, secret: bytes, number: int) -> None:
        """Let later calls to a client fail at once, because it closes."""
        client = name_client(secret)
        if self._leases.close(client, number, self._now()):
            self._connected.pop(client, None)
            self._wake(client)

    def lose(self, peer: Peer) -> None:
        """Let calls wait for the client of a connection that has closed."""
        client = self._names.pop(peer, None)
        if client is not None and self._connected.get(client) is peer:
            del self._connected[client]
            self._wake(client)

    def _forget(self, client: str) -> None:
        """Forget a client that is attached elsewhere. Waiting calls look for it again."""
        self._leases.drop(client)
        self._connected.pop(client, None)
        row = self._rows.pop(client, None)
        if row is not None:
            row.is_gone = True
        self._wake(client)

    def disown(self, client: str) -> None:
        """Remove the row of a client that is not attached here any more, if there is one.

        Called when a call has found such a row. The row is outdated because its removal failed.
        """
        if client not in self._disowned:
            self._disowned.add(client)
            self._tasks.start(self._disown(client))

    async def _disown(self, client: str) -> None:
        try:
            entry = await self._directory.find_entry(CLIENT_KIND, client)
            if entry is not None and entry.silo == self._address and not self.knows(client):
                row = ClientRow(client, entry.activation_id)
                row.version = entry.version
                await self._directory.unregister(row)
        except SiloUnavailable as error:
            log.info("the row of %s may be outdated: %s", client, error)
        finally:
            self._disowned.discard(client)

    def _arm(self) -> None:
        due_s = self._leases.next_due_s()
        if self._timer is None and due_s is not None:
            self._timer = self._tasks.call_at(due_s, self._expire)

    def _expire(self) -> None:
        """End the leases that were not renewed in time."""
        self._timer = None
        for lease in self._leases.expire(self._now()):
            row = self._rows.get(lease.client)
            self._forget(lease.client)
            if row is not None:
                self._tasks.start(self._directory.unregister(row))
            if not lease.is_closed:
                text = "%s did not renew its lease within %g s (client_lease_s)"
                log.info(text, lease.client, self._options.client_lease_s)
        self._arm()

    # -- finding

    def knows(self, client: str) -> bool:
        """Return True if a client is attached here, connected or not."""
        return self._leases.find(client) is not None

    def connection(self, client: str) -> Peer | None:
        """Return the connection to a client that is attached here, or None."""
        return self._connected.get(client)

    async def wait_here(self, client: str) -> Peer | None:
        """Wait until an attached client has a connection. Returns None if it is not attached here.

        Raises ClientUnavailable if it was closed.
        """
        attempt = 0
        while (lease := self._leases.find(client)) is not None:
            if lease.is_closed:
                raise ClientUnavailable(f"{client} was closed", client=client)
            peer = self._connected.get(client)
            if peer is not None:
                return peer
            attempt += 1
            await self._wait_change(client, LOOK.whole_s(attempt))
            if client not in self._connected and self.knows(client):
                silo = await self._directory.lookup(CLIENT_KIND, client)
                if silo is not None and silo != self._address:
                    self._forget(client)
        return None

    async def _wait_change(self, client: str, within_s: float) -> None:
        event = self._watchers.setdefault(client, asyncio.Event())
        try:
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError:
            pass

    def _wake(self, client: str) -> None:
        event = self._watchers.pop(client, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Stop watching leases."""
        if self._timer is not None:
            self._timer.cancel()
