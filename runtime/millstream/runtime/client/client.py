"""A program outside the cluster: references and streams through a gateway.

Owns: the connections to gateways, and asking them for the list of all. Not: which of them may be
used (`gateway_list`). Invariants: calls to one grain go through one gateway while that is
connected, so they keep their order; a call whose gateway is lost after it was sent ends with
SiloUnavailable, one that was not sent yet goes through another gateway; one question for the list
is under way at a time, beside what a gateway is asked that leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from millstream.runtime.calls.caller import ask, new_request, take_answer
from millstream.runtime.calls.engine import Host
from millstream.runtime.calls.search import Place, Searches
from millstream.runtime.calls.system_target import TargetTable
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.cluster.table import MemberInfo
from millstream.runtime.codec.failures import describe
from millstream.runtime.definition.grain import Contract, Openable
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, MillstreamError, NotInCluster, SiloUnavailable
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.turns.catalog import GrainTable
from millstream.runtime.turns.request import other_loop
from millstream.runtime.turns.run import finish, settle
from millstream.runtime.wire.address import Address
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure
from millstream.runtime.wire.transport import TcpTransport, Transport, links_closed

from .eviction_watch import EvictionWatch
from .gateway_list import GatewayList

__all__ = ["Client", "ClientHost", "connect"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
P = ParamSpec("P")
R = TypeVar("R")
GATEWAYS_EVERY_S = 10.0
LIST_SPEC: Any = GatewayTarget.gateways.__millstream_spec__  # type: ignore[attr-defined]
EVICTED_SPEC: Any = GatewayTarget.evicted.__millstream_spec__  # type: ignore[attr-defined]

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
        return await self._host.ready_gateway(table.name, key)

    def moved(self, table: GrainTable, key: str, peer: Peer, silo: str, /) -> None:
        """The gateway looks the grain up anew."""

    def lost(self, table: GrainTable, key: str, /) -> None:
        """The gateway could not be reached; the next try goes over all of them."""

    def learn(self, kind: str, key: str, silo: str, /) -> None:
        """Clients keep no places."""

    def resend(self, call: Call, /) -> None:
        """Clients serve no calls."""


class ClientHost(Host):
    """The inside of a client."""

    def __init__(self, given: Sequence[str], **host: Any) -> None:
        super().__init__(**host)
        self._list = GatewayList(given)
        self._list_wanted = asyncio.Event()
        self.router = ClientRouter(self)
        self.end.open(inbox=self, welcome=self)

    @property
    def gateways(self) -> list[str]:
        """The gateways that the cluster told, without those that leave."""
        return self._list.known

    @gateways.setter
    def gateways(self, found: Sequence[str]) -> None:
        self._list.learn(found)

    def gateway_for(self, *name: str) -> Peer | None:
        """The connection that carries calls to a name: the first that works, or may."""
        for gateway in self._list.order("/".join(name)):
            try:
                return self.peers.get(gateway)
            except SiloUnavailable:
                continue
        return None

    async def ready_gateway(self, *name: str) -> Peer:
        """A connected gateway; one that refuses is passed over. Raises SiloUnavailable."""
        refused: list[str] = []
        for gateway in self._list.order("/".join(name)):
            try:
                peer = self.peers.get(gateway)
                if not peer.is_ready:
                    await peer.ready()
                return peer
            except SiloUnavailable as error:
                refused.append(str(error))
        raise SiloUnavailable(f"no gateway answers: {'; '.join(refused)}")

    def greeted(self, peer: Peer, /) -> None:
        """A gateway that was known by its address has told its whole name."""
        if self._list.is_evicted(peer.name):
            peer.close("evicted from the cluster, and does not know it yet")
        else:
            self.peers.know_as(peer.name, peer)

    def leaving(self, peer: Peer, /) -> None:
        """The gateway stops: use others for new calls. It knows them best, and is connected."""
        self._list.leave(peer.name)
        try:
            LastQuestion(self).ask(peer)
        except MillstreamError as error:
            log.info("gateway %s leaves, and could not be asked for others: %s", peer.name, error)
            self.want_list()

    def check_loop(self) -> None:
        """Raise NotInCluster where another event loop runs than the client's."""
        running = asyncio._get_running_loop()
        if running is not None and running is not self.loop:
            raise NotInCluster(other_loop(f"client {self.address}"))

    def peer_lost(self, name: str) -> None:
        """A gateway is gone for the moment."""
        log.info("gateway %s: connection lost", name)
        self.want_list()

    @property
    def gateway(self) -> GatewayCalls:
        """What reaches system targets of the cluster."""
        return GatewayCalls(self)

    # -- asked by the watch for evictions

    def oldest_calls(self) -> dict[str, int]:
        """The id of the oldest outstanding call of each connected gateway; 0: none."""
        oldest: dict[str, int] = {}
        for peer in self.peers.known():  # of two to one gateway, the one that is asked
            if "@" in peer.name:
                oldest[peer.name] = peer.oldest_call or oldest.get(peer.name, 0)
        return oldest

    def gateways_to_ask(self) -> list[str]:
        """Those that the cluster told; the others when there are none."""
        return self._list.known or self._list.order("")

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        """Which of the silos are dead, as a gateway reads the table. Raises MillstreamError."""
        peer = self.peers.get(gateway)
        await peer.ready()
        evicted: list[str] = await self._ask(
            peer, GatewayTarget.target_name, "", EVICTED_SPEC, (silos,)
        )
        return evicted

    def drop_evicted(self, silo: str, /) -> None:
        """Never use a gateway again; what waits for it ends with SiloUnavailable."""
        log.warning("gateway %s was evicted from the cluster: calls that it had end", silo)
        self._list.evict(silo)
        for peer in self.peers.known():
            if peer.name == silo:
                peer.close("evicted from the cluster")

    def want_list(self) -> None:
        """The list of gateways may be out of date: ask for it soon."""
        self._list_wanted.set()

    def serve(self, peer: Peer, call: Call, /) -> None:
        """Nothing can be called on a client."""
        error = NotInCluster(f"{self.address} is a client and serves no calls")
        peer.refuse(call.id, Failure(call.id, msgspec.Raw(describe(error, call.kind))))

    async def ask_gateway(
        self, name: str, target: str, instance: str, spec: Any, args: tuple[Any, ...]
    ) -> Any:
        """Call a system target of the gateway that serves `name`.

        Raises what the method raises, CallTimeout, SiloUnavailable, NotInCluster (it was closed).
        """
        self.check_running()
        return await self._ask(await self.ready_gateway(name), target, instance, spec, args)

    async def _ask(
        self, peer: Peer, target: str, instance: str, spec: Any, args: tuple[Any, ...]
    ) -> Any:
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

    async def refresh_gateways(self) -> None:
        """Ask for the current list, one gateway after the other until one answers.

        What the answer does not name is forgotten. Raises SiloUnavailable.
        """
        failures: list[str] = []
        for gateway in self._list.order(""):
            try:
                peer = self.peers.get(gateway)
                await peer.ready()
                found = await self._ask(peer, GatewayTarget.target_name, "", LIST_SPEC, ())
            except MillstreamError as error:
                failures.append(str(error))
            else:
                self._list.learn(found)
                return
        raise SiloUnavailable("; ".join(failures))

    async def keep_gateways(self) -> None:
        """Ask for the list every 10 s, and when a gateway was lost; for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATEWAYS_EVERY_S):
                    await self._list_wanted.wait()
            await self._ask_some_times()
            self._list_wanted.clear()  # what was lost meanwhile was lost to the asking

    async def _ask_some_times(self) -> None:
        for attempt in range(self.options.redirects_max):
            if attempt:
                await asyncio.sleep(self.options.retry_first_s * 2 ** (attempt - 1))
            try:
                await self.refresh_gateways()
            except MillstreamError as error:
                log.info("the list of gateways could not be refreshed: %s", error)
            else:
                return


class GatewayCalls:
    """Calls to system targets through a client's gateways."""

    __slots__ = ("_host",)

    def __init__(self, host: ClientHost) -> None:
        self._host = host

    @property
    def frame_bytes_max(self) -> int:
        """The client's own limit of a frame."""
        return self._host.options.frame_bytes_max

    async def call(
        self,
        name: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a target of the gateway that serves `name`: calls of one name keep their order.

        Raises what the method raises, CallTimeout, SiloUnavailable, NotInCluster (it was closed).
        """
        assert not kwargs, "arguments of targets are given by position"
        spec = method.__millstream_spec__  # type: ignore[attr-defined]
        result: R = await self._host.ask_gateway(name, target, "", spec, args)
        return result


class LastQuestion:
    """Asks a gateway that leaves for the list (`AnswerReceiver`).

    Sent before its goodbye has been dealt with, so that the connection stays for the answer.
    """

    __slots__ = ("_host",)

    def __init__(self, host: ClientHost) -> None:
        self._host = host

    def ask(self, peer: Peer) -> None:
        """Send the question. Raises Overloaded, SiloUnavailable."""
        body = msgspec.Raw(LIST_SPEC.arguments.encode(()))
        ttl_s = self._host.options.call_timeout_s
        name, method = GatewayTarget.target_name, LIST_SPEC.wire_name
        peer.send_call(Call(0, name, "", method, body, ttl_s, "", [], 0, None), self)

    def reply(self, body: msgspec.Raw, /) -> None:
        try:
            self._host.gateways = take_answer(self._host, LIST_SPEC, body)
        except TypeError as error:
            log.warning("a gateway that leaves: %s", error)
            self._host.want_list()

    def failure(self, body: msgspec.Raw, /) -> None:
        self._host.want_list()

    def redirect(self, silo: str, /) -> None:
        self._host.want_list()

    def broken(self, error: Exception, /) -> None:
        self._host.want_list()


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
        self._gateways = checked_gateways(gateways)
        self._cluster = cluster
        self._options = options or RuntimeOptions()
        self._env = env or Env()
        self._transport = transport or TcpTransport()
        self._host: ClientHost | None = None

    @property
    def host(self) -> ClientHost:
        """The inside, for streams and tools. Raises NotInCluster before it is connected."""
        if self._host is None:
            raise NotInCluster("this client is not connected: use `async with connect(...)`")
        return self._host

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain. Raises NotInCluster: closed, or of another event loop."""
        host = self.host
        host.check_loop()
        return host.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream. Raises NotInCluster: closed, or of another event loop."""
        host = self.host
        host.check_loop()
        return host.stream(namespace, key)

    async def members(self) -> tuple[MemberInfo, ...]:
        """The silos that are in the cluster, as a gateway sees it, sorted by address.

        Raises SiloUnavailable when no gateway answers, CallTimeout, NotInCluster.
        """
        target = GatewayTarget.target_name
        return tuple(await self.host.gateway.call("", target, GatewayTarget.members))

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
        self._host.spawn(self._host.keep_gateways())
        self._host.spawn(EvictionWatch(self._host).run())
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
        try:
            await self.host.refresh_gateways()
        except SiloUnavailable as error:
            foreign = self.host.peers.foreign
            if not all(gateway in foreign for gateway in self._gateways):
                raise SiloUnavailable(
                    f"no gateway of connect() answers, of cluster {self._cluster!r}: {error}"
                ) from None
            found = ", ".join(
                f"{gateway} is in cluster {foreign[gateway]!r}" for gateway in foreign
            )
            text = f"{found}, not {self._cluster!r}: mend connect(cluster=...)"
            raise ConfigError(text) from None

    async def aclose(self) -> None:
        """Close the connections; pending calls end with SiloUnavailable."""
        if self._host is not None:
            await self._host.close_calls()
            await links_closed()


def checked_gateways(gateways: Sequence[str]) -> list[str]:
    """The addresses that a client was given. Raises ConfigError."""
    if isinstance(gateways, str):
        raise ConfigError(f"Client({gateways!r}): give a list of addresses, or use connect()")
    if not gateways:
        raise ConfigError("connect() needs at least one gateway, as host:port")
    for gateway in gateways:
        if not isinstance(gateway, str):
            raise ConfigError(
                f"connect({gateway!r}): a gateway is text, host:port, and each is an argument of"
                " its own: connect(*gateways)"
            )
        try:
            Address.parse(gateway)
        except ValueError as error:
            raise ConfigError(f"connect(): {error}") from None
    return list(gateways)


def connect(*gateways: str, cluster: str = "dev", options: RuntimeOptions | None = None) -> Client:
    """A client of a cluster: `async with connect("127.0.0.1:7700") as client`.

    Args:
        gateways: one or more `host:port` of silos; the others are learnt.
        cluster: the cluster's name; if all gateways are of other clusters, `async with` raises
            ConfigError.
    """
    return Client(gateways, cluster=cluster, options=options)
