"""A program outside the cluster: references and streams through a gateway.

Owns: the list of gateways, choosing and replacing them. Invariants: calls to one grain go through
one gateway while that is connected, so they keep their order; a call whose gateway is lost after
it was sent ends with SiloUnavailable, one that was not sent yet goes through another gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from .calls import ask, new_request, take_answer
from .catalog import GrainTable
from .connection import Peer
from .env import Env
from .errors import ConfigError, MillstreamError, NotInCluster, SiloUnavailable
from .failures import describe
from .gateway import GatewayTarget
from .grain import Contract, Openable
from .host import Host
from .message import Call, Failure
from .options import RuntimeOptions
from .ring import hash_of
from .search import Place, Searches
from .system_target import TargetTable
from .transport import Address, TcpTransport, Transport
from .turns import finish, settle

__all__ = ["Client", "ClientHost", "connect"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
GATEWAYS_EVERY_S = 10.0

log = logging.getLogger("millstream.client")


class ClientRouter:
    """Sends every call to a gateway."""

    def __init__(self, host: ClientHost) -> None:
        self._host = host
        self._searches = Searches(host, self._locate, self.lost)

    def find(self, table: GrainTable, key: str, /) -> Place | None:
        if self._searches.has(table.name, key):
            return None
        return self._host.gateway_for(table.name, key)

    def stand(self, table: GrainTable, key: str, pause_s: float = 0.0, /) -> asyncio.Future[Place]:
        return self._searches.stand(table, key, pause_s)

    async def _locate(self, table: GrainTable, key: str) -> Place:
        place = self._host.gateway_for(table.name, key)
        if place is None:
            raise SiloUnavailable(f"no gateway answers: {', '.join(self._host.gateways)}")
        return place

    def moved(self, table: GrainTable, key: str, peer: Peer, silo: str, /) -> None:
        """The gateway looks the grain up anew."""

    def lost(self, table: GrainTable, key: str, /) -> None:
        """The gateway could not be reached; the next try takes another."""

    def learn(self, kind: str, key: str, silo: str, /) -> None:
        """Clients keep no places."""

    def resend(self, call: Call, /) -> None:
        """Clients serve no calls."""


class ClientHost(Host):
    """The inside of a client."""

    def __init__(self, gateways: Sequence[str], **host: Any) -> None:
        super().__init__(**host)
        self.gateways = list(gateways)
        self._leaving: set[str] = set()
        self.router = ClientRouter(self)

    def gateway_for(self, *name: str) -> Peer | None:
        """The connection that carries calls to a name: the first of a rotated list that works."""
        usable = self.gateways
        if self._leaving:
            usable = [g for g in usable if g not in self._leaving] or usable
        if len(usable) > 1:
            start = hash_of("/".join(name)) % len(usable)
            usable = usable[start:] + usable[:start]
        for gateway in usable:
            try:
                return self.peers.get(gateway)
            except SiloUnavailable:
                continue
        return None

    def peer_leaves(self, peer: Peer) -> None:
        """The gateway stops: use the others for new calls."""
        for gateway in [g for g in self.gateways if peer.name.startswith(f"{g}@")]:
            self._leaving.add(gateway)

    def peer_lost(self, name: str) -> None:
        """A gateway is gone for the moment."""
        log.info("gateway %s: connection lost", name)

    def serve(self, peer: Peer, call: Call) -> None:
        """Nothing can be called on a client."""
        error = NotInCluster(f"{self.address} is a client and serves no calls")
        peer.refuse(call.id, Failure(call.id, msgspec.Raw(describe(error, call.kind))))

    async def ask_gateway(
        self, name: str, target: str, instance: str, spec: Any, args: tuple[Any, ...]
    ) -> Any:
        """Call a system target of the gateway that serves `name`."""
        peer = await self._ready_gateway(name)
        request = new_request(self, spec, None, False, begins_chain=True)
        table: Any = TargetTable(target)
        failed: BaseException | None = None
        result = None
        try:
            body = spec.arguments.encode(args)
            answer = await ask(self, peer, table, instance, body, request, 0)
            result = take_answer(self, spec, answer)
        except BaseException as error:
            failed = settle(self, request, error)
        else:
            finish(self, request)
        if failed is not None:
            try:
                raise failed
            finally:
                failed = request = None  # type: ignore[assignment]
        return result

    async def _ready_gateway(self, name: str) -> Peer:
        """A connected gateway; one that refuses is passed over. Raises SiloUnavailable."""
        refused = "none is known"
        for _ in range(len(self.gateways) + 1):
            peer = self.gateway_for(name)
            if peer is None:
                break
            try:
                if not peer.is_ready:
                    await peer.ready()
                return peer
            except SiloUnavailable as error:
                refused = str(error)
        gateways = ", ".join(self.gateways)
        raise SiloUnavailable(f"no gateway answers ({gateways}): {refused}")

    async def refresh_gateways(self) -> None:
        """Ask a gateway for the current list; what it does not name is forgotten."""
        spec: Any = GatewayTarget.gateways.__millstream_spec__  # type: ignore[attr-defined]
        found = await self.ask_gateway("", "$gateway", "", spec, ())
        if found:
            self.gateways = list(found)
            self._leaving &= set(found)


class Client:
    """A connection to a cluster; made by `connect`."""

    def __init__(
        self,
        gateways: Sequence[str],
        *,
        cluster: str = "dev",
        options: RuntimeOptions | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not gateways:
            raise ConfigError("connect() needs at least one gateway, as host:port")
        for gateway in gateways:
            try:
                Address.parse(gateway)
            except ValueError as error:
                raise ConfigError(f"connect(): {error}") from None
        self._gateways = list(gateways)
        self._cluster = cluster
        self._options = options or RuntimeOptions()
        self._env = env or Env()
        self._transport = transport or TcpTransport()
        self._host: ClientHost | None = None
        self._refresh: asyncio.Task[None] | None = None

    @property
    def host(self) -> ClientHost:
        """The inside, for streams and tools. Raises NotInCluster before it is connected."""
        if self._host is None:
            raise NotInCluster("this client is not connected: use `async with connect(...)`")
        return self._host

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain."""
        return self.host.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream."""
        return self.host.stream(namespace, key)

    async def __aenter__(self) -> Client:
        self._host = ClientHost(
            self._gateways,
            cluster=self._cluster,
            address=f"client-{self._env.new_id():x}",
            grains=(),
            options=self._options,
            env=self._env,
            transport=self._transport,
        )
        self._host.is_running = True
        try:
            await self._connect()
        except BaseException:
            await self.aclose()
            raise
        self._refresh = self._host.loop.create_task(self._refresh_forever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _connect(self) -> None:
        """Learn the gateways from the first that answers. Raises SiloUnavailable, ConfigError."""
        failures: list[str] = []
        for gateway in self._gateways:
            self.host.gateways = [gateway]
            try:
                await self.host.refresh_gateways()
            except SiloUnavailable as error:
                failures.append(str(error))
            else:
                return
        self.host.gateways = list(self._gateways)
        foreign = self.host.peers.foreign
        if all(gateway in foreign for gateway in self._gateways):
            found = ", ".join(
                f"{gateway} is in cluster {foreign[gateway]!r}" for gateway in foreign
            )
            raise ConfigError(f"{found}, not {self._cluster!r}: mend connect(cluster=...)")
        raise SiloUnavailable("; ".join(failures))

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(GATEWAYS_EVERY_S)
            try:
                await self.host.refresh_gateways()
            except MillstreamError as error:
                log.info("the list of gateways could not be refreshed: %s", error)

    async def aclose(self) -> None:
        """Close the connections; pending calls end with SiloUnavailable."""
        if self._refresh is not None:
            self._refresh.cancel()
        if self._host is not None:
            await self._host.close_calls()
            await asyncio.sleep(0)  # closing links call back on the loop once more
            await asyncio.sleep(0)


def connect(*gateways: str, cluster: str = "dev", options: RuntimeOptions | None = None) -> Client:
    """A client of a cluster: `async with connect("127.0.0.1:7700") as client`.

    Args:
        gateways: one or more `host:port` of silos; the others are learnt.
        cluster: the cluster's name; if all gateways are of other clusters, `async with` raises
            ConfigError.
    """
    return Client(gateways, cluster=cluster, options=options)
