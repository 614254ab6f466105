"""The choice of `maybe` points that fire in a run.

This module owns `FaultPlan`, the hook that a simulation installs. The seed and the name of a point
decide whether it is enabled; the order in which points are reached does not. Each name has a
generator of its own.
"""

from __future__ import annotations

from collections import Counter

from .env import Random, make_random

__all__ = ["FaultPlan"]


class FaultPlan:
    """Decides which points `millstream.runtime.faults.maybe("part.event")` fire in a run.

    The seed enables some of the names, and an enabled name fires now and then. `Simulation.faults`
    is the plan of a run. Put such points into your own code; Millstream has none.

    Args:
        seed: The seed.
        enabled_share: The share of all names that a seed enables, from 0 to 1.
        fire_chance: How often an enabled name fires, from 0 to 1.

    Attributes:
        fired: How often each name has fired.
    """

    def __init__(
        self, seed: int, *, enabled_share: float = 0.25, fire_chance: float = 0.05
    ) -> None:
        self.fired: Counter[str] = Counter()
        self._seed = seed
        self._enabled_share = enabled_share
        self._fire_chance = fire_chance
        self._randoms: dict[str, Random | None] = {}
        self._forced: Counter[str] = Counter()

    def __call__(self, name: str) -> bool:
        """Return whether the point `name` fires now."""
        if self._forced[name] > 0:
            self._forced[name] -= 1
        elif (rng := self._random_of(name)) is None or rng.random() >= self._fire_chance:
            return False
        self.fired[name] += 1
        return True

    def force(self, name: str, count: int = 1) -> None:
        """Let a point fire the next times that it is reached.

        Args:
            name: The name of the point.
            count: How many times.
        """
        self._forced[name] += count

    def forbid(self, name: str) -> None:
        """Never let the point `name` fire by chance in this run."""
        self._randoms[name] = None

    def names(self) -> list[str]:
        """Return the names that were reached or forbidden so far, sorted."""
        return sorted(self._randoms)

    def _random_of(self, name: str) -> Random | None:
        if name not in self._randoms:
            rng = make_random(self._seed, "fault", name)
            self._randoms[name] = rng if rng.random() < self._enabled_share else None
        return self._randoms[name]
