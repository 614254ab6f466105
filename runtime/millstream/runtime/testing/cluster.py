"""A cluster of real silos on simulated hosts.

Owns: `SimCluster`: one silo per host, its program (start, run, start again after an eviction), who
joins later and who leaves, and what is noted of it in the history. Not: troubles (`nemesis`),
judgement (`checkers`).
Invariants: a host runs one silo at a time, always at the same address; a host that was removed runs
none ever again, and no name is given twice; tables and stores are
shared services that no crash reaches; every activation and every adopted view is noted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType

from millstream.runtime.client.client import Client
from millstream.runtime.cluster.table import MemoryMembershipTable, Status, TableView
from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.storage import MemoryStateStore
from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.options import MembershipOptions, RuntimeOptions
from millstream.runtime.silo.arguments import check_grains, makers_of
from millstream.runtime.silo.assembly import SiloAssembly
from millstream.runtime.silo.part import SiloPart
from millstream.runtime.silo.silo import Silo
from millstream.runtime.turns.activation import Activation
from millstream.runtime.wire.secret import NO_SECRETS, find_secrets

from .fault_injection import FIRST_VERSION
from .history import Activated, Deactivated, SiloEnded, ViewAdopted
from .services import SimMembershipTable, SimService, SimStateStore
from .simulation import Simulation
from .world.host import Host

__all__ = ["SimCluster"]

log = logging.getLogger("millstream.simulation")

PORT = 7000
RESTART_S = 0.5
LOOK_S = 0.05


class SimCluster:
    """`async with SimCluster(simulation, silos=3, grains=[...]) as cluster`.

    The table answers at the host name `table`, the stores at `store`.
    Arguments are those of `LocalCluster`, except that stores and membership table are always in
    memory and reached over the network, and that env and transport are the simulation's; and:

    Args:
        streams, parts: by name, functions that make one per silo; each is called on its silo's
            host (`current_host()`).
        stores, membership: in memory, such as `FailingStore` and `FailingTable`; default: one store
            named `default`, and a table that does not fail.
        lacking: grains that the silo on a host does not host, by the host's name.
        skew_s: the hosts' wall clocks differ from each other by at most so much.
    """

    service_names = ("table", "store")
    """Hosts that no script should crash: they are no simulated programs."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        grains: Sequence[type[Grain]],
        silos: int = 1,
        streams: Mapping[str, Callable[[], SiloPart]] | None = None,
        parts: Mapping[str, Callable[[], SiloPart]] | None = None,
        stores: Mapping[str, MemoryStateStore] | None = None,
        cluster: str = "sim",
        membership: MemoryMembershipTable | None = None,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        lacking: Mapping[str, Collection[type[Grain]]] | None = None,
        skew_s: float = 0.5,
    ) -> None:
        if isinstance(silos, bool) or not isinstance(silos, int) or silos < 1:
            raise ConfigError(f"SimCluster(silos={silos!r}): start at least one")
        self.simulation = self._simulation = simulation
        self._cluster = cluster
        self._grains = check_grains(grains, "SimCluster")
        self._lacking = dict(lacking or {})
        makers = makers_of("SimCluster", streams=streams, parts=parts)
        self._streams, self._parts = makers["streams"], makers["parts"]
        self._options = options
        self._membership_options = membership_options
        self.names = tuple(f"silo-{number}" for number in range(silos))
        self.table = MemoryMembershipTable(FIRST_VERSION) if membership is None else membership
        self.stores = dict(stores or {"default": MemoryStateStore()})
        self._table_service = SimService(simulation.network, self.service_names[0])
        self._store_service = SimService(simulation.network, self.service_names[1])
        self._skew_s = skew_s
        self._skews = {name: simulation.rng.uniform(-skew_s, skew_s) for name in self.names}
        self._running: dict[str, Silo] = {}
        self._is_started = False
        self._is_closing = False

    # -- running

    async def __aenter__(self) -> SimCluster:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:  # else the run ends here, and its hosts with it
            await self.close()

    async def start(self) -> None:
        """Boot every host; returns when all silos are active."""
        self._is_started = True
        for name in self.names:
            self.boot(name)
        await self.until_active()

    def add_silo(self) -> str:
        """Boot one more host; returns its name, `silo-3` after three. Await `until_active` next.

        Raises ConfigError before `start`, and after `close`.
        """
        if not self._is_started or self._is_closing:
            raise ConfigError("SimCluster.add_silo: the cluster does not run: start it first")
        name = f"silo-{len(self._skews)}"
        self._skews[name] = self._simulation.rng.uniform(-self._skew_s, self._skew_s)
        self.names += (name,)
        self.boot(name)
        return name

    async def remove_silo(self, name: str) -> None:
        """Let a host leave for good: its silo stops gracefully, unless the host has crashed.

        `names` and `until_active` know it no more, and it cannot be booted again. Raises
        ConfigError: no such silo; HostCrashed: it crashed meanwhile, and is removed all the same.
        """
        self._require(name)
        self.names = tuple(other for other in self.names if other != name)
        await self.stop_silo(name)

    def _require(self, name: str) -> None:
        if name not in self.names:
            raise ConfigError(
                f"SimCluster: {name!r} is no silo of this cluster, or was removed; there are "
                + ", ".join(self.names)
            )

    def boot(self, name: str) -> None:
        """Run a silo on a host that is up; restarts a crashed one first.

        Raises ConfigError: no such silo, or it was removed.
        """
        self._require(name)
        host = self._simulation.host(name)
        if not host.alive:
            host = self._simulation.restart(name)
        self._running.pop(name, None)
        self._simulation.spawn(host, self._program(host), name=f"program of {host}")

    async def _program(self, host: Host) -> None:
        """What the host does: a silo, and another one after it was evicted."""
        while self._may_run(host.name):
            silo = self._make(host)
            try:
                await silo.start()
            except MillstreamError as error:
                log.info("%s did not start: %s", host, error)
                await silo.kill()
                if not silo.has_begun:
                    raise  # it is wrong by itself: starting it again would not help
            else:
                self._running[host.name] = silo
                if not self._may_run(host.name):  # it was removed while it started
                    await silo.stop()
                await silo.wait_stopped()
                self._running.pop(host.name, None)
            self._simulation.history.record(SiloEnded(silo.address))
            await asyncio.sleep(RESTART_S)

    def _may_run(self, name: str) -> bool:
        return name in self.names and not self._is_closing

    def _make(self, host: Host) -> NotedSilo:
        simulation, name = self._simulation, host.name
        lacking = self._lacking.get(name, ())
        return NotedSilo(
            simulation,
            host,
            grains=[cls for cls in self._grains if cls not in lacking],
            address=f"{name}:{PORT}",
            cluster=self._cluster,
            membership=SimMembershipTable(
                self._table_service, name, self.table, simulation.history
            ),
            stores={
                key: SimStateStore(self._store_service, name, store)
                for key, store in self.stores.items()
            },
            streams={key: make() for key, make in self._streams.items()},
            parts={key: make() for key, make in self._parts.items()},
            name=name,
            insecure=True,  # names of simulated hosts
            options=self._options,
            membership_options=self._membership_options,
            env=simulation.env(host, self._skews[name]),
            transport=simulation.transport(host),
            disk=simulation.disk(host),
        )

    def silo(self, name: str) -> Silo | None:
        """The silo that runs on a host now, if one does and its host is up."""
        return self._running.get(name) if self._simulation.is_up(name) else None

    def silos(self) -> list[Silo]:
        """Every silo that runs now."""
        return [silo for name in self.names if (silo := self.silo(name)) is not None]

    def client(self, host: Host, *, is_operator: bool = False) -> Client:
        """A client on a host; use it in a program on that host.

        Args:
            is_operator: it knows the operator's secret, once a silo has been started.
        """
        secrets = find_secrets(os.environ, self.table, bytes) if is_operator else NO_SECRETS
        return Client(
            [f"{name}:{PORT}" for name in self.names],
            cluster=self._cluster,
            options=self._options,
            env=self._simulation.env(host),
            transport=self._simulation.transport(host),
            operator_secret=secrets.operator.decode(),
        )

    async def stop_silo(self, name: str) -> None:
        """Stop the silo of a host gracefully; its program starts another one."""
        silo = self.silo(name)
        if silo is not None:
            await self._simulation.call(self._simulation.host(name), silo.stop())

    async def close(self) -> None:
        """Stop every silo, one after the other."""
        self._is_closing = True
        for name in self.names:
            await self.stop_silo(name)
        for service in (self._table_service, self._store_service):
            service.close()

    @property
    def late_requests(self) -> int:
        """Requests that reached table or store after their callers had given up."""
        return self._table_service.late_count + self._store_service.late_count

    # -- waiting

    async def until_active(self, within_s: float = 60.0) -> None:
        """Until every host's silo is active in every silo's view. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not self.is_whole():  # noqa: ASYNC110  nothing tells when others have seen it
                await asyncio.sleep(LOOK_S)

    async def until_settled(self, calm_s: float, within_s: float = 60.0) -> None:
        """Until all are active, and still so after `calm_s`: a vote may have been on its way."""
        await self.until_active(within_s)
        await asyncio.sleep(calm_s)
        await self.until_active(within_s)

    def is_whole(self) -> bool:
        """Does every silo run, and see just these silos alive?"""
        silos = self.silos()
        members = tuple(sorted(silo.address for silo in silos))
        return len(silos) == len(self.names) and all(
            silo.assembly.membership.active() == members
            and not silo.assembly.membership.view.with_status(Status.JOINING, Status.STOPPING)
            for silo in silos
        )


class NotedSilo(Silo):
    """A silo whose activations and views are noted in a history."""

    def __init__(self, simulation: Simulation, host: Host, /, **silo: object) -> None:
        super().__init__(**silo)  # type: ignore[arg-type]
        self._simulation = simulation
        self._on = host

    @property
    def has_begun(self) -> bool:
        """Did its start come as far as to its parts?"""
        return self._assembly is not None

    def _build(self, address: str, table_id: str) -> SiloAssembly:
        inside = super()._build(address, table_id)
        record, on = self._simulation.history.record, self._on.name

        def on_started(activation: Activation) -> None:
            record(Activated(str(activation), address, activation.version, on))

        def on_adopted(view: TableView) -> None:
            statuses = tuple((row.silo, row.status.value) for row in view.rows)
            record(ViewAdopted(address, view.version, statuses))

        inside.catalog.on_started = on_started
        inside.catalog.on_ended = lambda activation: record(Deactivated(str(activation), address))
        inside.membership.watch(on_adopted)
        return inside
