"""Dealing queues out to silos: evenly by weight, the same everywhere, with few moves. Pure.

Owns: `best_fit`. Source: Orleans' BestFitBalancer for the shares; ranks by a frozen hash in place
of consecutive runs, so that a join or a leave moves little more than it must. Invariants: every
queue has one silo; shares differ from what the weights give by less than one; the answer depends
on the sets given, not on their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import xxhash

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId

__all__ = ["best_fit"]


def best_fit(
    queues: Sequence[QueueId], silos: Sequence[str], weights: Mapping[str, float] | None = None
) -> dict[str, tuple[QueueId, ...]]:
    """Which queues each silo should read.

    Args:
        weights: share of a silo relative to the others, above 0; 1 where it is not given.
    Returns: every silo with its queues, sorted; {} without silos. Cost: O(queues x silos).
    """
    names = sorted(set(silos))
    if not names:
        return {}
    room = shares(len(set(queues)), names, weights or {})
    dealt: dict[str, list[QueueId]] = {name: [] for name in names}
    for queue in sorted(set(queues)):
        ranked = sorted(names, key=lambda name: rank(queue, name))
        chosen = next(name for name in ranked if len(dealt[name]) < room[name])
        dealt[chosen].append(queue)
    return {name: tuple(found) for name, found in dealt.items()}


def rank(queue: QueueId, silo: str) -> int:
    """How late a silo comes in a queue's list of preferences."""
    return xxhash.xxh3_64_intdigest(f"{queue}\0{silo}".encode())


def shares(count: int, silos: Sequence[str], weights: Mapping[str, float]) -> dict[str, int]:
    """How many queues each silo gets: whole parts by weight, the rest to the largest remainders."""
    chosen = {silo: weights.get(silo, 1.0) for silo in silos}
    for silo, weight in chosen.items():
        if not weight > 0:
            raise ConfigError(f"the weight of {silo} is {weight}, not above 0")
    total = sum(chosen.values())
    exact = {silo: count * weight / total for silo, weight in chosen.items()}
    given = {silo: int(part) for silo, part in exact.items()}
    by_remainder = sorted(silos, key=lambda silo: (given[silo] - exact[silo], rank("", silo)))
    for silo in by_remainder[: count - sum(given.values())]:
        given[silo] += 1
    return given
