"""A cluster of real silos on simulated hosts.

This module owns `SimCluster`. It has one silo for each host, and the host's program: start the
silo, run it, and start another one after an eviction. Hosts can be added and removed, and
activations and views are recorded in the history. Faults are in `nemesis`, and judgements in
`checkers`.

A host runs one silo at a time, always at the same address. A removed host never runs a silo again,
and no name is used twice. The membership table and the stores are shared services that no crash
reaches.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType

from millstream.runtime.client.client import Client
from millstream.runtime.cluster.table import MemoryMembershipTable, Status, TableView
from millstream.runtime.definition.filters import NO_FILTERS, CallFilters
from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.labels import labels_of_each
from millstream.runtime.definition.storage import MemoryStateStore
from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.options import (
    MembershipOptions,
    PlacementOptions,
    Rebalancing,
    RuntimeOptions,
)
from millstream.runtime.reminders.table import MemoryReminderTable
from millstream.runtime.silo.arguments import check_grains, makers_of
from millstream.runtime.silo.assembly import SiloAssembly
from millstream.runtime.silo.part import SiloPart
from millstream.runtime.silo.silo import Silo
from millstream.runtime.turns.activation import Activation
from millstream.runtime.wire.secret import (
    NO_SECRETS,
    SECRET_BYTES,
    Secrets,
    both_secrets,
    derive_operator_secret,
    read_secret,
)

from .fault_injection import FIRST_VERSION
from .history import Activated, Deactivated, SiloEnded, ViewAdopted
from .services import SimMembershipTable, SimReminderTable, SimService, SimStateStore
from .simulation import Simulation
from .world.host import Host

__all__ = ["SimCluster"]

log = logging.getLogger("millstream.simulation")

PORT = 7000
RESTART_S = 0.5
LOOK_S = 0.05


class SimCluster:
    """A cluster of real silos on the hosts of a simulation.

    ```python
    async with SimCluster(simulation, silos=3, grains=[Airport]) as cluster:
        async with cluster.client(simulation.host("client")) as client:
            ...
    ```

    The hosts of the silos are `silo-0`, `silo-1` and so on. The membership table answers over the
    network at the host `table`, and the stores at the host `store`. A silo that was evicted or
    stopped is followed by a new one on the same host.

    Args:
        simulation: The simulation. It provides clocks, random numbers, transports and disks.
        grains: The grain classes that each silo hosts.
        silos: How many silos to start.
        streams: Functions by name. Each makes a stream provider for one silo. It is called on the
            silo's host (`current_host()`).
        parts: Functions by name. Each makes a part for one silo, on the silo's host.
        stores: The state stores by name, in memory, such as `FailingStore`. None: one store named
            `default`.
        reminders: The table of reminders, in memory, such as `FailingReminderTable`. None: a table
            that never fails. It answers at the host of the stores.
        cluster: The name of the cluster.
        membership: The membership table, in memory, such as `FailingTable`. None: a table that
            never fails.
        labels: The labels of the silos, in their order. Silos beyond the list have none.
        filters: Run around the calls of silos and clients.
        options: The options of silos and clients.
        membership_options: The options of membership.
        placement_options: The options of `LEAST_LOADED`.
        lacking: Grain classes that the silo on a host does not host, by the name of the host. It is
            read whenever a silo starts, so a change of the mapping replaces the release of a host.
        rebalancing: Evens out the activations of the silos. None: they stay where they are.
        skew_s: The wall clock of each host differs from the true time by at most this, in seconds.

    Attributes:
        simulation: The simulation.
        names: The names of the silos' hosts, without removed ones.
        table: The membership table.
        stores: The state stores.
        reminders: The table of reminders.

    Raises:
        ConfigError: An argument is wrong.
    """

    service_names = ("table", "store")
    """The hosts of table and stores. A script must not crash them, since no simulated program runs
    there.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        grains: Sequence[type[Grain]],
        silos: int = 1,
        streams: Mapping[str, Callable[[], SiloPart]] | None = None,
        parts: Mapping[str, Callable[[], SiloPart]] | None = None,
        stores: Mapping[str, MemoryStateStore] | None = None,
        reminders: MemoryReminderTable | None = None,
        cluster: str = "sim",
        membership: MemoryMembershipTable | None = None,
        labels: Sequence[Mapping[str, str]] = (),
        filters: CallFilters = NO_FILTERS,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        placement_options: PlacementOptions | None = None,
        rebalancing: Rebalancing | None = None,
        lacking: Mapping[str, Collection[type[Grain]]] | None = None,
        skew_s: float = 0.5,
    ) -> None:
        if isinstance(silos, bool) or not isinstance(silos, int) or silos < 1:
            raise ConfigError(f"SimCluster(silos={silos!r}): pass a whole number, at least 1")
        self.simulation = self._simulation = simulation
        self._cluster = cluster
        self._grains = check_grains(grains, "SimCluster")
        self._lacking = {} if lacking is None else lacking
        makers = makers_of("SimCluster", streams=streams, parts=parts)
        self._streams, self._parts = makers["streams"], makers["parts"]
        all_labels = labels_of_each("SimCluster(labels=...)", labels)
        self._labels = {f"silo-{number}": one for number, one in enumerate(all_labels)}
        self._filters = filters
        self._options = options
        self._membership_options = membership_options
        self._placement_options = placement_options
        self._rebalancing = rebalancing
        self.names = tuple(f"silo-{number}" for number in range(silos))
        self.table = MemoryMembershipTable(FIRST_VERSION) if membership is None else membership
        self.stores = dict(stores or {"default": MemoryStateStore()})
        self.reminders = MemoryReminderTable() if reminders is None else reminders
        self._table_service = SimService(simulation.network, self.service_names[0])
        self._store_service = SimService(simulation.network, self.service_names[1])
        self._skew_s = skew_s
        self._skews = {name: simulation.rng.uniform(-skew_s, skew_s) for name in self.names}
        self._running: dict[str, Silo] = {}
        self._is_started = False
        self._is_closing = False

    # -- running

    async def __aenter__(self) -> SimCluster:
        """Start the cluster."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cluster, unless the block failed."""
        if error is None:  # else the run ends here with its hosts
            await self.close()

    async def start(self) -> None:
        """Start every host, and wait until all silos are active."""
        self._is_started = True
        for name in self.names:
            self.boot(name)
        await self.until_active()

    def add_silo(self) -> str:
        """Add a host with a silo, and return its name, such as `silo-3` after three silos.

        Await `until_active` to wait for the silo.

        Raises:
            ConfigError: The cluster is not started, or was closed.
        """
        if not self._is_started or self._is_closing:
            raise ConfigError("SimCluster.add_silo: the cluster is not running: start it first")
        name = f"silo-{len(self._skews)}"
        self._skews[name] = self._simulation.rng.uniform(-self._skew_s, self._skew_s)
        self.names += (name,)
        self.boot(name)
        return name

    async def remove_silo(self, name: str) -> None:
        """Remove a host for good. Its silo stops gracefully, unless the host has crashed.

        The host is no longer in `names`, and cannot be booted again.

        Args:
            name: The name of the host.

        Raises:
            ConfigError: There is no such silo.
            HostCrashed: The host crashed while its silo stopped. It is removed all the same.
        """
        self._require(name)
        self.names = tuple(other for other in self.names if other != name)
        await self.stop_silo(name)

    def _require(self, name: str) -> None:
        if name not in self.names:
            raise ConfigError(
                f"SimCluster: {name!r} is not a silo of this cluster, or was removed; silos: "
                + ", ".join(self.names)
            )

    def boot(self, name: str) -> None:
        """Run a silo on a host. A crashed host is restarted first.

        Args:
            name: The name of the host.

        Raises:
            ConfigError: There is no such silo, or it was removed.
        """
        self._require(name)
        host = self._simulation.host(name)
        if not host.alive:
            host = self._simulation.restart(name)
        self._running.pop(name, None)
        self._simulation.spawn(host, self._program(host), name=f"program of {host}")

    async def _program(self, host: Host) -> None:
        """Run a silo. When it has ended, run another one, and so on."""
        while self._may_run(host.name):
            silo = self._make(host)
            try:
                await silo.start()
            except MillstreamError as error:
                log.info("%s did not start: %s", host, error)
                await silo.kill()
                if not silo.has_begun:
                    raise  # its arguments are wrong, so another start would fail as well
            else:
                self._running[host.name] = silo
                if not self._may_run(host.name):  # the host was removed meanwhile
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
            reminders=SimReminderTable(self._store_service, name, self.reminders),
            streams={key: make() for key, make in self._streams.items()},
            parts={key: make() for key, make in self._parts.items()},
            name=name,
            labels=self._labels.get(name),
            insecure=True,  # names of simulated hosts
            filters=self._filters,
            options=self._options,
            membership_options=self._membership_options,
            placement_options=self._placement_options,
            rebalancing=self._rebalancing,
            env=simulation.env(host, self._skews[name]),
            transport=simulation.transport(host),
            disk=simulation.disk(host),
        )

    def silo(self, name: str) -> Silo | None:
        """Return the silo that runs on a host now, or None.

        Args:
            name: The name of the host.
        """
        return self._running.get(name) if self._simulation.is_up(name) else None

    def silos(self) -> list[Silo]:
        """Return all silos that run now."""
        return [silo for name in self.names if (silo := self.silo(name)) is not None]

    def client(self, host: Host, *, is_operator: bool = False) -> Client:
        """Make a client of the cluster on a host. Use it in a program on that host.

        Args:
            host: The host.
            is_operator: True: the client knows the operator's secret. At least one silo must have
                been started.
        """
        secrets = self._secrets() if is_operator else NO_SECRETS
        return Client(
            [f"{name}:{PORT}" for name in self.names],
            cluster=self._cluster,
            filters=self._filters,
            options=self._options,
            env=self._simulation.env(host),
            transport=self._simulation.transport(host),
            operator_secret=secrets.operator.decode(),
        )

    def _secrets(self) -> Secrets:
        cluster = read_secret(os.environ) or self.table.secret(bytes(SECRET_BYTES))
        return both_secrets(os.environ, cluster, derive_operator_secret(cluster))

    async def stop_silo(self, name: str) -> None:
        """Stop the silo of a host gracefully. The host then starts another one.

        Args:
            name: The name of the host.
        """
        silo = self.silo(name)
        if silo is not None:
            await self._simulation.call(self._simulation.host(name), silo.stop())

    async def close(self) -> None:
        """Stop all silos, one after the other."""
        self._is_closing = True
        for silo in self.silos():
            silo.assembly.catalog.mover.until_s = 0.0  # no grain moves, since all silos stop
        for name in self.names:
            await self.stop_silo(name)
        for service in (self._table_service, self._store_service):
            service.close()

    @property
    def late_requests(self) -> int:
        """The number of requests that reached table or stores after their callers had given up."""
        return self._table_service.late_count + self._store_service.late_count

    # -- waiting

    async def until_active(self, within_s: float = 60.0) -> None:
        """Wait until the silo of every host is active in the view of every silo.

        Args:
            within_s: The longest wait in virtual seconds.

        Raises:
            TimeoutError: The wait took longer.
        """
        async with asyncio.timeout(within_s):
            while not self.is_whole():  # noqa: ASYNC110  no event says when others see it
                await asyncio.sleep(LOOK_S)

    async def until_settled(self, calm_s: float, within_s: float = 60.0) -> None:
        """Wait until all silos are active, and still are after some time.

        Votes may be under way when all silos are active for the first time.

        Args:
            calm_s: The time between the two looks in virtual seconds.
            within_s: The longest wait before each look in virtual seconds.

        Raises:
            TimeoutError: A wait took longer.
        """
        await self.until_active(within_s)
        await asyncio.sleep(calm_s)
        await self.until_active(within_s)

    def is_whole(self) -> bool:
        """Return whether every host runs a silo, and every silo sees exactly these silos alive."""
        silos = self.silos()
        members = tuple(sorted(silo.address for silo in silos))
        return len(silos) == len(self.names) and all(
            silo.assembly.membership.active() == members
            and not silo.assembly.membership.view.with_status(Status.JOINING, Status.STOPPING)
            for silo in silos
        )


class NotedSilo(Silo):
    """A silo whose activations and views are recorded in a history."""

    def __init__(self, simulation: Simulation, host: Host, /, **silo: object) -> None:
        super().__init__(**silo)  # type: ignore[arg-type]
        self._simulation = simulation
        self._on = host

    @property
    def has_begun(self) -> bool:
        """Whether the start of the silo has reached its parts."""
        return self._assembly is not None

    def _build(self, address: str, table_id: str) -> SiloAssembly:
        inside = super()._build(address, table_id)
        record, on = self._simulation.history.record, self._on.name

        def on_started(activation: Activation) -> None:
            is_worker = activation.kind.workers_max > 0
            record(Activated(str(activation), address, activation.version, on, is_worker))

        def on_adopted(view: TableView) -> None:
            statuses = tuple((row.silo, row.status.value) for row in view.rows)
            record(ViewAdopted(address, view.version, statuses))

        inside.catalog.on_started = on_started
        inside.catalog.on_ended = lambda activation: record(Deactivated(str(activation), address))
        inside.membership.watch(on_adopted)
        return inside
