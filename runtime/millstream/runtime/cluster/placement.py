"""The choice of a silo for a new activation, and the strategies that silos report for it. Pure.

The choice is among the given candidates, sorted: active silos that host the grain type. The
function `roll`, an argument, is the only source of chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import xxhash

from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.placement import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    RANDOM,
    Placement,
)

from .table import Status, TableView, by_address

__all__ = ["choose_silo", "placement_in", "placements_of"]

KNOWN = frozenset(placement.value for placement in Placement)


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


def placement_in(view: TableView, kind: str) -> Placement:
    """Return the strategy of a grain type that only other silos host.

    The first active silo that hosts the type decides.
    """
    for row in sorted(view.rows, key=by_address):
        if row.status is Status.ACTIVE and kind in row.grain_types:
            named = dict(row.placements).get(kind, RANDOM.value)
            # a newer version may report a strategy that this version does not know
            return Placement(named) if named in KNOWN else RANDOM
    return RANDOM


def placements_of(grains: Sequence[type[Grain]]) -> tuple[tuple[str, str], ...]:
    """Return the strategies that silos without these types have to know: all except RANDOM."""
    types = [cls.__millstream_type__ for cls in grains]
    return tuple(
        (one.name, one.options.placement.value)
        for one in types
        if one.options.placement is not RANDOM
    )
