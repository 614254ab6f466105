"""A silo: builds its parts, starts and stops them in order.

Owns: the stages of starting and stopping. Not: any logic of the parts. Invariants: a silo is in the
table before it serves, and active before it hosts; it stops as: gateway, queues, activations (each
when its turns have ended), answers, providers, table
(docs/decisions/0006-the-order-of-stopping.md); a start that fails is undone in the same order; what
it made from text it closes, what it was given it does not; an evicted silo stops at once and writes
nothing.
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
from millstream.runtime.cluster.placement import placements_of
from millstream.runtime.cluster.table import (
    MemberInfo,
    MemberRow,
    MembershipTable,
    MemoryMembershipTable,
    Status,
    members_of,
    table_id_of,
)
from millstream.runtime.definition.grain import Contract, DeactivationReason, Grain, Openable
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.disk.real import RealDisk
from millstream.runtime.disk.seam import Disk
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, MillstreamError, NotInCluster
from millstream.runtime.options import MembershipOptions, RuntimeOptions
from millstream.runtime.plugins import load_plugin
from millstream.runtime.turns.collector import collect_while_running
from millstream.runtime.turns.request import other_loop
from millstream.runtime.version import version
from millstream.runtime.wire.address import Address, check_door
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.secret import NO_SECRETS, find_secrets
from millstream.runtime.wire.transport import (
    Link,
    Listener,
    TcpTransport,
    Transport,
    links_closed,
)

from .agreement import agreement_of, check_stores, find_used_stores
from .arguments import (
    check_grains,
    check_kinds,
    check_seams,
    check_stores_of_grains,
    check_table,
    parts_of,
    read_address,
    stores_of,
)
from .assembly import SiloAssembly
from .part import SiloPart, bookies_of, check_needed, list_brought
from .services import SiloServices

__all__ = ["Silo", "StopReason"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")

log = logging.getLogger("millstream.silo")

ANSWER_LOOK_S = 0.005
GOODBYE_S = 1.0


class StopReason(Enum):
    """Why a silo has stopped.

    STOPPED: `stop()`, or a start that failed. KILLED: `kill()`. EVICTED: the other silos, or one
    that took its address, have ended its membership: what it had runs elsewhere by now.
    """

    STOPPED = "stopped"
    KILLED = "killed"
    EVICTED = "evicted"


class Silo:
    """One member of a cluster: `async with Silo(grains=[...]) as silo`.

    Args:
        grains: the grain classes that this silo hosts.
        address: where it listens, `host:port`; port 0 takes a free one.
        advertise: where others reach it, if that differs; port 0: the one it listens on.
        cluster: silos and clients of different clusters refuse each other.
        membership: the table, or `sqlite:directory`; default: a table of its own, in memory.
        stores: state stores by name, objects or `sqlite:directory`; default: in memory.
        streams: stream providers by name.
        parts: other parts by name: what `streams` does not say of itself.
        name: shown to people and used by balancers.
        can_own_queues: False for a silo that hosts grains but reads no queues.
        insecure: True to listen elsewhere than on loopback: nothing on the wire is encrypted yet,
            and whoever reaches the port may call every grain.
        env, transport, disk: in a simulation, the simulator's; default: those of this machine.
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
        streams: Mapping[str, SiloPart] | None = None,
        parts: Mapping[str, SiloPart] | None = None,
        name: str = "",
        can_own_queues: bool = True,
        insecure: bool = False,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
        disk: Disk | None = None,
    ) -> None:
        watching = MembershipOptions() if membership_options is None else membership_options
        self._options = RuntimeOptions() if options is None else options
        self._membership_options = watching
        self._env = Env() if env is None else env
        self._transport = TcpTransport() if transport is None else transport
        self._disk: Disk = RealDisk() if disk is None else disk
        check_kinds(
            cluster=(cluster, str),
            name=(name, str),
            can_own_queues=(can_own_queues, bool),
            insecure=(insecure, bool),
            options=(self._options, RuntimeOptions),
            membership_options=(watching, MembershipOptions),
            env=(self._env, Env),
        )
        check_seams(self._transport, self._disk)
        self._listen_at = read_address("address", address)
        self._advertised = read_address("advertise", advertise or address)
        check_door(self._listen_at, insecure, "Silo(address=...)")
        self._grains = check_grains(grains)
        self._cluster = cluster
        self._made: list[Any] = []
        own = MemoryMembershipTable(env=env) if membership is None else membership
        self._table: MembershipTable = self._plugin("millstream.membership", own)
        check_table(self._table)
        self._stores: dict[str, StateStore] = {
            key: self._plugin("millstream.stores", store)
            for key, store in stores_of(stores).items()
        }
        self._parts = self._bringing = parts_of(streams, parts)
        check_needed(self._all_grains(), self._parts)
        self._name = name
        self._can_own_queues = can_own_queues
        self._secrets = NO_SECRETS
        stores = find_used_stores(self._stores, self._grains, self._parts)
        check_stores(self._table, stores)
        self._agreement = agreement_of(stores, self._membership_options, self._parts)
        self._is_alone = membership is None
        self._assembly: SiloAssembly | None = None
        self._services: SiloServices | None = None
        self._listeners: list[Listener] = []
        self._loops: list[asyncio.Task[None]] = []
        self._opened: list[SiloPart] = []
        self._started: list[SiloPart] = []
        self._killing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stages: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._stop_reason = StopReason.STOPPED

    def _plugin(self, group: str, part: Any) -> Any:
        """The part itself, or what its text names; that is closed when the silo ends."""
        if not isinstance(part, str):
            return part
        made = load_plugin(group, part)
        self._made.append(made)
        return made

    # -- what a program does with it

    @property
    def assembly(self) -> SiloAssembly:
        """The inside, for tools and tests. Raises NotInCluster before start."""
        if self._assembly is None:
            raise NotInCluster("this silo is not started")
        return self._assembly

    @property
    def services(self) -> SiloServices:
        """What its parts are given; for tools and tests. Raises NotInCluster before start."""
        if self._services is None:
            raise NotInCluster("this silo is not started")
        return self._services

    @property
    def address(self) -> str:
        """`host:port@generation`."""
        return self.assembly.address

    @property
    def gateway(self) -> str:
        """`host:port`, for `connect`."""
        return self.assembly.address.partition("@")[0]

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain."""
        return self.assembly.references.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream."""
        return self.assembly.references.stream(namespace, key)

    def members(self) -> tuple[MemberInfo, ...]:
        """The silos that are in the cluster, as this one sees it, sorted by address.

        Raises NotInCluster before start.
        """
        return members_of(self.assembly.membership.view)

    def reduce_to_bookie(self) -> None:
        """Make it a silo for the bookies of its parts: no grains, no queues, no other parts. What
        silos must have alike stays that of the whole silo.

        Raises ConfigError: none of its parts has a bookie, or nobody could find it; it was started.
        """
        if self._listeners or self._killing is not None:
            raise ConfigError("this silo was started before: make another one")
        self._parts = bookies_of(self._parts, self._is_alone)
        self._grains, self._bringing, self._can_own_queues = [], {}, False

    async def wait_stopped(self) -> StopReason:
        """Until this silo has stopped; returns why: by `stop()`, by `kill()`, or evicted."""
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
        """Listen, join, open streams, become active, read queues.

        What fails or is cancelled is undone before this raises: the silo leaves the table as dead.
        Raises ConfigError for a silo that was started before, and for a grain whose state names a
        store that the silo has not.
        """
        if self._listeners or self._killing is not None:
            raise ConfigError("this silo was started before: make another one")
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
            text = "silo %s has a membership table of its own: no other silo can find it, also none"
            text += " of the same name and cluster; to share one, Silo(membership='sqlite:dir')"
            log.info(text, name, extra={"silo": address})

    async def _join(self) -> None:
        self._secrets = find_secrets(os.environ, self._table, self._env.random_bytes)
        table_id = table_id_of(await LimitedTable(self._table).identity())
        listener = await self._transport.listen(self._listen_at, self._accept)
        self._listeners.append(listener)
        generation = int(self._env.wall_s() * 1000)
        silo = self._assembly = self._build(f"{self._announce(listener)}@{generation}", table_id)
        silo.heart.start()
        silo.turns.ended = ""
        await silo.membership.join(self._open_parts)
        silo.loads.start()
        kinds = list(silo.references.kinds.values())
        self._loops = [silo.spawn(collect_while_running(silo.catalog, kinds, silo.turns))]

    def _announce(self, listener: Listener) -> Address:
        """The address that others connect to."""
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
        )
        silo = SiloAssembly(
            identity=Identity(self._cluster, address, True, table_id),
            grains=self._all_grains(),
            options=self._options,
            membership_options=self._membership_options,
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
        )
        holder.append(silo)
        self._services = SiloServices(silo, row.name, brought)
        return silo

    def _all_grains(self) -> list[type[Grain]]:
        """The user's grains, and those that parts bring."""
        return list(dict.fromkeys([*self._grains, *list_brought(self._bringing)]))

    def _accept(self, link: Link) -> None:
        if self._assembly is None or self._killing is not None:
            link.abort()
            return
        self._assembly.visitors.accept(link)

    # -- stopping

    async def stop(self) -> None:
        """Stop gracefully: calls that run end, queued calls go to other silos. Repeatable, also
        while it stops already: whoever asks waits for the one stop, which goes on if he is
        cancelled; `kill()` cuts it short. Raises NotInCluster in an event loop not its own."""
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
            if not silo.turns.ended:  # else it was evicted meanwhile
                await stage(silo)

    async def _close_gateway(self, silo: SiloAssembly) -> None:
        silo.visitors.close_gateway()

    async def _hand_queues_over(self, silo: SiloAssembly) -> None:
        """While all grains are here: deliveries that are out end, and their positions are kept."""
        while self._started:
            await self._attempt(self._started[-1].stop())
            self._started.pop()

    async def _drain(self, silo: SiloAssembly) -> None:
        """Let turns end; activations end with them and leave the directory."""
        await self._leave(Status.STOPPING, silo)
        silo.visitors.say_goodbye()
        await silo.catalog.end_all(DeactivationReason.SILO_STOPS, self._options.drain_s)

    async def _close_parts(self, silo: SiloAssembly) -> None:
        while self._opened:
            await self._attempt(self._opened.pop().aclose())

    async def _leave(self, status: Status, silo: SiloAssembly) -> None:
        await self._attempt(silo.membership.leave(status))

    async def _answer_all(self, silo: SiloAssembly) -> None:
        """Answer what others asked or had relayed, at most for `drain_s`.

        Who was told goodbye closes when it has its answers; only then is it sure that no call of
        it is still on the way. Other programs get `GOODBYE_S` for that.
        """
        started = silo.loop.time()
        while silo.visitors.inbound:
            waited = silo.loop.time() - started
            is_serving = silo.visitors.is_serving
            if waited >= (self._options.drain_s if is_serving else GOODBYE_S):
                return
            await asyncio.sleep(ANSWER_LOOK_S)

    async def _attempt(self, step: Awaitable[None]) -> None:
        """One step of stopping; a failure is logged and does not keep the next from running."""
        try:
            await step
        except MillstreamError as error:
            log.warning("%s: while stopping: %s", self._listen_at, error)
        except Exception:
            log.exception("%s: while stopping", self._listen_at)

    def _on_evicted(self, reason: str) -> None:
        log.error("%s was evicted and stops: %s", self.address, reason)
        self._start_killing(StopReason.EVICTED)

    async def kill(self) -> None:
        """Stop without goodbye, as after an eviction. Repeatable. Raises NotInCluster as `stop`."""
        self._check_loop()
        await asyncio.shield(self._start_killing(StopReason.KILLED))

    def _start_killing(self, reason: StopReason) -> asyncio.Task[None]:
        if self._killing is None:
            self._stop_reason = reason
            if self._stages is not None:
                self._stages.cancel()
            for listener in self._listeners:  # at once: the loop may be accepting already
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
        await silo.catalog.end_by_force()
        await silo.catalog.aclose()
        silo.visitors.close()
        await silo.engine.aclose(silo.why_ended())
