"""The bookies that store an entry, and the number of answers that decide a question about it.

Owns: `Quorum` and its arithmetic, which is that of BookKeeper. Invariants: ensemble ≥ write quorum
≥ ack quorum ≥ 1. The write set of an entry follows from its number alone, so it is not stored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from millstream.runtime import ConfigError

__all__ = ["Quorum", "check_quorum"]


class Quorum(NamedTuple):
    """The replication of a ledger: `Quorum(ensemble, write, ack)`, as in BookKeeper.

    Entry `n` is sent to `write` bookies, which begin at place `n % ensemble` of the ensemble. The
    entry is accepted as soon as `ack` of them have it on disk. A ledger survives the loss of any
    `ack - 1` of its bookies. `Quorum(3, 3, 2)` stores three replicas and waits for two.

    Options that take a quorum require `ensemble >= write >= ack >= 1`. They refuse `ack == 1` with
    several replicas, since such a ledger could not be recovered while any of its bookies is away.
    They raise `ConfigError` otherwise.

    Attributes:
        ensemble: the number of bookies that a ledger is spread over.
        write: the number of replicas of each entry.
        ack: the number of replicas that must be on disk before an entry is accepted.
    """

    ensemble: int
    write: int
    ack: int

    def write_set(self, entry: int) -> tuple[int, ...]:
        """Return the places in the ensemble that store an entry.

        Args:
            entry: the number of the entry in its ledger, from 0.
        """
        return tuple((entry + k) % self.ensemble for k in range(self.write))

    @property
    def denials(self) -> int:
        """How many fenced bookies of a write set must lack an entry to prove that it was never
        accepted."""
        return self.write - self.ack + 1

    def reduce(self, bookies: int) -> Quorum:
        """Return the quorum that is possible with fewer bookies.

        Args:
            bookies: the number of bookies that can be used, which must be at least `ack`.

        Returns:
            A quorum with at most `bookies` places and the same `ack`.
        """
        ensemble = min(bookies, self.ensemble)
        return Quorum(ensemble, min(ensemble, self.write), self.ack)

    def is_covered(self, answered: Collection[int]) -> bool:
        """Say whether no entry can reach an ack quorum on the places that did not answer.

        Args:
            answered: the places of the ensemble that did answer.
        """
        return all(
            sum((first + k) % self.ensemble in answered for k in range(self.write)) >= self.denials
            for first in range(self.ensemble)
        )


def check_quorum(quorum: Quorum) -> None:
    """Raise ConfigError unless the three numbers can work together."""
    ensemble, write, ack = quorum
    text = f"ensemble={ensemble}, write_quorum={write}, ack_quorum={ack}"
    if not ensemble >= write >= ack >= 1:
        raise ConfigError(f"{text}: need ensemble >= write_quorum >= ack_quorum >= 1")
    if ack == 1 < write:
        raise ConfigError(
            f"{text}: with ack_quorum=1 and several replicas, a ledger cannot be recovered while "
            "one of its bookies is down; set ack_quorum=2, or write_quorum=1"
        )
