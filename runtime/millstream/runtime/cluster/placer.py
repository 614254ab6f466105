"""The silo of a new activation: the candidates in the newest view, and the choice among them.

`Placer` owns the placements of the newest view of this silo, and the errors if no silo is suitable.
The strategies are in `placement`. `router` asks `Placer` after the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.definition.labels import fits, show_labels, show_requirements
from millstream.runtime.definition.placement import (
    HASHED,
    LEAST_LOADED,
    PlacementCandidate,
    PlacementRequest,
)
from millstream.runtime.definition.versions import find_version, serves, show_versions
from millstream.runtime.errors import (
    CallTimeout,
    MillstreamError,
    NoSuitableSilo,
    NotHosted,
    Overloaded,
    SiloUnavailable,
    VersionNotHosted,
)
from millstream.runtime.options import PlacementOptions
from millstream.runtime.text import show_text
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns

from .gateways import Loads
from .load import choose_least_loaded
from .member import Member
from .placement import HostedTypes, TypePlacement, choose_by, choose_silo
from .table import Status

__all__ = ["Placer"]

log = logging.getLogger("millstream.placement")

SHOWN_MAX = 5  # silos in the text of an error


class PlacementTarget(SystemTarget):
    """The `$placement` target: it chooses silos for silos that do not host the type."""

    target_name = "$placement"

    def __init__(self, placer: Placer) -> None:
        self._placer = placer

    async def choose(self, name: str, key: str, caller: str) -> str:
        """Return the address of the silo for an activation. `caller` is the silo of the caller."""
        return self._placer.choose_for(name, key, caller)

    async def choose_at(self, name: str, key: str, caller: str, version: int) -> str:
        """Choose as `choose` does, for a call that wants a version of the type or a later one."""
        return self._placer.choose_for(name, key, caller, version)


class Placer:
    """Chooses silos for the activations that this silo's callers need.

    Args:
        kinds: the kinds of this process, by name.
        roll: returns an index below its argument. It is the only source of chance in placement.
        options: how `LEAST_LOADED` weighs loads.
    """

    def __init__(
        self,
        address: str,
        turns: Turns,
        member: Member,
        loads: Loads,
        targets: Targets,
        kinds: Mapping[str, GrainKind],
        roll: Callable[[int], int],
        options: PlacementOptions,
    ) -> None:
        self._address = address
        self._turns = turns
        self._member = member
        self._loads = loads
        self._targets = targets
        self._kinds = kinds
        self._roll = roll
        self._options = options
        self._types = HostedTypes(member.view)
        targets.add(PlacementTarget(self))

    def _find(self, kind: GrainKind) -> TypePlacement | None:
        """Return the placement of a type in the newest view, or None if no silo hosts it."""
        view = self._member.view
        if self._types.view is not view:
            self._types = HostedTypes(view)
        return self._types.of(kind.name, kind.hosted)

    def find_worker_silo(self, kind: GrainKind, version: int = 1) -> str:
        """Return the silo for a call to a stateless worker: this one, else a random suitable one.

        Returns an empty text if there is none, or the type has no stateless workers.
        """
        if kind.hosted is not None and not kind.workers_max:
            return ""
        found = self._find(kind)
        if found is None or not found.is_worker:
            return ""
        silos = found.silos_at(version)
        if self._address in silos:
            return self._address
        return silos[self._roll(len(silos))] if silos else ""

    async def choose(self, kind: GrainKind, key: str, version: int = 1) -> str:
        """Return the silo for a new activation of an ordinary grain: one that hosts this version of
        the type or a later one, if there is one.

        Raises NotHosted if no silo hosts the type, NoSuitableSilo if no silo has the labels that
        the type requires, PlacementFailed, and SiloUnavailable if another try may succeed.
        """
        found = self._suitable(kind, key)
        silos = found.silos_at(version) or found.silos
        if found.is_custom:
            if kind.hosted is None:
                return await self._ask(kind.name, key, found, version)
            return self._choose_by(found, silos, kind.name, key, self._address)
        return self._choose_built_in(found, silos, f"{kind.name}/{key}", self._address)

    def find_others(self, kind: GrainKind, version: int = 1) -> Sequence[str]:
        """Return the other silos that may have an ordinary grain and host this version of its type
        or a later one, sorted."""
        found = self._find(kind)
        if found is None or found.is_worker:
            return ()
        return [silo for silo in found.silos_at(version) if silo != self._address]

    def choose_among(self, kind: GrainKind, key: str, silos: Sequence[str]) -> str:
        """Return one of these silos for an activation that moves. Raises PlacementFailed."""
        found = self._find(kind)
        assert found is not None
        if found.is_custom:
            return self._choose_by(found, silos, kind.name, key, self._address)
        return self._choose_built_in(found, silos, f"{kind.name}/{key}", self._address)

    def may_give(self, kind: GrainKind, key: str, to: str) -> bool:
        """Return whether rebalancing may move a grain to a silo.

        The silo must be suitable. If the grain itself decides, by its hash or by a function of the
        program, this silo must be its choice.
        """
        found = self._find(kind)
        if found is None or found.is_worker or to not in found.silos:
            return False
        if found.is_custom:
            try:
                return self._choose_by(found, found.silos, kind.name, key, self._address) == to
            except MillstreamError as error:
                text = "%s does not move: %s: %s"
                log.warning(text, show_text(f"{kind.name}/{key}"), type(error).__name__, error)
                return False
        if found.built_in is not HASHED:
            return True
        return choose_silo(HASHED, found.silos, "", f"{kind.name}/{key}", {}, self._roll) == to

    def _suitable(self, kind: GrainKind, key: str) -> TypePlacement:
        """Return the placement of an ordinary type that has a suitable silo. Raises as `choose`."""
        found = self._find(kind)
        if found is not None and not found.silos:
            raise self._why_none_fits(kind.name, key, found)
        if found is None or found.is_worker:
            raise self._why_not(kind.name, key)
        return found

    def _choose_built_in(
        self, found: TypePlacement, silos: Sequence[str], grain: str, caller: str
    ) -> str:
        """Apply a built-in strategy, and note the placement. `silos` are the candidates."""
        loads, roll = self._loads, self._roll
        if found.built_in is LEAST_LOADED:
            chosen = choose_least_loaded(silos, caller, loads.of(silos), self._options, roll)
        else:
            chosen = choose_silo(found.built_in, silos, caller, grain, loads.known, roll)
        loads.place(chosen)
        return chosen

    # -- strategies of programs

    def _choose_by(
        self, found: TypePlacement, silos: Sequence[str], name: str, key: str, caller: str
    ) -> str:
        """Call the strategy of a class of this process. `silos` are the candidates."""
        strategy, loads = found.strategy, self._loads.known
        assert callable(strategy)
        candidates = tuple(
            PlacementCandidate(
                address=row.silo,
                name=row.name,
                labels=MappingProxyType(dict(row.labels)),
                activations=loads.get(row.silo, 0),
            )
            for row in found.hosts
            if row.silo in silos
        )
        request = PlacementRequest(grain_type=name, key=key, caller=caller, candidates=candidates)
        return choose_by(strategy, request)

    async def _ask(self, name: str, key: str, found: TypePlacement, version: int) -> str:
        """Let a silo that hosts the type call its strategy."""
        hosts = [row for row in found.hosts if serves(find_version(row.versions, name), version)]
        asked = (hosts or found.hosts)[self._roll(len(hosts or found.hosts))].silo
        target, me = PlacementTarget.target_name, self._address
        try:
            if version > 1:
                choose_at = PlacementTarget.choose_at
                chosen = await self._targets.call(asked, target, choose_at, name, key, me, version)
            else:
                choose = PlacementTarget.choose
                chosen = await self._targets.call(asked, target, choose, name, key, me)
        except (CallTimeout, Overloaded) as error:
            text = f"{name}/{key}: {asked}, which hosts the type, did not choose a silo: {error}"
            raise SiloUnavailable(text, may_have_run=False) from error
        if not self._member.is_live(chosen):
            text = f"{name}/{key}: {asked} chose {chosen}, which is not active here yet: try again"
            raise SiloUnavailable(text, may_have_run=False)
        return chosen

    def choose_for(self, name: str, key: str, caller: str, version: int = 1) -> str:
        """Return the silo for an activation that the caller's silo cannot place. Raises as
        `choose`.
        """
        kind = self._kinds.get(name)
        if kind is None or kind.hosted is None:
            raise NotHosted(f"{self._address} does not host grain type {show_text(repr(name))}")
        found = self._suitable(kind, key)
        silos = found.silos_at(version) or found.silos
        if not found.is_custom:
            return self._choose_built_in(found, silos, f"{name}/{key}", caller)
        return self._choose_by(found, silos, name, key, caller)

    # -- errors

    def _why_not(self, name: str, key: str) -> SiloUnavailable:
        """Return the reason why no silo can be chosen now. Raises NotHosted."""
        if self._turns.ended:
            text = f"{self._address} stopped while it looked for {name}/{key}"
            return SiloUnavailable(text, may_have_run=False)
        self.check_hosted(name)
        text = f"{name}/{key}: a silo that hosts it has just become active: try again"
        return SiloUnavailable(text, may_have_run=False)

    def _why_none_fits(self, name: str, key: str, found: TypePlacement) -> Exception:
        """Return the error for a type whose required labels no active silo has."""
        wanted = show_requirements(found.requires)
        changing = self._member.view.with_status(Status.JOINING, Status.STOPPING)
        rows = [row for row in self._member.view.rows if row.silo in changing]
        if any(name in row.grain_types and fits(row.labels, found.requires) for row in rows):
            return SiloUnavailable(
                f"{name}/{key} requires a silo with {wanted}, and the silos that have these labels "
                "are starting or stopping: try again",
                may_have_run=False,
            )
        known = sorted(f"{row.name} has {show_labels(row.labels)}" for row in found.hosts)
        more = f" and {len(known) - SHOWN_MAX} more" if len(known) > SHOWN_MAX else ""
        return NoSuitableSilo(
            f"{show_text(f'{name}/{key}')} requires a silo with {wanted}; of the active silos that "
            f"host the type, {', '.join(known[:SHOWN_MAX])}{more}. Start a silo with these labels, "
            "or change @grain(requires=...)"
        )

    def check_version(self, kind: GrainKind, key: str, version: int) -> None:
        """Raise VersionNotHosted if silos host only earlier versions of a type.

        Raises nothing if silos with the version are starting or stopping, or no silo is suitable
        for another reason.
        """
        name, found = kind.name, self._find(kind)
        if found is None or not found.silos or found.silos_at(version):
            return
        if self._member.view.row(self._address) is None or self.is_changing(name, version):
            return
        raise VersionNotHosted(
            f"{show_text(f'{name}/{key}')}: the call wants version {version} of the class or a "
            f"later one, and the active silos host {show_versions(found.versions)}. Start silos "
            "with this version, or call through a contract of a hosted version",
            wanted=version,
            hosted=found.versions,
        )

    def is_changing(self, name: str, version: int) -> bool:
        """Return whether a silo with a version of a type, or a later one, starts or stops."""
        view = self._member.view
        changing = view.with_status(Status.JOINING, Status.STOPPING)
        return any(
            row.silo in changing
            and name in row.grain_types
            and serves(find_version(row.versions, name), version)
            for row in view.rows
        )

    def check_hosted(self, name: str) -> None:
        """Raise NotHosted if no silo hosts a grain type.

        Raises SiloUnavailable instead if silos that host the type are starting or stopping, for
        example during a restart.
        """
        found: dict[Status, set[str]] = {status: set() for status in Status}
        for row in self._member.view.rows:
            found[row.status].update(row.grain_types)
        hosted = found[Status.ACTIVE]
        if name in hosted:
            return
        is_starting = self._member.view.row(self._address) is None
        if is_starting or name in found[Status.JOINING] | found[Status.STOPPING]:
            raise SiloUnavailable(
                f"no active silo hosts grain type {name!r} at the moment, because silos of the "
                "cluster are starting or stopping: try again",
                may_have_run=False,
            )
        raise NotHosted(
            f"no active silo hosts grain type {name!r}; the cluster hosts "
            f"{', '.join(sorted(hosted)) or 'none'}. Try again while silos are being restarted"
        )
