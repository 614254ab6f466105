"""Repairing entries of a bookie in this silo, with good replicas from other bookies.

Owns: `Repairer`, `Outcome`. Not: the choice of entries and time (`scrubber`).

Invariants:

- A bookie repairs itself. Only the bookie that runs here writes its directory, so two repairs never
  meet.
- A replica is fetched only for an entry that is still damaged or missing on disk, and whose content
  can never change (`wanted`).
- It is written in the term of the record. A bookie refuses that term after a recovery has fenced
  the ledger in a higher one.
- Nothing is written for a deleted ledger, or for a place that another bookie has by now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.recovery.copier import Copied, Copier, EntriesLost
from millstream.providers.ledger.recovery.options import RecoveryOptions

from .docket import Failure
from .wanted import judge, runs_of

__all__ = ["Outcome", "Repairer"]

ALONE = "no other bookie has replicas of this ledger"


@dataclass(slots=True)
class Outcome:
    """The result of a repair. `damaged`, `missing`: the entries that needed a repair. `failures`:
    those of them that were not repaired, and entries that must be checked again."""

    damaged: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    failures: dict[int, Failure] = field(default_factory=dict)

    @property
    def repaired(self) -> int:
        """The number of replicas that were written."""
        return len((self.damaged | self.missing) - self.failures.keys())


class Repairer:
    """Repairs entries of one ledger at a time, at the rate of copies.

    Args:
        of: returns the standing of a bookie.
    """

    def __init__(
        self, context: HandleContext, options: RecoveryOptions, of: Callable[[str], BookieStanding]
    ) -> None:
        self._rows = context.rows
        self._copier = Copier(context.bookies, context.clock, options, of, Copied())

    async def repair(self, bookie: Bookie, ledger: int, entries: Collection[int]) -> Outcome:
        """Check entries of a ledger, and repair those that need it. Raises StorageError,
        BookieError (the bookie stopped, or is overloaded)."""
        outcome = Outcome()
        record = await self._rows.read(ledger)
        if record is None:
            return outcome
        confirmed = bookie.store.index.find_confirmed(ledger)
        now, later = judge(record, bookie.name, entries, confirmed)
        for entry in (*now, *later):
            if not bookie.has(ledger, entry):
                if entry in now:
                    outcome.missing.add(entry)
            elif await bookie.is_damaged(ledger, entry):
                outcome.damaged.add(entry)
        early = outcome.damaged.intersection(later)
        outcome.failures |= dict.fromkeys(
            early, Failure("the entry is not known to be confirmed yet")
        )
        await self._copy(bookie, record, outcome)
        return outcome

    async def _copy(self, bookie: Bookie, record: LedgerRecord, outcome: Outcome) -> None:
        ill = (outcome.damaged | outcome.missing) - outcome.failures.keys()
        alone = {entry for entry in ill if set(record.holders(entry)) == {bookie.name}}
        outcome.failures |= dict.fromkeys(alone, Failure(ALONE, is_lost=True))
        ill -= alone
        if ill and bookie.state is not BookieState.WRITABLE:
            outcome.failures |= dict.fromkeys(ill, Failure("the disk of the bookie is full"))
            return
        segments = bookie.begin_repair(record.ledger, ill)
        for run in runs_of(ill):
            await self._copy_run(bookie, record, run, outcome)
        bookie.end_repair(segments)

    async def _copy_run(
        self, bookie: Bookie, record: LedgerRecord, run: range, outcome: Outcome
    ) -> None:
        try:
            await self._admit(bookie, record)
            await self._copier.fill(record, [run], bookie.name)
        except EntriesLost as error:
            if len(run) == 1:
                outcome.failures[run.start] = Failure(why_lost(error), is_lost=True)
                return
            for entry in run:  # some of them may be readable elsewhere
                await self._copy_run(bookie, record, range(entry, entry + 1), outcome)
        except LedgerError as error:
            outcome.failures |= dict.fromkeys(run, Failure(f"{type(error).__name__}: {error}"))

    async def _admit(self, bookie: Bookie, record: LedgerRecord) -> None:
        """Let a bookie that lost fences accept entries of a closed ledger. It does so only after
        a new fence, in the term of the record, below which nobody adds entries. Raises
        LedgerError."""
        is_in_doubt = record.ledger < bookie.store.state.doubt_below
        if is_in_doubt and record.state is LedgerState.CLOSED:
            await bookie.fence(record.ledger, record.term)


def why_lost(error: EntriesLost) -> str:
    """Return why no bookie gives an entry."""
    if error.gone:
        return f"the other replicas are on bookie {' and '.join(error.gone)}, which no silo runs"
    return "no other bookie has a good replica"
