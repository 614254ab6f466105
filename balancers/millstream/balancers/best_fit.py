"""Dealing queues out to silos: evenly by weight, the same everywhere, with the fewest moves. Pure.

Owns: `best_fit` and the shares behind it. Source: Orleans' BestFitBalancer for the shares; who has
a queue keeps it as far as its share goes, and ranks by a frozen hash deal out the rest, in place of
consecutive runs. Invariants: every queue has one silo; shares differ from what the weights give by
less than one; no other dealing with such shares moves fewer queues; the answer depends on the sets
given, not on their order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import xxhash

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId

__all__ = ["best_fit", "rank", "shares"]


def best_fit(
    queues: Sequence[QueueId],
    silos: Sequence[str],
    weights: Mapping[str, float] | None = None,
    held: Mapping[QueueId, str] | None = None,
) -> dict[str, tuple[QueueId, ...]]:
    """Which queues each silo should read.

    Args:
        weights: share of a silo relative to the others, above 0; 1 where it is not given.
        held: who has a queue now; others than `silos` count as nobody.
    Returns: every silo with its queues, sorted; {} without silos. Cost: O(queues x silos).
    """
    names, wanted = sorted(set(silos)), sorted(set(queues))
    if not names:
        return {}
    has: dict[str, list[QueueId]] = {name: [] for name in names}
    for queue in wanted:
        has.get((held or {}).get(queue, ""), []).append(queue)
    counts = {name: len(found) for name, found in has.items()}
    room = shares(len(wanted), names, weights or {}, counts)
    dealt = {name: choose_kept(name, found, room[name]) for name, found in has.items()}
    taken = {queue for found in dealt.values() for queue in found}
    for queue in wanted:
        if queue not in taken:
            open_to = (name for name in names if len(dealt[name]) < room[name])
            dealt[min(open_to, key=lambda name: rank(queue, name))].append(queue)
    return {name: tuple(sorted(found)) for name, found in dealt.items()}


def choose_kept(silo: str, queues: Iterable[QueueId], room: int) -> list[QueueId]:
    """Those of its queues that a silo keeps."""
    return sorted(queues, key=lambda queue: rank(queue, silo))[:room]


def rank(queue: QueueId, silo: str) -> int:
    """How late a silo comes in a queue's list of preferences."""
    return xxhash.xxh3_64_intdigest(f"{queue}\0{silo}".encode())


def shares(
    count: int,
    silos: Sequence[str],
    weights: Mapping[str, float],
    counts: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """How many queues each silo gets: whole parts by weight, and what is left over one by one.

    First to those that have more than their whole part already (`counts`), as nothing moves for
    that; then to the largest remainders. Nobody gets one without a remainder.
    """
    exact = exact_shares(count, silos, weights)
    given = {silo: math.floor(part) for silo, part in exact.items()}
    has = Counter(counts)

    def order(silo: str) -> tuple[bool, Fraction, int]:
        return (has[silo] <= given[silo], given[silo] - exact[silo], rank("", silo))

    partial = sorted((silo for silo in silos if exact[silo] > given[silo]), key=order)
    for silo in partial[: count - sum(given.values())]:
        given[silo] += 1
    return given


def exact_shares(
    count: int, silos: Sequence[str], weights: Mapping[str, float]
) -> dict[str, Fraction]:
    """What the weights give to each, as exact numbers. Raises ConfigError."""
    chosen = {silo: weights.get(silo, 1.0) for silo in silos}
    for silo, weight in chosen.items():
        if not 0 < weight < math.inf:
            raise ConfigError(f"the weight of {silo} is {weight}, not a finite number above 0")
    total = sum(map(Fraction, chosen.values()))
    return {silo: count * Fraction(weight) / total for silo, weight in chosen.items()}
