"""The objects that all handles of a process share, and the choice of bookies.

Owns: `HandleContext`, the contract `LedgerRows`, `choose`. Not: the rows (`metadata`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from millstream.providers.ledger.protocol.errors import LedgerGone
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime.extending import Backoff, Clock, Tasks

from .bookies import Bookies
from .options import HandleOptions

__all__ = ["BETWEEN_TRIES", "HandleContext", "LedgerRows", "choose", "existing"]

BETWEEN_TRIES = Backoff(first_s=0.02, ceiling_s=1.0)


class LedgerRows(Protocol):
    """The stored records of ledgers. Every method may raise StorageError."""

    async def read(self, key: int, /) -> LedgerRecord | None: ...
    async def create(self, key: int, record: LedgerRecord, /) -> LedgerRecord: ...
    async def update(
        self, key: int, change: Callable[[LedgerRecord | None], LedgerRecord], /
    ) -> LedgerRecord: ...
    async def delete(self, key: int, /) -> None: ...
    async def end_deletion(self, key: int, /) -> None: ...


class HandleContext(NamedTuple):
    """The objects of a process that its handles use."""

    bookies: Bookies
    rows: LedgerRows
    clock: Clock
    tasks: Tasks
    options: HandleOptions

    def pause_s(self, attempt: int) -> float:
        """Return the seconds to wait after so many failed attempts (1, 2, ...)."""
        return BETWEEN_TRIES.delay_s(attempt, self.clock.uniform(0.0, 1.0))


def existing(ledger: int, record: LedgerRecord | None) -> LedgerRecord:
    """Return the record, or raise LedgerGone if there is none."""
    if record is None:
        raise LedgerGone(f"there is no ledger {ledger}: it was deleted")
    return record


def choose(
    weights: Mapping[str, float], count: int, taken: Collection[str], clock: Clock
) -> list[str]:
    """Choose up to `count` bookies that are not taken, at random. More free space is a higher
    chance."""
    free = {name: max(weight, 1.0) for name, weight in sorted(weights.items()) if name not in taken}
    found: list[str] = []
    while free and len(found) < count:
        name = draw(free, clock.uniform(0.0, sum(free.values())))
        found.append(name)
        del free[name]
    return found


def draw(weights: dict[str, float], roll: float) -> str:
    """Return the name at a random number below the sum of all weights."""
    for name, weight in weights.items():
        roll -= weight
        if roll < 0:
            return name
    return next(reversed(weights))
