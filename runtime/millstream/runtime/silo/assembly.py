"""The parts of a silo, connected with each other.

This module makes them, bottom-up. Two connections are made late: the directory registers the
activations that the catalog starts, and the objects made last take arriving calls. The module
`silo` starts and stops the parts. No part gets the assembly itself; each gets only the objects that
it uses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.runtime.calls.arrivals import Arrivals
from millstream.runtime.calls.engine import CallEngine
from millstream.runtime.calls.result_reader import RESULT_SPECS
from millstream.runtime.calls.system_target import Targets, specs_of
from millstream.runtime.cluster.client_search import ClientSearches
from millstream.runtime.cluster.clients import AttachedClients, ClientTarget
from millstream.runtime.cluster.directory.directory import GrainDirectory
from millstream.runtime.cluster.gateways import GatewayTarget, Loads
from millstream.runtime.cluster.heart import LoopHeart
from millstream.runtime.cluster.member import Member
from millstream.runtime.cluster.migrations import Migrations
from millstream.runtime.cluster.placer import Placer
from millstream.runtime.cluster.rebalancer import ActivationRebalancing
from millstream.runtime.cluster.router import SiloRouter
from millstream.runtime.cluster.table import MemberRow, MembershipTable, TableView
from millstream.runtime.definition.filters import CallFilters
from millstream.runtime.definition.grain import Contract
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.definition.streamed_method import RESULTS
from millstream.runtime.disk.seam import Disk
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError
from millstream.runtime.options import (
    MembershipOptions,
    PlacementOptions,
    Rebalancing,
    RuntimeOptions,
)
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.call_counts import CallCounts
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.results import GrainResults, ResultCalls
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.secret import Secrets
from millstream.runtime.wire.transport import Transport

from .visitors import Visitors

__all__ = ["SiloAssembly"]

log = logging.getLogger("millstream.silo")


class SiloAssembly:
    """Everything that one silo consists of.

    Args:
        parts: The parts of the silo, by name.
        evicted: Called when the table says that this silo is dead.
        secrets: The secrets by which silos recognise each other and operators.
        brought: The grain classes that its parts bring.
        filters: Run around the calls of this silo.
        placement_options: How placement weighs the load of silos.
        rebalancing: How activations are evened out. None: not at all.
        counts: Counts the calls of this silo. None: nobody does.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        grains: Sequence[type[Contract]],
        options: RuntimeOptions,
        membership_options: MembershipOptions,
        env: Env,
        transport: Transport,
        disk: Disk,
        table: MembershipTable,
        row: MemberRow,
        stores: Mapping[str, StateStore],
        parts: Mapping[str, object],
        evicted: Callable[[str], None],
        secrets: Secrets,
        brought: Sequence[type[Contract]],
        filters: CallFilters,
        placement_options: PlacementOptions,
        rebalancing: Rebalancing | None,
        counts: CallCounts | None,
    ) -> None:
        self.identity = identity
        self.address = identity.address
        self.cluster = identity.cluster
        self.options = options
        self.membership_options = membership_options
        self.placement_options = placement_options
        self.env = env
        self.transport = transport
        self.disk = disk
        self.parts = parts
        self._stores = stores
        self._evicted = evicted
        engine = self.engine = CallEngine(
            identity,
            grains,
            options,
            env,
            transport,
            self._has_left,
            self._on_lost,
            self.part,
            secrets,
            brought,
            filters,
            counts,
        )
        self.loop, self.turns = engine.loop, engine.turns
        self.peers, self.references = engine.peers, engine.references
        silent_s = membership_options.unresponsive_after_s
        self.heart = LoopHeart(self.loop, self.address, silent_s, identity.table_id)
        self.targets = Targets(self.address, self.peers, engine.remote)
        self.membership = self._make_member(row, table)
        tasks, kinds = engine.new_tasks(), engine.references.kinds.values()
        self.catalog = Catalog(self.address, self.turns, tasks, self.store, self._on_learned, kinds)
        self.loads = self._make_loads()
        self.targets.add(GatewayTarget(self.address, self.membership, self.loads))
        self.directory = self.catalog.registrar = GrainDirectory(
            self.address,
            members=self.membership,
            holder=self.catalog,
            targets=self.targets,
            tasks=engine.new_tasks(),
            cache_max=options.directory_cache_max,
        )
        self._open(engine)
        self.rebalancing = None if rebalancing is None else self._make_rebalancing(rebalancing)
        self.membership.watch(self._follow)

    def _open(self, engine: CallEngine) -> None:
        """Make the objects that find grains and clients, and take calls."""
        self.clients = AttachedClients(
            self.address,
            self.turns,
            engine.new_tasks(),
            self.directory,
        )
        self.targets.add(ClientTarget(self.clients))
        self.client_searches = ClientSearches(
            self.address,
            self.turns,
            engine.new_tasks(),
            self.clients,
            self.directory,
            self.peers,
            self.env.wall_s,
        )
        self.placer = Placer(
            self.address,
            self.turns,
            self.membership,
            self.loads,
            self.targets,
            self.references.kinds,
            self.env.choice,
            self.placement_options,
        )
        self.router = SiloRouter(
            self.address,
            self.turns,
            engine.tasks,
            self.membership,
            self.directory,
            self.catalog,
            self.peers,
            self.placer,
            self.client_searches,
        )
        self.catalog.mover = Migrations(
            self.address,
            self.catalog,
            self.targets,
            self.references.kinds,
            self.placer,
            self.options.migration_bytes_max,
        )
        engine.open(self.router, self.catalog.of, None)
        self._add_results(engine.new_tasks())
        self.visitors = Visitors(engine.end, self.peers.list_known, self.clients.lose)
        arrivals = Arrivals(
            self.address,
            self.turns,
            self.references,
            self.catalog,
            self.targets,
            self.router,
            engine.callee,
            self.placer.check_hosted,
            self.router.is_settling,
            self.client_searches,
        )
        engine.end.open(inbox=arrivals, welcome=self.visitors)

    def _make_member(self, row: MemberRow, table: MembershipTable) -> Member:
        return Member(
            row,
            table,
            options=self.membership_options,
            targets=self.targets,
            transport=self.transport,
            env=self.env,
            tasks=self.engine.new_tasks(),
            lag_s=lambda: self.heart.lag_s,
            refusals=self.peers.refusals,
            table_id=self.identity.table_id,
            evicted=self.on_evicted,
        )

    def _make_loads(self) -> Loads:
        return Loads(
            self.address,
            self.membership,
            self.targets,
            self.engine.new_tasks(),
            lambda: self.catalog.count,
            self.env.measure,
            lambda: self.heart.lag_s,
            self.placement_options.smoothing_s,
        )

    def _make_rebalancing(self, options: Rebalancing) -> ActivationRebalancing:
        return ActivationRebalancing(
            self.address,
            options,
            catalog=self.catalog,
            placer=self.placer,
            loads=self.loads,
            targets=self.targets,
            tasks=self.engine.new_tasks(),
            kinds=self.references.kinds,
            active=self.membership.active,
            roll=self.env.choice,
        )

    # -- bindings

    def _on_learned(self, kind: str, key: str, silo: str) -> None:
        self.router.learn(kind, key, silo)

    def _has_left(self, silo: str) -> bool:
        """Return whether a silo takes no new calls because it is stopping."""
        return self.visitors.has_left(silo)

    def _on_lost(self, name: str) -> None:
        """Only log it: the callers got their error, and the prober watches the silo."""
        log.debug("%s lost its connection to %s", self.address, name)

    def _follow(self, view: TableView) -> None:
        self.directory.apply_view(view)
        self.client_searches.follow(view)
        live = {row.silo for row in view.rows if self.membership.is_live(row.silo)}
        self.visitors.follow(view, live)

    def on_evicted(self, reason: str = "") -> None:
        """Handle that the table says that this silo is dead."""
        self.turns.ended = self.why_ended()
        self._evicted(reason)

    def why_ended(self) -> str:
        """Return the error text for callers once this silo has ended."""
        return f"silo {self.address} was stopped or evicted: use a running silo, or start another"

    def spawn(self, coro: Any) -> asyncio.Task[Any]:
        """Start a background task of the silo. Its failure is logged."""
        return self.engine.tasks.start(coro)

    # -- found by name

    def store(self, name: str) -> StateStore:
        """Return the state store with this name. Raises ConfigError if the silo has none."""
        found = self._stores.get(name)
        if found is None:
            raise ConfigError(
                f"this silo has no store named {name!r}; it has {', '.join(self._stores) or 'none'}"
            )
        return found

    def part(self, name: str, /) -> Any:
        """Return the silo's part of a name. ConfigError lists those that there are."""
        found = self.parts.get(name)
        if found is None:
            known = ", ".join(map(repr, self.parts)) or "none"
            raise ConfigError(
                f"this silo has no part named {name!r}; it has {known}: pass "
                f"Silo(streams={{{name!r}: ...}}), or `parts=` for a part of another kind"
            )
        return found

    def _add_results(self, tasks: Tasks) -> None:
        """Extend activations by the generators of their streamed results."""
        self.engine.callee.extend(dict(RESULT_SPECS))
        self.turns.extensions[RESULTS] = lambda activation: ResultCalls(
            GrainResults(activation, self.turns, tasks, self.env.new_context)
        )

    def add_extension(self, name: str, cls: type[Any], make: Callable[[Activation], Any]) -> None:
        """Extend activations: `make` is called when the first call to `name.method` arrives."""
        self.engine.callee.extend(specs_of(cls, name))
        self.turns.extensions[name] = make
