"""The entries that a bookie should have, according to the record of their ledger. Pure.

Owns: `Judged`, `judge`, `missing_from`. Invariants: an entry is copied to a bookie only if its
content can never change. This is so if it is in a fragment that has ended, or if its writer has
confirmed it. An entry that was given up, that is beyond the end, or that belongs to other bookies
is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState
from millstream.providers.ledger.recovery.needs import spans_of, stripe

__all__ = ["Judged", "judge", "missing_from", "runs_of"]

RUN_ENTRIES = 1_024
"""The number of entries that `missing_from` checks between two steps."""


class Judged(NamedTuple):
    """Entries of one ledger. `now`: the bookie should have these. `later`: unknown yet. The others
    need no replica on this bookie."""

    now: tuple[int, ...]
    later: tuple[int, ...]


def judge(record: LedgerRecord, bookie: str, entries: Collection[int], confirmed: int) -> Judged:
    """Judge entries of a ledger; all up to `confirmed` are confirmed."""
    wanted = [entry for entry in sorted(entries) if is_wanted(record, bookie, entry)]
    later = [one for one in wanted if one > confirmed and not record.is_ended_at(one)]
    return Judged(tuple(one for one in wanted if one not in later), tuple(later))


def is_wanted(record: LedgerRecord, bookie: str, entry: int) -> bool:
    """Whether this bookie is, or will be, one of the entry's bookies."""
    is_behind = record.state is LedgerState.CLOSED and entry > record.last
    return not is_behind and record.find_lost(entry) is None and bookie in record.holders(entry)


def missing_from(
    record: LedgerRecord, bookie: str, has: Callable[[int], bool]
) -> Iterator[list[int]]:
    """Yield the entries that a bookie should have and does not, in parts of up to `RUN_ENTRIES`."""
    for span in spans_of(record):
        for place, holder in enumerate(span.bookies):
            if holder != bookie:
                continue
            for run in stripe(record.quorum, place, span.first, span.last, RUN_ENTRIES):
                kept = (entry for part in record.iter_kept(run) for entry in part)
                yield [entry for entry in kept if not has(entry)]


def runs_of(entries: Collection[int]) -> list[range]:
    """Return the numbers of entries as ranges."""
    found: list[range] = []
    for entry in sorted(entries):
        if found and found[-1].stop == entry:
            found[-1] = range(found[-1].start, entry + 1)
        else:
            found.append(range(entry, entry + 1))
    return found
