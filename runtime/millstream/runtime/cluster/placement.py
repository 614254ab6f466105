"""The choice of a silo for a new activation, and the data that silos report for it. Pure.

`HostedTypes` owns the placement of each grain type in one view of the membership: its strategy and
the silos that may host it. `choose_silo` applies a built-in strategy. The choice is among the given
candidates, sorted. The function `roll`, an argument, is the only source of chance.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xxhash

from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.labels import Requirements, fits
from millstream.runtime.definition.placement import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    RANDOM,
    Placement,
    PlacementRequest,
    PlacementStrategy,
    StatelessWorker,
)
from millstream.runtime.definition.versions import FIRST_VERSION, find_version, select_serving
from millstream.runtime.errors import PlacementFailed
from millstream.runtime.text import show_text, show_value

from .table import MemberRow, Status, TableView, by_address

__all__ = [
    "HostedTypes",
    "TypePlacement",
    "choose_by",
    "choose_silo",
    "placement_in",
    "placements_of",
    "requirements_of_all",
    "versions_of_all",
]

KNOWN = frozenset(placement.value for placement in Placement)
WORKER = "stateless_worker"
"""The name of the strategy of stateless workers in the rows of silos."""
CUSTOM = "custom"
"""The name of all strategies that are functions of a program. Only silos that host the type can
call them."""


def choose_silo(
    placement: Placement,
    candidates: Sequence[str],
    local: str,
    grain: str,
    loads: Mapping[str, int],
    roll: Callable[[int], int],
) -> str:
    """Choose one of `candidates` (sorted, not empty). `roll(n)` returns an index below n.

    LEAST_ACTIVATIONS takes the less loaded of two different random candidates (power of two
    choices). Silos that see the same loads therefore do not all choose the same silo.
    """
    assert candidates
    if placement is PREFER_LOCAL and local in candidates:
        return local
    if placement is HASHED:
        return candidates[xxhash.xxh3_64_intdigest(grain.encode()) % len(candidates)]
    first = candidates[roll(len(candidates))]
    if placement is LEAST_ACTIVATIONS:
        others = [silo for silo in candidates if silo != first] or [first]
        second = others[roll(len(others))]
        return min(first, second, key=lambda silo: loads.get(silo, 0))
    return first


def choose_by(strategy: Callable[..., object], request: PlacementRequest) -> str:
    """Return the silo that a function of the program chooses. Raises PlacementFailed."""
    grain = show_text(f"{request.grain_type}/{request.key}")
    try:
        chosen = strategy(request)
    except (Exception, SystemExit) as error:  # SystemExit would end the event loop
        raise PlacementFailed(
            f"{grain}: the placement strategy {function_name(strategy)} raised "
            f"{type(error).__name__}: {show_text(str(error))}"
        ) from error
    for candidate in request.candidates:
        if candidate is chosen:
            return candidate.address
    if inspect.iscoroutine(chosen):
        chosen.close()
    raise PlacementFailed(
        f"{grain}: the placement strategy {function_name(strategy)} returned {show_value(chosen)}; "
        "it must return one of the request's candidates"
    )


def function_name(strategy: Callable[..., object]) -> str:
    """Return the name of a function of the program, or of the class of a callable object."""
    named: Any = strategy if hasattr(strategy, "__qualname__") else type(strategy)
    return f"{named.__module__}.{named.__qualname__}"


class TypePlacement:
    """The placement of one grain type in one view of the membership.

    Args:
        strategy: the strategy of the class, or a name from the row of a silo that hosts the type.
        requires: the labels that a silo needs.
        hosts: the rows of the active silos that host the type, sorted by address.
        name: the name of the type.

    Attributes:
        silos: the addresses of the silos that may have activations, sorted.
    """

    __slots__ = ("_name", "hosts", "requires", "silos", "strategy")

    def __init__(
        self,
        strategy: PlacementStrategy | str,
        requires: Requirements,
        hosts: Sequence[MemberRow],
        name: str = "",
    ) -> None:
        self._name = name
        self.strategy = strategy
        self.requires = requires
        self.hosts = hosts
        self.silos = tuple(row.silo for row in hosts if fits(row.labels, requires))

    def silos_at(self, version: int) -> Sequence[str]:
        """Return the silos that may run a call that wants a version, sorted."""
        if version <= FIRST_VERSION:
            return self.silos
        return select_serving(zip(self.silos, self.versions, strict=True), version)

    @property
    def versions(self) -> list[int]:
        """The hosted versions, one for each silo that may have activations."""
        rows = (row for row in self.hosts if row.silo in self.silos)
        return [find_version(row.versions, self._name) for row in rows]

    @property
    def is_worker(self) -> bool:
        """True for a class of stateless workers."""
        return self.strategy == WORKER or isinstance(self.strategy, StatelessWorker)

    @property
    def is_custom(self) -> bool:
        """True if a function of the program chooses the silo."""
        is_known = isinstance(self.strategy, str | Placement | StatelessWorker)
        return self.strategy == CUSTOM or not is_known

    @property
    def built_in(self) -> Placement:
        """The strategy, if it is a built-in one. A newer version may report an unknown one, which
        counts as RANDOM."""
        if isinstance(self.strategy, Placement):
            return self.strategy
        is_known = isinstance(self.strategy, str) and self.strategy in KNOWN
        return Placement(self.strategy) if is_known else RANDOM


class HostedTypes:
    """The placements of the grain types of one view. Each is computed once.

    Attributes:
        view: the view.
    """

    def __init__(self, view: TableView) -> None:
        self.view = view
        self._known: dict[str, TypePlacement] = {}  # only types that an active silo hosts

    def of(self, name: str, hosted: GrainType | None) -> TypePlacement | None:
        """Return the placement of a grain type, or None if no active silo hosts the type.

        Args:
            name: the name of the type.
            hosted: the class in this process, whose options decide. None: those in the row of the
                first active silo that hosts the type.
        """
        found = self._known.get(name)
        if found is None:
            hosts = [row for row in self.view.rows if is_host(row, name)]
            if not hosts:
                return None
            hosts.sort(key=by_address)
            strategy: PlacementStrategy | str
            if hosted is None:
                strategy, requires = strategy_in(hosts[0], name), requirements_in(hosts[0], name)
            else:
                strategy, requires = hosted.options.placement, hosted.options.requires
            found = self._known[name] = TypePlacement(strategy, requires, hosts, name)
        return found


def is_host(row: MemberRow, name: str) -> bool:
    """Return True for an active silo that hosts a grain type."""
    return row.status is Status.ACTIVE and name in row.grain_types


def strategy_in(row: MemberRow, name: str) -> str:
    """Return the name of the strategy of a grain type, by the row of a silo that hosts it."""
    return dict(row.placements).get(name, RANDOM.value)


def requirements_in(row: MemberRow, name: str) -> Requirements:
    """Return the labels that a grain type requires, by the row of a silo that hosts it."""
    return dict(row.requirements).get(name, ())


def placement_in(view: TableView, name: str) -> Placement:
    """Return the built-in strategy of a grain type that only other silos host."""
    found = HostedTypes(view).of(name, None)
    return RANDOM if found is None else found.built_in


def placements_of(grains: Sequence[type[Grain]]) -> tuple[tuple[str, str], ...]:
    """Return the strategies that silos without these types have to know: all except RANDOM."""
    types = [cls.__millstream_type__ for cls in grains]
    return tuple(
        (one.name, name_of(one.options.placement))
        for one in types
        if one.options.placement is not RANDOM
    )


def requirements_of_all(grains: Sequence[type[Grain]]) -> tuple[tuple[str, Requirements], ...]:
    """Return the required labels that silos without these types have to know."""
    types = [cls.__millstream_type__ for cls in grains]
    return tuple((one.name, one.options.requires) for one in types if one.options.requires)


def versions_of_all(grains: Sequence[type[Grain]]) -> tuple[tuple[str, int], ...]:
    """Return the versions of these types that are above 1, for the row of a silo."""
    types = [cls.__millstream_type__ for cls in grains]
    return tuple((one.name, one.version) for one in types if one.version > FIRST_VERSION)


def name_of(strategy: PlacementStrategy) -> str:
    """Return the name of a strategy in the rows of silos."""
    if isinstance(strategy, Placement):
        return strategy.value
    return WORKER if isinstance(strategy, StatelessWorker) else CUSTOM
