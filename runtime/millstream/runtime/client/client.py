"""A program outside of the cluster, which uses grains and streams through gateways.

This module owns `Client` and `connect`. The module `gateways` chooses the gateway of each call, and
`observers` serves the calls of grains to objects of the program.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from millstream.runtime.calls.engine import CallEngine
from millstream.runtime.cluster.client_leases import SECRET_BYTES, name_client
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.cluster.table import MemberInfo, MembershipTable
from millstream.runtime.definition.filters import NO_FILTERS, CallFilters
from millstream.runtime.definition.grain import Contract, Openable
from millstream.runtime.definition.observer import Observer
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, NotInCluster, SiloUnavailable
from millstream.runtime.options import RuntimeOptions, check_kind
from millstream.runtime.role import Role
from millstream.runtime.turns.request import other_loop
from millstream.runtime.wire.address import Address
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.secret import NO_SECRETS, Secrets, check_operator_secret
from millstream.runtime.wire.tls import Tls
from millstream.runtime.wire.transport import Transport, links_closed, make_transport

from .attachment import Attachment
from .eviction_watch import EvictionWatch
from .gateway_calls import GatewayCalls
from .gateway_list import GatewayList
from .gateway_table import GatewayTable
from .gateways import Gateways
from .list_updates import ListUpdates
from .observers import Observers, check_observer

__all__ = ["Client", "connect"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
OB = TypeVar("OB", bound=Observer)

log = logging.getLogger("millstream.client")


class Client:
    """A program outside of the cluster that calls grains and publishes to streams.

    `connect` makes a client; the class has two arguments more. `async with` opens and closes it. A
    client belongs to the event loop in which it was opened. Using, opening or closing it in another
    loop raises NotInCluster. An open client cannot be opened again, and a closed one can.

    Calls to one grain go through one gateway while it is connected, so they keep their order. If a
    gateway is lost, calls that were sent through it end with SiloUnavailable, and later calls use
    another gateway.

    Args:
        gateways: The addresses `host:port` of silos. See `connect`.
        membership: The membership table of the cluster. See `connect`.
        cluster: The name of the cluster.
        filters: Run around the calls of this client. See `connect`.
        options: The options of calls. None: the defaults.
        env: Wall time, chance and ids. None: those of this machine.
        transport: The transport. None: `TcpTransport`.
        operator_secret: The operator's secret of the cluster. See `connect`.
        tls: The files for TLS. See `connect`.

    Raises:
        ConfigError: An argument has a wrong type or value, or neither a gateway nor a table is
            given.
    """

    gateways: Gateways
    updates: ListUpdates
    _calls: GatewayCalls
    _attachment: Attachment
    _observers: Observers

    def __init__(
        self,
        gateways: Sequence[str],
        *,
        membership: MembershipTable | str | None = None,
        cluster: str = "dev",
        filters: CallFilters = NO_FILTERS,
        options: RuntimeOptions | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
        operator_secret: str = "",
        tls: Tls | None = None,
    ) -> None:
        self._given = check_gateways(gateways, has_table=membership is not None)
        self._table = None if membership is None else GatewayTable(membership)
        check_kind("connect(cluster=...)", cluster, str)
        self._cluster = cluster
        self._options = RuntimeOptions() if options is None else options
        check_kind("connect(options=...)", self._options, RuntimeOptions)
        self._env = Env() if env is None else env
        check_kind("connect(filters=...)", filters, CallFilters)
        self._filters = filters
        check_kind("connect(env=...)", self._env, Env)
        self._transport = make_transport(transport, tls, cluster, Role.CLIENT, "connect")
        check_kind("connect(operator_secret=...)", operator_secret, str)
        self._secrets = NO_SECRETS
        if operator_secret:
            name = "connect(operator_secret=...)"
            self._secrets = Secrets(operator=check_operator_secret(name, operator_secret))
        self._engine: CallEngine | None = None

    @property
    def engine(self) -> CallEngine:
        """The inside of the client, for tools.

        Raises:
            NotInCluster: The client is not connected.
        """
        if self._engine is None:
            raise NotInCluster("this client is not connected: use `async with connect(...)`")
        return self._engine

    @property
    def gateway(self) -> GatewayCalls:
        """Calls to system targets of the cluster, see `millstream.runtime.extending.Gateway`.

        Raises:
            NotInCluster: The client is not connected.
        """
        self.engine  # noqa: B018  says so if there is none
        return self._calls

    @property
    def address(self) -> str:
        """The name by which the cluster knows this client.

        Raises:
            NotInCluster: The client is not connected.
        """
        return self.engine.address

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.

        Raises:
            NotInCluster: The client is not connected, or belongs to another event loop.
        """
        self._check_loop()
        return self.engine.references.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream.

        Args:
            namespace: The namespace of the stream, such as a `StreamNamespace`.
            key: The key of the stream.

        Raises:
            NotInCluster: The client is not connected, or belongs to another event loop.
        """
        self._check_loop()
        return self.engine.references.stream(namespace, key)

    def observe(self, observer: OB, /) -> AbstractAsyncContextManager[OB]:
        """Let grains call an object of this program, for the time of a context.

        ```python
        async with client.observe(Viewer()) as viewer:
            await client.grain(Match, "final").watch(viewer)
        ```

        The context gives a reference, to be passed to grains. Grains call the observer through one
        of the gateways, and continue when the client moves to another one. The client holds the
        object until the context ends. Then waiting calls end with ObserverGone, and running calls
        are awaited; later calls end with ObserverGone.

        When the client was closed, calls to its observers end with ClientUnavailable, and also when
        it was cut off or silent for `RuntimeOptions.client_lease_s`. If it comes back after that,
        its references work again.

        Each context makes a reference of its own, also for the same object. One reference is called
        once at a time.

        Args:
            observer: The object. Its class derives from `Observer`.

        Raises:
            TypeError: `observer` is no object of an Observer class.
            ConfigError: The running code is a turn of a grain. Grains pass `self`.
            DefinitionError: The class of `observer` cannot be an observer.
            NotInCluster: The client is not connected, or belongs to another event loop.
            SiloUnavailable: No gateway attaches the client within `RuntimeOptions.call_timeout_s`.
                Raised when the context begins.
            NotHosted: The silos are of a version that does not know observers. Raised when the
                context begins.
            Overloaded: The client has too many observers. Raised when the context begins.
        """
        self._check_loop()
        check_observer(observer)
        self.engine.turns.check_running()
        return self._observers.hold(observer)

    def _check_loop(self) -> None:
        running = asyncio._get_running_loop()
        if running is not None and running is not self.engine.loop:
            raise NotInCluster(other_loop(f"client {self.address}"))

    async def members(self) -> tuple[MemberInfo, ...]:
        """Return the silos that are in the cluster, as a gateway sees them.

        Returns:
            The silos that are not dead, sorted by address.

        Raises:
            SiloUnavailable: No gateway answers.
            CallTimeout: The gateway did not answer in time.
            NotInCluster: The client is not connected.
        """
        target = GatewayTarget.target_name
        return tuple(await self.gateway.call("", target, GatewayTarget.members))

    async def __aenter__(self) -> Client:
        """Connect to the cluster.

        Raises:
            SiloUnavailable: No gateway answers, or those that answer are still joining their
                cluster.
            ConfigError: The client is open already, or every gateway refuses it: it is in a cluster
                of another name, follows another membership table, or does not know the operator's
                secret.
            StorageUnavailable: The membership table cannot be read.
        """
        if self._engine is not None and not self._engine.turns.ended:
            self._check_loop()
            raise ConfigError(
                f"client {self.address} is already open: use it, or make another with connect(...)"
            )
        secret = self._env.random_bytes(SECRET_BYTES)
        engine = self._engine = self._make_engine(name_client(secret))
        turns, peers, remote = engine.turns, engine.peers, engine.remote
        gateway_list = GatewayList(self._given)
        self.updates = ListUpdates(gateway_list, self._table, engine.end, peers, remote)
        gateways = self.gateways = Gateways(
            gateway_list, self.updates, turns, engine.tasks, peers, remote
        )
        self._calls = GatewayCalls(gateways, turns, peers, remote)
        engine.open(gateways, lambda kind: {}, self._calls)
        self._attachment = Attachment(secret, gateways, turns, engine.tasks, peers, remote)
        self._observers = Observers(engine, self._attachment, self._env.new_id)
        engine.end.open(inbox=self._observers, welcome=gateways)
        engine.turns.ended = ""
        try:
            await self._connect()
        except BaseException:
            await self.aclose()
            raise
        engine.tasks.start(self.updates.run())
        engine.tasks.start(EvictionWatch(gateways).run())
        return self

    def _make_engine(self, name: str) -> CallEngine:
        return CallEngine(
            Identity(
                self._cluster,
                name,
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
            filters=self._filters,
        )

    def _on_lost(self, name: str) -> None:
        """Ask for the list of gateways soon, since the connection to one was lost."""
        log.info("lost the connection to gateway %s", name)
        self.updates.want()

    def _part(self, name: str) -> Any:
        raise ConfigError(f"{self.address} is a client, and only silos have parts")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.aclose()

    async def _connect(self) -> None:
        """Learn the gateways from the first one that answers.

        Raises SiloUnavailable, ConfigError, and StorageUnavailable if the table cannot be read.
        """
        await self.updates.look_up()
        try:
            await self.updates.refresh()
        except SiloUnavailable as error:
            refusals, asked = self.engine.peers.refusals, self.gateways.order()
            if asked and all(gateway in refusals for gateway in asked):
                found = [f"{gateway}: {refusals[gateway]}" for gateway in asked]
                raise ConfigError("; ".join([*found, *self.updates.table_texts])) from None
            text = f"no gateway of cluster {self._cluster!r} answers: {error}"
            raise SiloUnavailable(text, may_have_run=False) from None

    async def aclose(self) -> None:
        """Close the connections. Pending calls end with SiloUnavailable. Calls of grains to
        observers of this client are cancelled, and later ones end with ClientUnavailable.

        Raises:
            NotInCluster: The client belongs to another event loop.
        """
        if self._engine is not None:
            if not self._engine.turns.ended:
                self._check_loop()
                await self._attachment.aclose()
                self._observers.close()
            text = f"client {self.address} was closed: open another with `async with connect(...)`"
            await self._engine.aclose(text)
            await links_closed()


def check_gateways(gateways: Sequence[str], *, has_table: bool = False) -> list[str]:
    """Return the addresses that a client was given.

    Raises ConfigError for an address that is not valid, and for an empty list if the client has no
    membership table.
    """
    if isinstance(gateways, str):
        raise ConfigError(f"Client({gateways!r}): pass a list of addresses, or use connect()")
    if not (gateways or has_table):
        raise ConfigError("connect() needs at least one gateway, as host:port, or membership=...")
    for gateway in gateways:
        if not isinstance(gateway, str):
            raise ConfigError(
                f"connect({gateway!r}): a gateway must be a str, host:port, and each gateway is an "
                "argument of its own: connect(*gateways)"
            )
        try:
            Address.parse(gateway)
        except ValueError as error:
            advice = f"; pass a membership table as connect(membership={gateway!r})"
            is_table = gateway.partition(":")[0].isidentifier()
            raise ConfigError(f"connect(): {error}{advice if is_table else ''}") from None
    return list(gateways)


def connect(
    *gateways: str,
    membership: MembershipTable | str | None = None,
    cluster: str = "dev",
    filters: CallFilters = NO_FILTERS,
    options: RuntimeOptions | None = None,
    operator_secret: str = "",
    tls: Tls | None = None,
) -> Client:
    """Make a client of a cluster. It connects by `async with`.

    ```python
    async with connect("127.0.0.1:7700") as client:
        await client.grain(Airport, "BOS").land("MS 12")
    ```

    Args:
        gateways: The addresses `host:port` of one or more silos. The client learns the others from
            them. None is needed if `membership` is given.
        membership: The membership table of the cluster: a `MembershipTable`, or text such as
            `sqlite:directory`. The client reads the addresses of silos in it when it opens, and
            when no known gateway answers, at most once a second. So it finds a cluster even if no
            silo that it knew is left. It changes nothing in the table. A table that the client
            makes from text is closed after each reading; an object stays open. Silos that follow
            another membership table are refused.
        cluster: The name of the cluster.
        filters: The outgoing filters run around each call of a grain that this client makes.
        options: The options of calls. None: the defaults.
        operator_secret: The operator's secret of the cluster. It permits the actions of operators,
            such as pausing queues. The function `millstream.runtime.operator_secret` reads it from
            the membership directory of the silos.
        tls: The files for TLS, if the silos use TLS. The certificate must name a client of
            `cluster`.

    Returns:
        The client, not connected. `Client.__aenter__` lists the errors of connecting.

    Raises:
        ConfigError: An argument has a wrong type or value, or neither a gateway nor a table is
            given.
    """
    return Client(
        gateways,
        membership=membership,
        cluster=cluster,
        filters=filters,
        options=options,
        operator_secret=operator_secret,
        tls=tls,
    )
