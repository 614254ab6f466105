"""Choosing the silo of a new activation, and what silos tell each other for it. Pure.

Invariants: the choice is among the candidates given (active silos that host the grain type),
sorted; the only chance is the `roll` passed in.
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
    """One of `candidates` (not empty, sorted); `roll(n)` gives an index below n.

    LEAST_ACTIVATIONS takes the emptier of two different random candidates, so that silos which
    read the same loads do not all choose the same one (power of two choices).
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
    """The strategy of a grain type that only others host, as the first of them says."""
    for row in sorted(view.rows, key=by_address):
        if row.status is Status.ACTIVE and kind in row.grain_types:
            named = dict(row.placements).get(kind, RANDOM.value)
            # a strategy that this version does not know can only be guessed at
            return Placement(named) if named in KNOWN else RANDOM
    return RANDOM


def placements_of(grains: Sequence[type[Grain]]) -> tuple[tuple[str, str], ...]:
    """The strategies that silos which do not host the types have to know."""
    types = [cls.__millstream_type__ for cls in grains]
    return tuple(
        (one.name, one.options.placement.value)
        for one in types
        if one.options.placement is not RANDOM
    )
