"""Which ledgers are to be mended, in which order, and when again. Pure: times come from the caller.

Owns: `Agenda`, `Job`. Invariants: who has the fewest copies comes first; the writer of a ledger has
`open_fragment_after_s` to do without a bookie, from when the need was seen at that very fragment;
what failed waits, longer each time, unless bookies have come or gone meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from millstream.providers.ledger.protocol.record import Fragment, LedgerRecord
from millstream.runtime.extending import Backoff

from .needs import Needs
from .options import RecoveryOptions

__all__ = ["Agenda", "Job"]

RETRY_FIRST_S = 5.0


class Job(NamedTuple):
    """A ledger to be mended; `may_end`: by giving it an end, if need be."""

    copies: int
    ledger: int
    may_end: bool


class Tries(NamedTuple):
    """How often it did not work, why, and when it is tried again."""

    failures: int
    error: Exception
    again_s: float


class Agenda:
    """What one auditor has to do."""

    def __init__(self, options: RecoveryOptions) -> None:
        self._grace_s = options.open_fragment_after_s
        most_s = max(RETRY_FIRST_S, options.retry_after_s)
        self._backoff = Backoff(first_s=RETRY_FIRST_S, ceiling_s=most_s)
        self._since_s: dict[int, tuple[Fragment, float]] = {}  # to be ended
        self._tries: dict[int, Tries] = {}
        self._seen: set[int] = set()
        self._lacking: dict[int, Needs] = {}
        self._jobs: list[Job] = []
        self._next_s = math.inf

    @property
    def lacking(self) -> dict[int, Needs]:
        """Ledgers that lack something, as of the last audit and what was done since."""
        return self._lacking

    @property
    def failed(self) -> dict[int, Tries]:
        """Ledgers with which something went wrong."""
        return self._tries

    @property
    def next_s(self) -> float:
        """When the next one is due, of those that wait."""
        waits = [tries.again_s for tries in self._tries.values()]
        return min([self._next_s, *waits])

    def anew(self) -> None:
        """Bookies have come or gone: what failed may work now."""
        self._tries = {
            ledger: tries._replace(failures=0, again_s=-math.inf)
            for ledger, tries in self._tries.items()
        }

    def begin(self) -> None:
        """All ledgers are looked at."""
        self._seen, self._lacking, self._jobs, self._next_s = set(), {}, [], math.inf

    def look(self, record: LedgerRecord, needs: Needs, now_s: float) -> None:
        """What one ledger lacks."""
        ledger = record.ledger
        self._seen.add(ledger)
        may_end = self._may_end(record, needs, now_s)
        if not needs:
            self._tries.pop(ledger, None)
            return
        self._lacking[ledger] = needs
        tries = self._tries.get(ledger)
        is_waiting = tries is not None and now_s < tries.again_s
        if not is_waiting and needs.can_be_met(may_end):
            self._jobs.append(Job(needs.copies, ledger, may_end))

    def _may_end(self, record: LedgerRecord, needs: Needs, now_s: float) -> bool:
        """Has the writer had its time?"""
        if not needs.is_to_end:
            self._since_s.pop(record.ledger, None)
            return False
        last = record.fragments[-1]
        known, since_s = self._since_s.get(record.ledger, (last, now_s))
        if known != last:
            since_s = now_s
        self._since_s[record.ledger] = (last, since_s)
        if now_s - since_s >= self._grace_s:
            return True
        self._next_s = min(self._next_s, since_s + self._grace_s)
        return False

    def jobs(self) -> Sequence[Job]:
        """All were looked at: what is to be done, in order."""
        self._since_s = {n: since for n, since in self._since_s.items() if n in self._seen}
        self._tries = {n: tries for n, tries in self._tries.items() if n in self._seen}
        return sorted(self._jobs)

    def on_done(self, ledger: int) -> None:
        """It lacks nothing more that could be given to it now."""
        self._tries.pop(ledger, None)
        self._lacking.pop(ledger, None)

    def fail(self, ledger: int, error: Exception, now_s: float) -> bool:
        """Something is left; is it the first time that it failed so?"""
        before = self._tries.get(ledger)
        count = 1 if before is None else before.failures + 1
        self._tries[ledger] = Tries(count, error, now_s + self._backoff.delay_s(count, 0.5))
        return before is None or str(before.error) != str(error)
