"""The ledgers to repair, their order, and their retries. Pure: times come from the caller.

Owns: `Agenda`, `CopyJob`. Invariants: the ledger with the fewest answering bookies is first. The
writer of a ledger has `open_fragment_after_s` to replace a bookie, counted from when the need was
seen at that fragment. A failed repair waits, longer each time, unless bookies have come or gone in
the meantime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from millstream.providers.ledger.protocol.record import Fragment, LedgerRecord
from millstream.runtime.extending import Backoff

from .needs import Needs
from .options import RecoveryOptions

__all__ = ["Agenda", "CopyJob"]

RETRY_FIRST_S = 5.0


class CopyJob(NamedTuple):
    """A ledger to repair; `may_end`: the repair may close it, if necessary."""

    copies: int
    ledger: int
    may_end: bool


class Tries(NamedTuple):
    """The number of failures, the last error, and the time of the next attempt."""

    failures: int
    error: Exception
    again_s: float


class Agenda:
    """The work of one auditor."""

    def __init__(self, options: RecoveryOptions) -> None:
        self._grace_s = options.open_fragment_after_s
        most_s = max(RETRY_FIRST_S, options.retry_after_s)
        self._backoff = Backoff(first_s=RETRY_FIRST_S, ceiling_s=most_s)
        self._since_s: dict[int, tuple[Fragment, float]] = {}  # ledgers to be closed
        self._tries: dict[int, Tries] = {}
        self._seen: set[int] = set()
        self._lacking: dict[int, Needs] = {}
        self._jobs: list[CopyJob] = []
        self._next_s = math.inf

    @property
    def lacking(self) -> dict[int, Needs]:
        """The ledgers that need repairs, according to the last audit and the work since then."""
        return self._lacking

    @property
    def failed(self) -> dict[int, Tries]:
        """The ledgers whose repairs failed."""
        return self._tries

    @property
    def next_s(self) -> float:
        """The time of the next repair that waits."""
        waits = [tries.again_s for tries in self._tries.values()]
        return min([self._next_s, *waits])

    def anew(self) -> None:
        """Make all failed repairs due, because bookies have come or gone."""
        self._tries = {
            ledger: tries._replace(failures=0, again_s=-math.inf)
            for ledger, tries in self._tries.items()
        }

    def begin(self) -> None:
        """Begin an audit of all ledgers."""
        self._seen, self._lacking, self._jobs, self._next_s = set(), {}, [], math.inf

    def look(self, record: LedgerRecord, needs: Needs, now_s: float) -> None:
        """Store the needs of one ledger, and plan its repair if it is due."""
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
            self._jobs.append(CopyJob(needs.copies, ledger, may_end))

    def _may_end(self, record: LedgerRecord, needs: Needs, now_s: float) -> bool:
        """Whether the writer had `open_fragment_after_s` to replace bookies."""
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

    def jobs(self) -> Sequence[CopyJob]:
        """End an audit; return the repairs to do now, in order."""
        self._since_s = {n: since for n, since in self._since_s.items() if n in self._seen}
        self._tries = {n: tries for n, tries in self._tries.items() if n in self._seen}
        return sorted(self._jobs)

    def on_done(self, ledger: int) -> None:
        """Remove a ledger that has all replicas that it could get now."""
        self._tries.pop(ledger, None)
        self._lacking.pop(ledger, None)

    def fail(self, ledger: int, error: Exception, now_s: float) -> bool:
        """Record a failed repair. Return True if the last repair did not fail with this error."""
        before = self._tries.get(ledger)
        count = 1 if before is None else before.failures + 1
        self._tries[ledger] = Tries(count, error, now_s + self._backoff.delay_s(count, 0.5))
        return before is None or str(before.error) != str(error)
