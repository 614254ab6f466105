"""A silo's inside: catalog, directory, membership and the routing between them.

Owns: what arrives (`serve`), and the parts of a silo. Not: where calls go (`router`), starting and
stopping (`silo`). Invariant: a call from a client is relayed, one from a silo is taken here or sent
back with a redirect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.runtime.calls.callee import Served
from millstream.runtime.calls.engine import Host
from millstream.runtime.calls.relay import Relay
from millstream.runtime.calls.system_target import SystemTarget, Targets, specs_of
from millstream.runtime.cluster.directory.directory import Directory
from millstream.runtime.cluster.gateways import GatewayTarget, Loads
from millstream.runtime.cluster.heart import LoopHeart
from millstream.runtime.cluster.member import Member
from millstream.runtime.cluster.placement import placement_in
from millstream.runtime.cluster.router import SiloRouter
from millstream.runtime.cluster.table import MemberRow, MembershipTable, Status, TableView
from millstream.runtime.codec.failures import describe
from millstream.runtime.definition.grain import Contract
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.placement import Placement
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, MillstreamError, Overloaded, Rejected
from millstream.runtime.options import MembershipOptions, RuntimeOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog, GrainTable
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure, Redirect
from millstream.runtime.wire.transport import Transport

from .visitors import Visitors

__all__ = ["SiloHost"]

log = logging.getLogger("millstream.silo")


class SiloHost(Host):
    """Everything that one silo consists of."""

    is_silo = True

    def __init__(
        self,
        *,
        cluster: str,
        address: str,
        grains: Sequence[type[Contract]],
        options: RuntimeOptions,
        membership_options: MembershipOptions,
        env: Env,
        transport: Transport,
        table: MembershipTable,
        row: MemberRow,
        stores: Mapping[str, StateStore],
    ) -> None:
        super().__init__(
            cluster=cluster,
            address=address,
            grains=grains,
            options=options,
            env=env,
            transport=transport,
        )
        self.membership_options = membership_options
        self.targets = Targets(self)
        self.parts: Mapping[str, object] = {}
        self._stores = stores
        self.heart = LoopHeart(self.loop, address, membership_options.unresponsive_after_s)
        self.catalog = Catalog(self)
        self.membership = Member(
            row,
            table,
            cluster=cluster,
            options=membership_options,
            targets=self.targets,
            transport=transport,
            env=env,
            tasks=Tasks(self.loop, env.new_context),
            lag_s=lambda: self.heart.lag_s,
            foreign=self.peers.foreign,
            evicted=self.evicted,
        )
        self.loads = Loads(
            address,
            self.membership,
            self.targets,
            Tasks(self.loop, env.new_context),
            lambda: self.catalog.count,
        )
        self.targets.add(GatewayTarget(self.membership, self.loads))
        self.directory = Directory(
            address,
            members=self.membership,
            holder=self.catalog,
            targets=self.targets,
            tasks=Tasks(self.loop, env.new_context),
            cache_max=options.directory_cache_max,
        )
        self.router = self.silo_router = SiloRouter(self)
        self.visitors = Visitors(self.end, self.peers.known)
        self.end.open(inbox=self, welcome=self.visitors)
        self.on_evicted: Callable[[str], None] = lambda reason: None
        self.membership.watch(self._follow)

    def _follow(self, view: TableView) -> None:
        self.directory.apply_view(view)
        live = {row.silo for row in view.rows if self.membership.is_live(row.silo)}
        self.visitors.follow(view, live)

    def evicted(self, reason: str = "") -> None:
        """The table says that this silo is dead."""
        self.is_running = False
        self.on_evicted(reason)

    # -- questions

    def store(self, name: str) -> StateStore:
        """The state store of a name. Raises ConfigError."""
        found = self._stores.get(name)
        if found is None:
            raise ConfigError(
                f"no store is named {name!r}; this silo has {', '.join(self._stores) or 'none'}"
            )
        return found

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError naming those that there are."""
        found = self.parts.get(name)
        if found is None:
            known = ", ".join(map(repr, self.parts)) or "none"
            raise ConfigError(
                f"this silo has no part named {name!r}; it has {known}: give it "
                f"Silo(streams={{{name!r}: ...}}), or `parts=` for what is no stream provider"
            )
        return found

    def silos_hosting(self, name: str) -> list[str]:
        """Active silos that host a grain type, sorted."""
        active = self.membership.active()
        rows = {row.silo: row for row in self.membership.view.rows}
        return [silo for silo in active if name in rows[silo].grain_types]

    def hosted_names(self) -> list[str]:
        """Grain types that some active silo hosts."""
        rows = self.membership.view.rows
        return sorted({n for row in rows if row.status is Status.ACTIVE for n in row.grain_types})

    def placement_of(self, name: str) -> Placement:
        """The placement strategy of a type, by its definition here, else by who hosts it."""
        hosted = self.tables[name].hosted if name in self.tables else None
        if hosted is not None:
            return hosted.options.placement
        return placement_in(self.membership.view, name)

    def spec_of(self, table: GrainTable, method: str) -> MethodSpec:
        """The spec of a wire name. Raises Rejected."""
        hosted = table.hosted
        spec = None if hosted is None else hosted.spec_of(method)
        spec = spec or self.extension_specs.get(method)
        if spec is None:
            raise Rejected(f"grain type {table.name!r} has no method {method!r} at {self.address}")
        return spec

    # -- parts that are added

    def add_extension(self, name: str, cls: type[Any], make: Callable[[Activation], Any]) -> None:
        """Let activations be extended: an object of `cls` is made when a call to `name.method`
        first arrives."""
        self.extension_specs.update(specs_of(cls, name))
        self.catalog.extension_types[name] = make

    # -- what arrives

    def serve(self, peer: Peer, call: Call, /) -> None:
        """Take a call: run it here, relay it, or refuse it."""
        try:
            self._serve(peer, call)
        except MillstreamError as error:
            body = msgspec.Raw(describe(error, f"{call.kind}/{call.key}"))
            peer.refuse(call.id, Failure(call.id, body))

    def _serve(self, peer: Peer, call: Call) -> None:
        if call.kind.startswith("$"):
            self._serve_target(peer, call)
            return
        table = self.tables.get(call.kind)
        activation = None if table is None else table.activations.get(call.key)
        if not peer.is_silo and (
            activation is None or self.silo_router.has_line(call.kind, call.key)
        ):
            self._relay(peer, call, table)
            return
        if table is None or table.hosted is None:
            raise Rejected(f"{self.address} does not host grain type {call.kind!r}")
        if not self.is_running or (activation is None and not self.catalog.is_accepting):
            if not call.id:
                self.router.resend(call)
                return
            peer.watch_served(call.id, None)
            peer.answer(call.id, Redirect(call.id, ""))
            return
        spec = self.spec_of(table, call.method)
        if activation is None:
            peer.watch_served(call.id, None)  # a call that is refused makes no activation
            activation = self.catalog.obtain(table, call.key)
            peer.forget_served(call.id)
        served = Served(self, peer, call, spec)
        self._watch(peer, served)
        served.submit(activation)

    def _watch(self, peer: Peer, served: Served) -> None:
        try:
            peer.watch_served(served.call.id, served)
        except Overloaded as error:
            served.fail(error)  # its deadline is watched no longer; `serve` answers the call
            raise

    def _serve_target(self, peer: Peer, call: Call) -> None:
        target = self.targets.find(f"{call.kind}/{call.key}" if call.key else call.kind)
        spec = None if target is None else target.target_specs.get(call.method)
        if target is None or spec is None:
            raise Rejected(self._explain_target(call, target))
        served = Served(self, peer, call, spec)
        served.target = target
        self._watch(peer, served)
        self.runners.push(served)

    def _explain_target(self, call: Call, target: SystemTarget | None) -> str:
        """What is not there, and what is."""
        name = f"{call.kind}/{call.key}" if call.key else call.kind
        if target is not None:
            methods = ", ".join(sorted(target.target_specs))
            return f"{self.address}: {name} has no method {call.method!r}; it has: {methods}"
        kind = name.partition("/")[0]
        names = self.targets.names()
        alike = [other for other in names if other.partition("/")[0] == kind]
        return (
            f"{self.address} has no system target {name} (asked to {call.method}); "
            f"it has: {', '.join(alike or names)}"
        )

    def _relay(self, peer: Peer, call: Call, table: GrainTable | None) -> None:
        if table is None:
            if call.kind not in self.hosted_names():
                raise Rejected(
                    f"no active silo hosts grain type {call.kind!r}; the cluster hosts "
                    f"{', '.join(self.hosted_names()) or 'none'}"
                )
            table = self.tables[call.kind] = GrainTable(self, call.kind, None)
        relay = Relay(self, peer, call, table)
        peer.watch_served(call.id, relay)
        relay.start()

    def has_left(self, silo: str) -> bool:
        """Stopping silos take no new calls."""
        return self.visitors.has_left(silo)

    def peer_lost(self, name: str) -> None:
        """Nothing to do: callers were told, and the prober watches the silo."""
        log.debug("%s lost its connection to %s", self.address, name)
