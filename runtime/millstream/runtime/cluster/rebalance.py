"""The decision which silos give activations to which others. Pure.

`Session` decides the transfers of a round by the counts of the silos. `rebalancer` collects the
counts and carries the transfers out.

Invariants:

- A transfer never changes the sign of the difference of its two silos: the silo with more keeps at
  least as many as the other one gets.
- A silo is in one transfer of a round at most.
- While counts change by transfers alone, the transfers of all rounds together are at most the
  activations above and below an even distribution, and the rounds end.
- A session starts above one bound and ends below a lower one, so small changes start no session.

Source: `ActivationRebalancerWorker` of Orleans. Orleans measures unevenness by the entropy of
counts times memory; this module counts the activations that would have to move.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from millstream.runtime.options import Rebalancing

__all__ = ["RESTED_ROUNDS", "Phase", "Session", "Transfer", "measure_unevenness", "pair_silos"]


RESTED_ROUNDS = 20
"""Rounds after which a stagnant session begins again, in case activations are less busy now."""


class Transfer(NamedTuple):
    """Activations that one silo should give to another one."""

    source: str
    to: str
    moves: int


class Phase(Enum):
    """The phase of a session: the session moves activations, or waits."""

    BALANCING = "balancing"
    EVEN = "even"
    STAGNANT = "stagnant"


def measure_unevenness(counts: Mapping[str, int]) -> float:
    """Return the share of all activations that must move for an even distribution.

    0 if no two counts differ by more than 1.
    """
    total = sum(counts.values())
    if not total:
        return 0.0
    low, high = bounds_of(counts)
    above = sum(max(0, count - high) for count in counts.values())
    below = sum(max(0, low - count) for count in counts.values())
    return max(above, below) / total


def bounds_of(counts: Mapping[str, int]) -> tuple[int, int]:
    """Return the mean of the counts, rounded down and rounded up."""
    total, silos = sum(counts.values()), len(counts)
    return total // silos, -(-total // silos)


def pair_silos(
    counts: Mapping[str, int], moves_max: int, barren: Collection[tuple[str, str]] = ()
) -> list[Transfer]:
    """Pair the silos with the most activations with those with the fewest.

    Silos above the mean give to silos below the mean. If there is no such pair, silos that differ
    by more than 1 are paired; the mean may be impossible because of `barren`.

    Args:
        counts: the activations by silo.
        moves_max: the most activations of one transfer.
        barren: pairs of source and target that had nothing to transfer.
    """
    if not counts:
        return []
    low, high = bounds_of(counts)

    def to_mean(many: int, few: int) -> int:
        return min(many - high, low - few)

    def to_each_other(many: int, few: int) -> int:
        half = (many - few) // 2
        return half if barren else min(half, many - low, high - few)

    for find_moves in (to_mean, to_each_other):
        found: list[Transfer] = []
        left = sorted(counts, key=lambda silo: (counts[silo], silo))
        while left:
            source = left.pop()
            for to in left:
                moves = find_moves(counts[source], counts[to])
                if moves > 0 and (source, to) not in barren:
                    found.append(Transfer(source, to, min(moves, moves_max)))
                    left.remove(to)
                    break
        if found:
            return found
    return []


class Session:
    """The rounds of one coordinator.

    A session begins in the phase BALANCING, so a new coordinator continues what the former one had
    begun.
    """

    def __init__(self, options: Rebalancing) -> None:
        self._options = options
        self.phase = Phase.BALANCING
        self._best = math.inf  # the lowest unevenness of this session
        self._stagnant = 0
        self._rested = 0
        self._silos: frozenset[str] = frozenset()
        self._barren: set[tuple[str, str]] = set()

    def decide(self, counts: Mapping[str, int]) -> list[Transfer]:
        """Return the transfers of a round. Empty while the session rests."""
        unevenness, options = measure_unevenness(counts), self._options
        if self._should_start(counts, unevenness):
            self._start()
        self._silos = frozenset(counts)
        if self.phase is not Phase.BALANCING:
            self._rested += 1
            return []
        if unevenness <= options.stop_below:
            self.phase = Phase.EVEN
            return []
        has_improved = self._best - unevenness >= options.improvement_min
        self._stagnant = 0 if has_improved else self._stagnant + 1
        self._best = min(self._best, unevenness)
        if self._stagnant >= options.stagnant_rounds_max:
            self.phase = Phase.STAGNANT
            return []
        return pair_silos(counts, options.moves_max, self._barren)

    def _should_start(self, counts: Mapping[str, int], unevenness: float) -> bool:
        """Return whether a session starts, or begins again with the pairs of other silos."""
        if frozenset(counts) != self._silos and self._silos:
            return self.phase is not Phase.EVEN or unevenness > self._options.start_above
        if self.phase is Phase.STAGNANT:
            has_grown = unevenness > self._best + self._options.start_above
            return has_grown or self._rested >= RESTED_ROUNDS
        return self.phase is Phase.EVEN and unevenness > self._options.start_above

    def _start(self) -> None:
        self.phase, self._rested = Phase.BALANCING, 0
        self._best = math.inf  # so the first round improves, and no round is stagnant yet
        self._barren.clear()

    def note_barren(self, transfer: Transfer) -> None:
        """Note that a source had no activation that its target can have."""
        self._barren.add((transfer.source, transfer.to))
