"""Which bookies hold an entry, and how many answers decide something.

Owns: `Quorum` and its arithmetic. Idea: spec/ledger.md 1.4 to 1.8, 2.3, 4.8, 4.16.
Invariants: ensemble ≥ write quorum ≥ ack quorum ≥ 1; the write set of an entry follows from its
number alone, so it is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from millstream.runtime import ConfigError

__all__ = ["Quorum", "check_quorum"]


class Quorum(NamedTuple):
    """How many bookies a ledger is spread over, hold each entry, and acknowledge it."""

    ensemble: int
    write: int
    ack: int

    def write_set(self, entry: int) -> tuple[int, ...]:
        """Places in the ensemble that hold an entry."""
        return tuple((entry + k) % self.ensemble for k in range(self.write))

    @property
    def denials(self) -> int:
        """So many of a write set that are fenced and have no entry prove that there is none."""
        return self.write - self.ack + 1

    def reduce(self, bookies: int) -> Quorum:
        """What can be had of it with so many bookies, which are an ack quorum at least."""
        ensemble = min(bookies, self.ensemble)
        return Quorum(ensemble, min(ensemble, self.write), self.ack)

    def is_covered(self, answered: Collection[int]) -> bool:
        """Can no entry gather an ack quorum from the places that did not answer?"""
        return all(
            sum((first + k) % self.ensemble in answered for k in range(self.write)) >= self.denials
            for first in range(self.ensemble)
        )


def check_quorum(quorum: Quorum) -> None:
    """Raise ConfigError unless the three can work together."""
    ensemble, write, ack = quorum
    text = f"ensemble={ensemble}, write_quorum={write}, ack_quorum={ack}"
    if not ensemble >= write >= ack >= 1:
        raise ConfigError(f"{text}: each must be at most the one before, and 1 at least")
    if ack == 1 < write:
        raise ConfigError(
            f"{text}: with one acknowledgement of several copies a ledger cannot be recovered "
            "while any bookie of it is away; take ack_quorum=2, or write_quorum=1"
        )
