"""Dealing queues out to silos: evenly by weight, the same everywhere, with the fewest moves. Pure.

Owns: `best_fit` and the shares behind it. Source: Orleans' BestFitBalancer for the shares. Unlike
there, a silo keeps its queues up to its share, and ranks by a fixed hash deal out the rest.
Invariants: every queue has one silo. A share differs from the exact result of the weights by less
than one. No other dealing with such shares moves fewer queues. The answer depends on the given
sets, not on their order.
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
    """Return the queues that each silo should read: the pure function behind `DeploymentBalancer`.

    The shares of two silos differ by at most one, by weight. With `held`, no other dealing with
    such shares moves fewer queues. Cost: O(queues x silos).

    Args:
        queues: all queues.
        silos: names of the silos.
        weights: share of a silo relative to the others, finite and above 0. A silo that is not
            named has 1.
        held: the present owner of each queue. An owner that is not in `silos` counts as none.

    Returns:
        The sorted queues of every silo; empty without silos.

    Raises:
        ConfigError: a weight is not finite or not above 0.
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
    """The queues that a silo keeps, at most `room`."""
    return sorted(queues, key=lambda queue: rank(queue, silo))[:room]


def rank(queue: QueueId, silo: str) -> int:
    """The place of a silo in a queue's list of preferences; lower is earlier."""
    return xxhash.xxh3_64_intdigest(f"{queue}\0{silo}".encode())


def shares(
    count: int,
    silos: Sequence[str],
    weights: Mapping[str, float],
    counts: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The number of queues of each silo: whole parts by weight, and the rest one by one.

    Silos that have more than their whole part already (`counts`) get one first, because no queue
    moves for that. Then those with the largest remainders follow. A silo without a remainder gets
    none.
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
    """Return the share of each silo by weight, as an exact number.

    Raises ConfigError for a weight that is not a finite number above 0.
    """
    chosen = {silo: weights.get(silo, 1.0) for silo in silos}
    for silo, weight in chosen.items():
        if not 0 < weight < math.inf:
            raise ConfigError(
                f"the weight of silo {silo} is {weight}; it must be a finite number above 0"
            )
    total = sum(map(Fraction, chosen.values()))
    return {silo: count * Fraction(weight) / total for silo, weight in chosen.items()}
