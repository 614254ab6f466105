"""The entries of one bookie that need a repair, and the time of each attempt. Pure.

Owns: `Docket`, `Failure`. Invariants: an entry leaves the docket only when it was repaired or needs
no repair. A ledger whose repair failed waits, longer each time. News of the same entries does not
shorten the wait. The docket has a limit, and says when it has overflowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.providers.ledger.bookie.damage.suspects import SUSPECTS_MAX
from millstream.runtime.extending import Backoff

__all__ = ["RETRY_FIRST_S", "Docket", "Failure"]

RETRY_FIRST_S = 5.0
"""Seconds until the first retry of a repair."""


class Failure(NamedTuple):
    """Why an entry was not repaired; `is_lost`: no other bookie has a good replica."""

    why: str
    is_lost: bool = False


@dataclass(slots=True)
class Case:
    """One ledger: its entries, each with its last failure, and the time of the next attempt."""

    entries: dict[int, Failure | None] = field(default_factory=dict)
    tries: int = 0
    again_s: float = 0.0


class Docket:
    """Repairs to do, of at most `SUSPECTS_MAX` entries.

    Args:
        retry_after_s: the longest wait before a retry.

    Attributes: `has_overflowed`: an entry was refused, because the docket was full.
    """

    def __init__(self, retry_after_s: float) -> None:
        self.has_overflowed = False
        ceiling_s = max(RETRY_FIRST_S, retry_after_s)
        self._backoff = Backoff(first_s=RETRY_FIRST_S, ceiling_s=ceiling_s)
        self._cases: dict[int, Case] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, ledger: int, entries: Collection[int]) -> None:
        """Add entries to check. Entries that are here already do not change."""
        case = self._cases.get(ledger) or Case()
        new = [entry for entry in sorted(entries) if entry not in case.entries]
        room = SUSPECTS_MAX - self._count
        self.has_overflowed = self.has_overflowed or len(new) > room
        if new[:room]:
            self._cases[ledger] = case
            case.entries |= dict.fromkeys(new[:room])
            self._count += len(new[:room])
            case.again_s = 0.0

    def due(self, now_s: float) -> list[tuple[int, list[int]]]:
        """Return the ledgers that are due, each with its entries."""
        cases = sorted(self._cases.items())
        return [(ledger, sorted(case.entries)) for ledger, case in cases if case.again_s <= now_s]

    def settle(
        self, ledger: int, tried: Collection[int], failures: Mapping[int, Failure], now_s: float
    ) -> list[int]:
        """Record the outcome of a repair of one ledger, and return the entries that are newly lost.

        Entries without a failure leave the docket.
        """
        case = self._cases[ledger]
        lost = []
        for entry in tried:
            before, now = case.entries.get(entry), failures.get(entry)
            if now is None:
                self._count -= entry in case.entries
                case.entries.pop(entry, None)
                continue
            case.entries[entry] = now
            if now.is_lost and not (before is not None and before.is_lost):
                lost.append(entry)
        if not case.entries:
            del self._cases[ledger]
        else:
            case.tries += 1
            case.again_s = now_s + self._backoff.delay_s(case.tries, 0.5)
        return sorted(lost)

    def list_failed(self, ledger: int) -> dict[int, Failure]:
        """Return the entries of a ledger whose repair failed, each with the reason."""
        case = self._cases.get(ledger)
        found = sorted(case.entries.items()) if case is not None else []
        return {entry: failure for entry, failure in found if failure is not None}

    def failures(self) -> Iterator[tuple[int, int, Failure]]:
        """Yield ledger, entry and reason of all entries whose repair failed."""
        for ledger in sorted(self._cases):
            for entry, failure in self.list_failed(ledger).items():
                yield ledger, entry, failure
