"""A program outside the cluster: references and streams through gateways.

Owns: `Client` and `connect`. Not: which gateway carries what (`gateways`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from millstream.runtime.calls.engine import CallEngine
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.cluster.table import MemberInfo, MembershipTable
from millstream.runtime.definition.grain import Contract, Openable
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, NotInCluster, SiloUnavailable
from millstream.runtime.options import RuntimeOptions, check_kind
from millstream.runtime.turns.request import other_loop
from millstream.runtime.wire.address import Address
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.secret import NO_SECRETS, Secrets, check_operator_secret
from millstream.runtime.wire.transport import TcpTransport, Transport, links_closed

from .eviction_watch import EvictionWatch
from .gateway_calls import GatewayCalls
from .gateway_list import GatewayList
from .gateway_table import GatewayTable
from .gateways import Gateways
from .list_updates import ListUpdates

__all__ = ["Client", "connect"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")

log = logging.getLogger("millstream.client")


class Client:
    """A connection to a cluster; made by `connect`."""

    gateways: Gateways
    updates: ListUpdates
    _calls: GatewayCalls

    def __init__(
        self,
        gateways: Sequence[str],
        *,
        membership: MembershipTable | str | None = None,
        cluster: str = "dev",
        options: RuntimeOptions | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
        operator_secret: str = "",
    ) -> None:
        self._given = check_gateways(gateways, has_table=membership is not None)
        self._table = None if membership is None else GatewayTable(membership)
        check_kind("connect(cluster=...)", cluster, str)
        self._cluster = cluster
        self._options = RuntimeOptions() if options is None else options
        check_kind("connect(options=...)", self._options, RuntimeOptions)
        self._env = Env() if env is None else env
        check_kind("connect(env=...)", self._env, Env)
        self._transport = TcpTransport() if transport is None else transport
        check_kind("connect(operator_secret=...)", operator_secret, str)
        self._secrets = NO_SECRETS
        if operator_secret:
            name = "connect(operator_secret=...)"
            self._secrets = Secrets(operator=check_operator_secret(name, operator_secret))
        self._engine: CallEngine | None = None

    @property
    def engine(self) -> CallEngine:
        """The inside, for tools. Raises NotInCluster before it is connected."""
        if self._engine is None:
            raise NotInCluster("this client is not connected: use `async with connect(...)`")
        return self._engine

    @property
    def gateway(self) -> GatewayCalls:
        """What reaches system targets of the cluster. Raises NotInCluster before it connects."""
        self.engine  # noqa: B018  says so if there is none
        return self._calls

    @property
    def address(self) -> str:
        """What the cluster calls this client."""
        return self.engine.address

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain. Raises NotInCluster: closed, or of another event loop."""
        self._check_loop()
        return self.engine.references.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream. Raises NotInCluster: closed, or of another event loop."""
        self._check_loop()
        return self.engine.references.stream(namespace, key)

    def _check_loop(self) -> None:
        running = asyncio._get_running_loop()
        if running is not None and running is not self.engine.loop:
            raise NotInCluster(other_loop(f"client {self.address}"))

    async def members(self) -> tuple[MemberInfo, ...]:
        """The silos that are in the cluster, as a gateway sees it, sorted by address.

        Raises SiloUnavailable when no gateway answers, CallTimeout, NotInCluster.
        """
        target = GatewayTarget.target_name
        return tuple(await self.gateway.call("", target, GatewayTarget.members))

    async def __aenter__(self) -> Client:
        if self._engine is not None and not self._engine.turns.ended:
            self._check_loop()
            raise ConfigError(
                f"client {self.address} is open already: use it, or make another one by connect()"
            )
        engine = self._engine = self._make_engine()
        turns, peers, remote = engine.turns, engine.peers, engine.remote
        gateway_list = GatewayList(self._given)
        self.updates = ListUpdates(gateway_list, self._table, engine.end, peers, remote)
        gateways = self.gateways = Gateways(
            gateway_list, self.updates, turns, engine.tasks, peers, remote
        )
        self._calls = GatewayCalls(gateways, turns, peers, remote)
        engine.open(gateways, lambda kind: {}, self._calls)
        engine.end.open(inbox=gateways, welcome=gateways)
        engine.turns.ended = ""
        try:
            await self._connect()
        except BaseException:
            await self.aclose()
            raise
        engine.tasks.start(self.updates.run())
        engine.tasks.start(EvictionWatch(gateways).run())
        return self

    def _make_engine(self) -> CallEngine:
        return CallEngine(
            Identity(
                self._cluster,
                f"client-{self._env.new_id():x}",
                is_silo=False,
                is_operator=bool(self._secrets.operator),
            ),
            (),
            self._options,
            self._env,
            self._transport,
            has_left=lambda silo: False,
            lost=self._on_lost,
            part=self._part,
            secrets=self._secrets,
        )

    def _on_lost(self, name: str) -> None:
        """A gateway is gone for the moment."""
        log.info("gateway %s: connection lost", name)
        self.updates.want()

    def _part(self, name: str) -> Any:
        raise ConfigError(f"{self.address} is a client and has no parts")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _connect(self) -> None:
        """Learn the gateways from the first that answers. Raises SiloUnavailable, ConfigError, and
        StorageUnavailable if the membership table cannot be read."""
        await self.updates.look_up()
        try:
            await self.updates.refresh()
        except SiloUnavailable as error:
            refusals, asked = self.engine.peers.refusals, self.gateways.order()
            if asked and all(gateway in refusals for gateway in asked):
                found = [f"{gateway}: {refusals[gateway]}" for gateway in asked]
                raise ConfigError("; ".join([*found, *self.updates.table_texts])) from None
            text = f"no gateway answers, of cluster {self._cluster!r}: {error}"
            raise SiloUnavailable(text, may_have_run=False) from None

    async def aclose(self) -> None:
        """Close the connections; pending calls end with SiloUnavailable.

        Raises NotInCluster in another event loop than its own.
        """
        if self._engine is not None:
            if not self._engine.turns.ended:
                self._check_loop()
            text = f"client {self.address} was closed: open another by `async with connect(...)`"
            await self._engine.aclose(text)
            await links_closed()


def check_gateways(gateways: Sequence[str], *, has_table: bool = False) -> list[str]:
    """The addresses that a client was given, at least one unless it has the membership table.
    Raises ConfigError."""
    if isinstance(gateways, str):
        raise ConfigError(f"Client({gateways!r}): give a list of addresses, or use connect()")
    if not (gateways or has_table):
        raise ConfigError("connect() needs at least one gateway, as host:port, or membership=...")
    for gateway in gateways:
        if not isinstance(gateway, str):
            raise ConfigError(
                f"connect({gateway!r}): a gateway is text, host:port, and each is an argument of"
                " its own: connect(*gateways)"
            )
        try:
            Address.parse(gateway)
        except ValueError as error:
            advice = f"; a membership table is given by connect(membership={gateway!r})"
            is_table = gateway.partition(":")[0].isidentifier()
            raise ConfigError(f"connect(): {error}{advice if is_table else ''}") from None
    return list(gateways)


def connect(
    *gateways: str,
    membership: MembershipTable | str | None = None,
    cluster: str = "dev",
    options: RuntimeOptions | None = None,
    operator_secret: str = "",
) -> Client:
    """A client of a cluster: `async with connect("127.0.0.1:7700") as client`.

    Args:
        gateways: `host:port` of silos, one or more unless `membership` is given; the others are
            learnt.
        membership: the membership table of the cluster, in a form that `Silo(membership=...)`
            takes, such as `sqlite:directory`. The client reads the addresses of silos in it at the
            start, and whenever no gateway that it knows answers, so it finds a cluster of which no
            former silo is left. It changes nothing in the table. Silos that follow another table
            are refused. If the table cannot be read, `async with` raises StorageUnavailable.
        cluster: the cluster's name; if all gateways are of other clusters, `async with` raises
            ConfigError.
        operator_secret: of the cluster, to be allowed what operators may do, such as pausing
            queues; `operator_secret()` reads it where the silos keep it. If the gateways do not
            know it, `async with` raises ConfigError.
    """
    return Client(
        gateways,
        membership=membership,
        cluster=cluster,
        options=options,
        operator_secret=operator_secret,
    )
