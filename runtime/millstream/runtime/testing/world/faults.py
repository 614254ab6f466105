"""Which `maybe` points fire in a run.

Owns: `FaultPlan`, the hook that a simulation installs. Invariants: whether a name is enabled
depends on the seed and the name only, not on the order in which points are met; each name has its
own generator.
"""

from __future__ import annotations

from collections import Counter

from .env import Random, make_random

__all__ = ["FaultPlan"]


class FaultPlan:
    """A seeded subset of the fault names is enabled; an enabled one fires now and then.

    Args:
        enabled_share: part of all names that a seed enables, 0..1.
        fire_chance: how often an enabled name fires when asked, 0..1.
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
        """Whether `name` happens now."""
        if self._forced[name] > 0:
            self._forced[name] -= 1
        elif (rng := self._random_of(name)) is None or rng.random() >= self._fire_chance:
            return False
        self.fired[name] += 1
        return True

    def force(self, name: str, count: int = 1) -> None:
        """Let the next `count` askings of `name` be true."""
        self._forced[name] += count

    def forbid(self, name: str) -> None:
        """Never let `name` happen by chance in this run."""
        self._randoms[name] = None

    def names(self) -> list[str]:
        """Names that were asked for, or forbidden, so far; sorted."""
        return sorted(self._randoms)

    def _random_of(self, name: str) -> Random | None:
        if name not in self._randoms:
            rng = make_random(self._seed, "fault", name)
            self._randoms[name] = rng if rng.random() < self._enabled_share else None
        return self._randoms[name]
