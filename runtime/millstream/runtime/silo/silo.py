"""A silo: it builds its parts, and starts and stops them in order.

This module owns the stages of starting and stopping. The logic is in the parts.

- A silo is in the membership table before it serves calls, and active before it hosts grains.
- It stops in this order: gateway, queues, activations (each when its turns have ended), answers,
  providers, table (docs/decisions/0006-the-order-of-stopping.md).
- A start that fails is undone in the same order.
- A silo closes the objects that it made from text. It does not close the objects that it was given.
- An evicted silo stops at once and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from millstream.runtime.cluster.limited_table import LimitedTable
from millstream.runtime.cluster.placement import (
    placements_of,
    requirements_of_all,
    versions_of_all,
)
from millstream.runtime.cluster.rebalancer import Rebalancer
from millstream.runtime.cluster.table import (
    MemberInfo,
    MemberRow,
    MembershipTable,
    MemoryMembershipTable,
    Status,
    members_of,
    table_id_of,
)
from millstream.runtime.definition.filters import NO_FILTERS, CallFilters
from millstream.runtime.definition.grain import Contract, DeactivationReason, Grain, Openable
from millstream.runtime.definition.labels import labels_of
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.disk.real import RealDisk
from millstream.runtime.disk.seam import Disk
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, MillstreamError, NotInCluster
from millstream.runtime.options import (
    MembershipOptions,
    PlacementOptions,
    Rebalancing,
    RuntimeOptions,
)
from millstream.runtime.plugins import load_plugin
from millstream.runtime.reminders.service import ReminderCounts
from millstream.runtime.reminders.table import ReminderTable
from millstream.runtime.role import Role
from millstream.runtime.turns.collector import collect_while_running, trim_while_running
from millstream.runtime.turns.request import other_loop
from millstream.runtime.version import version
from millstream.runtime.wire.address import Address, check_door
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.secret import NO_SECRETS, find_secrets
from millstream.runtime.wire.tls import Tls
from millstream.runtime.wire.transport import (
    Link,
    Listener,
    Transport,
    links_closed,
    make_transport,
)

from .agreement import agree, find_used_stores
from .arguments import (
    check_grains,
    check_kinds,
    check_seams,
    check_stores_of_grains,
    check_table,
    fill_options,
    parts_of,
    read_address,
    stores_of,
)
from .assembly import SiloAssembly
from .metrics import METRICS, Metrics, attach_metrics, counts_of, put_first
from .part import SiloPart, bookies_of, check_needed, list_brought
from .reminders import ReminderPlaces, add_reminders, attach_reminders, counts_in
from .services import SiloServices

__all__ = ["Silo", "StopReason"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")

log = logging.getLogger("millstream.silo")

ANSWER_LOOK_S = 0.005
GOODBYE_S = 1.0


class StopReason(Enum):
    """The reason why a silo has stopped, as `Silo.wait_stopped` returns it.

    Attributes:
        STOPPED: `stop()` was called, or the start failed.
        KILLED: `kill()` was called.
        EVICTED: The other silos, or a silo that took its address, ended its membership. Its grains
            run elsewhere.
    """

    STOPPED = "stopped"
    KILLED = "killed"
    EVICTED = "evicted"


class Silo:
    """One member of a cluster. It hosts grains, and takes calls from clients and other silos.

    `async with` starts and stops it:

    ```python
    async with Silo(grains=[Airport], membership="sqlite:/var/lib/shop") as silo:
        await silo.grain(Airport, "BOS").land("MS 12")
        await silo.wait_stopped()
    ```

    `serve` runs a silo as a whole program. `LocalCluster` runs several silos in one process. Every
    argument is checked before anything is opened. A silo can be started once, and belongs to the
    event loop in which it was started.

    Args:
        grains: The grain classes that this silo hosts.
        address: The address to listen at, `host:port`. Port 0 takes a free port.
        advertise: The address that others connect to, `host:port`. Port 0: the port that the silo
            listens at. Empty: the bound address. An address such as `0.0.0.0` cannot be reached, so
            a silo that listens there needs this argument.
        cluster: The name of the cluster. Silos and clients of different clusters refuse each other.
        membership: The membership table, or text `name:argument` that names a plug-in, such as
            `sqlite:directory`. None: a table of its own in memory, so no other silo can join.
        stores: The state stores by name: objects, or text `name:argument` that names a plug-in. A
            name is text without `/`. None: one store in memory, named `default`.
        reminders: The table of reminders, or text `name:argument` that names a plug-in. None: the
            place of the store `default`, which is the plug-in of the same text, or memory if the
            silo has its own membership table and keeps its state in memory.
        streams: The stream providers by name. Each object serves one silo.
        parts: Other parts by name, see `millstream.runtime.extending.SiloPart`. Each object serves
            one silo.
        name: The name for people and balancers. Empty: the address.
        labels: The labels of the silo, by name, such as `{"zone": "a"}`. Classes with
            `@grain(requires=...)` are placed by them. At most 32, and 2,000 bytes. None: no labels.
        can_own_queues: False: the silo hosts grains, but reads no queues.
        tls: The files for TLS. With it, connections are encrypted, and only processes with a
            certificate of the authority can connect. The certificate of the silo must name a silo
            of `cluster`. None: connections are not encrypted, and other machines cannot connect.
        insecure: True permits an address that is not loopback without `tls`. Nothing on the wire is
            encrypted, and every program that reaches the port may call every method that is open to
            clients.
        filters: Run around the calls of grains in this silo, and around the calls that it makes.
        options: The options of calls. None: the defaults.
        membership_options: The options of membership. None: the defaults. Give all silos of a
            cluster the same.
        placement_options: The options of `LEAST_LOADED`. None: the defaults.
        rebalancing: Evens out the activations of the silos. None: activations stay where they are.
            Give all silos of a cluster the same.
        env: Wall time, chance and ids. None: those of this machine.
        transport: The transport. None: `TcpTransport`.
        disk: The `Disk` of its parts. None: the files of this machine.

    Raises:
        ConfigError: An argument has a wrong type or value, or two arguments do not fit. The message
            names them.
    """

    def __init__(
        self,
        *,
        grains: Sequence[type[Grain]],
        address: str = "127.0.0.1:0",
        advertise: str = "",
        cluster: str = "dev",
        membership: MembershipTable | str | None = None,
        stores: Mapping[str, StateStore | str] | None = None,
        reminders: ReminderTable | str | None = None,
        streams: Mapping[str, SiloPart] | None = None,
        parts: Mapping[str, SiloPart] | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        can_own_queues: bool = True,
        tls: Tls | None = None,
        insecure: bool = False,
        filters: CallFilters = NO_FILTERS,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        placement_options: PlacementOptions | None = None,
        rebalancing: Rebalancing | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
        disk: Disk | None = None,
    ) -> None:
        given = (options, membership_options, placement_options, rebalancing)
        self._all_options = fill_options(*given)
        self._options, self._env = self._all_options.calls, Env() if env is None else env
        self._transport = make_transport(transport, tls, cluster, Role.SILO, "Silo")
        self._disk: Disk = RealDisk() if disk is None else disk
        check_kinds(
            cluster=(cluster, str),
            name=(name, str),
            can_own_queues=(can_own_queues, bool),
            insecure=(insecure, bool),
            filters=(filters, CallFilters),
            env=(self._env, Env),
        )
        check_seams(self._transport, self._disk)
        self._listen_at = read_address("address", address)
        self._advertised = read_address("advertise", advertise or address)
        check_door(self._listen_at, insecure or tls is not None, "Silo(address=...)")
        self._grains = check_grains(grains)
        self._cluster, self._name, self._filters = cluster, name, filters
        self._labels = labels_of("Silo(labels=...)", {} if labels is None else labels)
        self._made, self._secrets = list[Any](), NO_SECRETS
        own = MemoryMembershipTable(env=env) if membership is None else membership
        self._table: MembershipTable = self._plugin("millstream.membership", own)
        check_table(self._table)
        of, named = "millstream.stores", stores_of(stores)
        self._stores: dict[str, StateStore] = {at: self._plugin(of, named[at]) for at in named}
        self._parts = self._bringing = parts_of(streams, parts)
        check_needed(self._all_grains(), self._parts)
        self._can_own_queues, self._is_alone = can_own_queues, membership is None
        places = ReminderPlaces(reminders, stores, self._table, self._is_alone)
        self._parts = put_first(add_reminders(self._parts, self._grains, places, self._plugin))
        used = find_used_stores(self._stores, self._grains, self._bringing)
        self._agreement = agree(self._table, used, self._parts, self._all_options.membership)
        self._assembly: SiloAssembly | None = None
        self._services: SiloServices | None = None
        self._listeners: list[Listener] = []
        self._loops: list[asyncio.Task[None]] = []
        self._opened: list[SiloPart] = []
        self._started: list[SiloPart] = []
        self._killing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stages: asyncio.Task[None] | None = None
        self._stopped, self._stop_reason = asyncio.Event(), StopReason.STOPPED

    def _plugin(self, group: str, part: Any) -> Any:
        """Return a part itself, or make the part that a text names. The silo closes only those it
        made.
        """
        if not isinstance(part, str):
            return part
        made = load_plugin(group, part)
        self._made.append(made)
        return made

    # -- for programs

    @property
    def assembly(self) -> SiloAssembly:
        """The inside of the silo, for tests of Millstream itself.

        Raises:
            NotInCluster: The silo is not started.
        """
        if self._assembly is None:
            raise NotInCluster("this silo is not started")
        return self._assembly

    @property
    def services(self) -> SiloServices:
        """The services that parts of the silo get, for tools and tests.

        Raises:
            NotInCluster: The silo is not started.
        """
        if self._services is None:
            raise NotInCluster("this silo is not started")
        return self._services

    @property
    def address(self) -> str:
        """The address of the silo, `host:port@generation`. It is unique in the life of the cluster.

        Raises:
            NotInCluster: The silo is not started.
        """
        return self.assembly.address

    @property
    def gateway(self) -> str:
        """The address `host:port` of the silo, for `connect`.

        Raises:
            NotInCluster: The silo is not started.
        """
        return self.assembly.address.partition("@")[0]

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain, wherever it is.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.

        Raises:
            NotInCluster: The silo is not started.
        """
        return self.assembly.references.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream.

        Args:
            namespace: The namespace of the stream, such as a `StreamNamespace`.
            key: The key of the stream.

        Raises:
            NotInCluster: The silo is not started.
        """
        return self.assembly.references.stream(namespace, key)

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the silos that are in the cluster, as this silo sees them.

        Returns:
            The silos that are not dead, sorted by address.

        Raises:
            NotInCluster: The silo is not started.
        """
        return members_of(self.assembly.membership.view)

    def reminder_counts(self) -> ReminderCounts:
        """Return the reminders of this silo in numbers. All are 0 if it hosts none."""
        return counts_in(self._parts)

    @property
    def rebalancer(self) -> Rebalancer:
        """The control of rebalancing in the cluster.

        Raises:
            NotInCluster: The silo is not started.
            ConfigError: The silo was made without `rebalancing`.
        """
        found = self.assembly.rebalancing
        if found is None:
            raise ConfigError(
                f"{self.address} does not rebalance activations: pass "
                "Silo(rebalancing=Rebalancing())"
            )
        return Rebalancer(found)

    def reduce_to_bookie(self) -> None:
        """Reduce the silo to the bookies of its parts, before it starts.

        Such a silo hosts no grains, owns no queues, and opens only the parts that have a bookie.
        Settings that all silos must have alike stay those of the whole silo. `millstream run
        --bookie` calls it.

        Raises:
            ConfigError: No part has a bookie, the silo has a membership table of its own, or it was
                started.
        """
        if self._listeners or self._killing is not None:
            raise ConfigError("this silo was already started: make another Silo")
        kept: dict[str, SiloPart] = {
            name: one for name, one in self._parts.items() if isinstance(one, Metrics)
        }
        self._parts = {**kept, **bookies_of(self._parts, self._is_alone)}
        self._grains, self._bringing, self._can_own_queues = [], kept, False

    def add_metrics(self, metrics: Metrics) -> None:
        """Add metrics and health to the silo, before it starts.

        `millstream run --metrics` calls it.

        Args:
            metrics: The part, which gets the name `metrics`.

        Raises:
            ConfigError: The silo was started, or has such a part or another one of this name.
        """
        if self._listeners or self._killing is not None:
            raise ConfigError("this silo was already started: make another Silo")
        if METRICS in self._parts:
            raise ConfigError(
                f"this silo has a part named {METRICS!r} already: leave out --metrics, or that part"
            )
        self._parts = put_first({**self._parts, METRICS: metrics})
        self._bringing = {**self._bringing, METRICS: metrics}

    async def wait_stopped(self) -> StopReason:
        """Wait until the silo has stopped.

        Returns:
            The reason: `stop()` or a failed start, `kill()`, or an eviction.
        """
        await self._stopped.wait()
        return self._stop_reason

    async def __aenter__(self) -> Silo:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- starting

    async def start(self) -> None:
        """Start the silo: listen, join the cluster, open its parts, become active, and read queues.

        When it returns, the other silos know this one. If it fails or is cancelled, everything is
        undone before it raises, and the silo leaves the membership table as dead. Errors of its
        parts reach the caller. `async with` calls it.

        Raises:
            ConfigError: The silo was started before, a state of a grain names a store that the silo
                does not have, an active silo refuses this one, for example because a setting
                differs, or the membership table belongs to another cluster, or its clock differs by
                more than a minute.
            ClusterError: The silo could not join in time, or was evicted meanwhile.
            StorageUnavailable: The membership table did not answer.
        """
        if self._listeners or self._killing is not None:
            raise ConfigError("this silo was already started: make another Silo")
        check_stores_of_grains(self._all_grains(), self._stores)
        try:
            await self._join()
            await self._start_parts()
        except BaseException:
            await self.stop()
            raise
        if log.isEnabledFor(logging.INFO):
            self._tell_active()

    def _tell_active(self) -> None:
        text = "silo %s is active at %s, cluster %s, millstream %s; grains: %s; parts: %s"
        address, parts = self.address, ", ".join(self._parts) or "none"
        grains = ", ".join(cls.__millstream_type__.name for cls in self._grains) or "none"
        name = self._name or "(unnamed)"
        facts = (name, address, self._cluster, version(), grains, parts)
        log.info(text, *facts, extra={"silo": address})
        if self._is_alone:
            text = (
                "silo %s has its own membership table: no other silo can find it, not even one of"
            )
            text += " the same name and cluster; to share one, pass Silo(membership='sqlite:dir')"
            log.info(text, name, extra={"silo": address})

    async def _join(self) -> None:
        table = LimitedTable(self._table)
        table_id = table_id_of(await table.identity())
        await table.admit(self._cluster, self._env.wall_s)
        self._secrets = await find_secrets(os.environ, self._table, self._env.random_bytes)
        listener = await self._transport.listen(self._listen_at, self._accept)
        self._listeners.append(listener)
        generation = int(self._env.wall_s() * 1000)
        silo = self._assembly = self._build(f"{self._announce(listener)}@{generation}", table_id)
        silo.heart.start()
        silo.turns.ended = ""
        await silo.membership.join(self._open_parts)
        silo.loads.start()
        if silo.rebalancing is not None:
            silo.rebalancing.start()
        kinds = list(silo.references.kinds.values())
        of_activations = (silo.catalog, kinds, silo.turns)
        self._loops = [
            silo.spawn(collect_while_running(*of_activations)),
            silo.spawn(trim_while_running(*of_activations)),
        ]

    def _announce(self, listener: Listener) -> Address:
        """Return the address that others connect to."""
        if self._advertised == self._listen_at:
            return listener.address
        return self._advertised._replace(port=self._advertised.port or listener.address.port)

    async def _open_parts(self) -> None:
        for name, part in self._parts.items():
            self._opened.append(part)
            await self._begin(part, part.open(self.services, name))

    async def _start_parts(self) -> None:
        for name, part in self._parts.items():
            self._started.append(part)
            await self._begin(part, part.start(self.services, name))

    async def _begin(self, part: SiloPart, step: Awaitable[None]) -> None:
        try:
            await step
        except BaseException:
            self._opened.remove(part)
            if part in self._started:
                self._started.remove(part)
            part.abort()
            raise

    def _build(self, address: str, table_id: str) -> SiloAssembly:
        probe_at = Address(self._listen_at.host, 0)
        brought = list_brought(self._bringing)
        holder: list[SiloAssembly] = []
        probe = self._transport.listen_probe(probe_at, lambda: holder[0].heart.answer())
        self._listeners.append(probe)
        row = MemberRow(
            silo=address,
            status=Status.JOINING,
            name=self._name or address,
            probe_port=probe.address.port,
            can_own_queues=self._can_own_queues,
            grain_types=tuple(cls.__millstream_type__.name for cls in self._all_grains()),
            started_s=self._env.wall_s(),
            declarations=tuple(
                one for cls in self._all_grains() for one in cls.__millstream_type__.declarations()
            ),
            placements=placements_of(self._all_grains()),
            agreement=self._agreement,
            labels=self._labels,
            requirements=requirements_of_all(self._all_grains()),
            versions=versions_of_all(self._all_grains()),
        )
        silo = SiloAssembly(
            identity=Identity(self._cluster, address, True, table_id),
            grains=self._all_grains(),
            options=self._options,
            membership_options=self._all_options.membership,
            env=self._env,
            transport=self._transport,
            disk=self._disk,
            table=self._table,
            row=row,
            stores=self._stores,
            parts=self._parts,
            evicted=self._on_evicted,
            secrets=self._secrets,
            brought=brought,
            filters=self._filters,
            placement_options=self._all_options.placement,
            rebalancing=self._all_options.rebalancing,
            counts=counts_of(self._parts),
        )
        holder.append(silo)
        self._services = SiloServices(silo, row.name, brought)
        attach_reminders(self._parts, silo)
        attach_metrics(self._parts, silo, self._services)
        return silo

    def _all_grains(self) -> list[type[Grain]]:
        """Return the user's grain classes, and those that parts bring."""
        return list(dict.fromkeys([*self._grains, *list_brought(self._bringing)]))

    def _accept(self, link: Link) -> None:
        if self._assembly is None or self._killing is not None:
            link.abort()
            return
        self._assembly.visitors.accept(link)

    # -- stopping

    async def stop(self) -> None:
        """Stop the silo gracefully. `async with` calls it.

        Running calls end, for at most `RuntimeOptions.drain_s`; queued calls go to other silos. A
        repeated call, also while the silo stops, waits for the same stop. The stop continues if the
        caller is cancelled. `kill()` cuts it short.

        Raises:
            NotInCluster: The running event loop is not the loop of the silo.
        """
        self._check_loop()
        if self._stopping is None:
            loop, context = asyncio.get_running_loop(), self._env.new_context()
            self._stopping = loop.create_task(self._stop(), context=context)
        await asyncio.shield(self._stopping)

    def _check_loop(self) -> None:
        silo = self._assembly
        if silo is not None and not self._stopped.is_set():
            if asyncio.get_running_loop() is not silo.loop:
                raise NotInCluster(other_loop(f"silo {self.address}"))

    async def _stop(self) -> None:
        if self._assembly is not None and not self._stopped.is_set():
            loop = asyncio.get_running_loop()
            self._stages = loop.create_task(self._leave_in_order(self._assembly))
            await asyncio.wait([self._stages])
        await asyncio.shield(self._start_killing(StopReason.STOPPED))

    async def _leave_in_order(self, silo: SiloAssembly) -> None:
        for stage in (
            self._close_gateway,
            self._hand_queues_over,
            self._drain,
            self._answer_all,
            self._close_parts,
            partial(self._leave, Status.DEAD),
        ):
            if not silo.turns.ended:  # otherwise it was evicted meanwhile
                await stage(silo)

    async def _close_gateway(self, silo: SiloAssembly) -> None:
        silo.visitors.close_gateway()

    async def _hand_queues_over(self, silo: SiloAssembly) -> None:
        """Stop the parts while all grains are here, so that running deliveries end and are
        acknowledged.
        """
        while self._started:
            await self._attempt(self._started[-1].stop())
            self._started.pop()

    async def _drain(self, silo: SiloAssembly) -> None:
        """Let turns end. Activations end with them, and leave the directory."""
        await self._leave(Status.STOPPING, silo)
        silo.visitors.say_goodbye()
        await silo.catalog.end_all(DeactivationReason.SILO_STOPS, self._options.drain_s)

    async def _close_parts(self, silo: SiloAssembly) -> None:
        while self._opened:
            await self._attempt(self._opened.pop().aclose())

    async def _leave(self, status: Status, silo: SiloAssembly) -> None:
        await self._attempt(silo.membership.leave(status))

    async def _answer_all(self, silo: SiloAssembly) -> None:
        """Wait until all calls of others are answered, at most for `drain_s`.

        A silo or client that got the goodbye closes its connection when it has its answers. Only
        then is it certain that no call of it is still on the way. Programs that wait for no answer
        get `GOODBYE_S` for that.
        """
        started = silo.loop.time()
        while silo.visitors.inbound:
            waited = silo.loop.time() - started
            is_serving = silo.visitors.is_serving
            if waited >= (self._options.drain_s if is_serving else GOODBYE_S):
                return
            await asyncio.sleep(ANSWER_LOOK_S)

    async def _attempt(self, step: Awaitable[None]) -> None:
        """Do one step of stopping. A failure is logged, and does not prevent the next steps."""
        try:
            await step
        except MillstreamError as error:
            log.warning("%s: a step of the shutdown failed: %s", self._listen_at, error)
        except Exception:
            log.exception("%s: a step of the shutdown failed", self._listen_at)

    def _on_evicted(self, reason: str) -> None:
        log.error("%s was evicted and stops: %s", self.address, reason)
        self._start_killing(StopReason.EVICTED)

    async def kill(self) -> None:
        """Stop the silo at once, without a goodbye, as after an eviction.

        Running turns are cancelled. The other silos evict this one when they notice. Repeated calls
        do nothing.

        Raises:
            NotInCluster: The running event loop is not the loop of the silo.
        """
        self._check_loop()
        await asyncio.shield(self._start_killing(StopReason.KILLED))

    def _start_killing(self, reason: StopReason) -> asyncio.Task[None]:
        if self._killing is None:
            self._stop_reason = reason
            if self._stages is not None:
                self._stages.cancel()
            for listener in self._listeners:  # close at once: the loop may already accept links
                listener.close()
            for task in self._loops:
                task.cancel()
            self._killing = asyncio.get_running_loop().create_task(self._kill())
        return self._killing

    async def _kill(self) -> None:
        try:
            if self._assembly is not None:
                await self._end(self._assembly)
            for part in self._made:
                await self._attempt(part.aclose())
        finally:
            self._stopped.set()
        await links_closed()

    async def _end(self, silo: SiloAssembly) -> None:
        silo.turns.ended = silo.why_ended()
        for part in self._opened:
            part.abort()
        self.services.tasks.cancel()
        silo.heart.close()
        await silo.membership.aclose()
        silo.directory.close()
        silo.loads.close()
        if silo.rebalancing is not None:
            silo.rebalancing.close()
        silo.clients.close()
        await silo.catalog.end_by_force()
        await silo.catalog.aclose()
        silo.visitors.close()
        await silo.engine.aclose(silo.why_ended())
