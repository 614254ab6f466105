"""Choosing the silo of a new activation. Pure.

Invariants: the choice is among the candidates given (active silos that host the grain type),
sorted; the only chance is the `roll` passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import xxhash

from millstream.runtime.definition.placement import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    Placement,
)

__all__ = ["choose_silo"]


def choose_silo(
    placement: Placement,
    candidates: Sequence[str],
    local: str,
    grain: str,
    loads: Mapping[str, int],
    roll: Callable[[int], int],
) -> str:
    """One of `candidates` (not empty, sorted); `roll(n)` gives an index below n.

    LEAST_ACTIVATIONS takes the better of two random candidates, so that silos which read the
    same loads do not all choose the same one (power of two choices).
    """
    assert candidates
    if placement is PREFER_LOCAL and local in candidates:
        return local
    if placement is HASHED:
        return candidates[xxhash.xxh3_64_intdigest(grain.encode()) % len(candidates)]
    first = candidates[roll(len(candidates))]
    if placement is LEAST_ACTIVATIONS:
        second = candidates[roll(len(candidates))]
        return min(first, second, key=lambda silo: loads.get(silo, 0))
    return first
