"""The row of one ledger: its state, its quorum, and which bookies store which entries.

Owns: `LedgerRecord`, `Fragment`, and the allowed changes of a record, as functions from record to
record. Not: storing it (`metadata`). Terms and fragments work as in BookKeeper.

Invariants:

- The state changes from open to recovering to closed, or from open to closed.
- Terms and the starts of fragments only rise.
- The last entry of a closed ledger never changes.
- Only the process that will close a ledger under recovery adds fragments to it.
- An entry that was given up stays so, even if a bookie returns with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from .entry import NOTHING
from .errors import LedgerClosed, LedgerFenced
from .quorum import Quorum

__all__ = [
    "ENDLESS",
    "Claim",
    "Fragment",
    "LedgerRecord",
    "LedgerState",
    "close",
    "give_up_entries",
    "recovering",
    "with_ensemble",
]


ENDLESS = 2**62
"""The end of a range of lost entries whose number is unknown."""


class LedgerState(Enum):
    """The state of a ledger decides who may change it: its writer, a recovery, or nobody."""

    OPEN = "open"
    RECOVERING = "recovering"
    CLOSED = "closed"


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """The bookies, by place, of the entries from `first` to the beginning of the next fragment."""

    first: int
    bookies: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A claim: entries are being copied to these bookies, which keep them before a fragment names
    them.

    `token`: names the process that copies. A later claim replaces this one and makes its copies
    void.
    """

    token: str
    bookies: tuple[str, ...]


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A ledger as its row says.

    `term`: bookies that know it refuse entries of lower terms. `last`, `length`: the last entry and
    the bytes of all payloads, once the ledger is closed. `topic`: the topic that the ledger belongs
    to. `first`: the number of its first message in the topic. `owner`: the epoch and opening of the
    topic that made the ledger. `operation`: the token of the write that made this version; a writer
    that lost the answer recognises its own write by it. `wanted`: the requested quorum, if there
    were too few bookies for it. `complete`: once the ledger is closed, entries up to this one are
    known to have been on every bookie of their write sets. `claim`: the claim of the process that
    copies entries elsewhere. `lost`: the entries that an operator gave up, as disjoint ranges of
    first and last, in order. The last range ends at `ENDLESS` if there may have been more entries
    than `last` says.
    """

    ledger: int
    state: LedgerState
    quorum: Quorum
    term: int
    fragments: tuple[Fragment, ...]
    topic: str = ""
    created_s: float = 0.0
    last: int = NOTHING
    length: int = 0
    operation: str = ""
    wanted: Quorum | None = None
    complete: int = NOTHING
    claim: Claim | None = None
    lost: tuple[tuple[int, int], ...] = ()
    first: int = 0
    owner: tuple[int, int] = (0, 0)

    def fragment_of(self, entry: int) -> Fragment:
        """Return the fragment that an entry is in, or would be in."""
        return next(f for f in reversed(self.fragments) if f.first <= max(entry, 0))

    def holders(self, entry: int) -> tuple[str, ...]:
        """Return the bookies of an entry's write set."""
        bookies = self.fragment_of(entry).bookies
        return tuple(bookies[place] for place in self.quorum.write_set(entry))

    def needs(self, bookie: str) -> bool:
        """Whether a bookie may have entries of this ledger that are read there, now or soon."""
        if self.state is not LedgerState.CLOSED or (self.claim and bookie in self.claim.bookies):
            return True
        return any(bookie in fragment.bookies for fragment in self.fragments)

    def is_ended_at(self, entry: int) -> bool:
        """Whether an entry is in a fragment that has ended. The writer of an open fragment may not
        have sent the entry to all of its bookies yet."""
        return self.state is LedgerState.CLOSED or entry < self.fragments[-1].first

    def find_lost(self, entry: int) -> tuple[int, int] | None:
        """Return the range of given-up entries that contains an entry."""
        at = bisect_right(self.lost, entry, key=lambda one: one[0]) - 1
        return self.lost[at] if at >= 0 and entry <= self.lost[at][1] else None

    def iter_kept(self, entries: range) -> Iterator[range]:
        """Yield the parts of a range of entries that were not given up."""
        at = entries.start
        for first, last in self.lost:
            if at < min(first, entries.stop):
                yield range(at, min(first, entries.stop))
            at = max(at, last + 1)
        if at < entries.stop:
            yield range(at, entries.stop)

    @property
    def is_end_lost(self) -> bool:
        """Whether its last entries, or possible entries after them, were given up."""
        return bool(self.lost) and self.lost[-1][1] >= self.last


def with_ensemble(
    record: LedgerRecord, term: int, first: int, instead: Mapping[int, tuple[str, str]]
) -> LedgerRecord:
    """Return the record after the writer of `term` replaced bookies from entry `first` on.

    `instead`: {place: (old, new)}.

    A place whose bookie is no longer the old one stays as it is. Raises LedgerFenced and
    LedgerClosed.
    """
    refuse_others(record, term)
    last = record.fragments[-1]
    assert last.first <= first, (last.first, first)
    bookies = list(last.bookies)
    for place, (old, new) in instead.items():
        if bookies[place] == old:
            bookies[place] = new
    kept = record.fragments[:-1] if last.first == first else record.fragments
    changed = (*kept, Fragment(first, tuple(bookies)))
    return msgspec.structs.replace(record, fragments=changed)


def recovering(record: LedgerRecord) -> LedgerRecord:
    """Begin a recovery in a new term. Raises LedgerClosed."""
    if record.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {record.ledger} is closed and ends with entry {record.last}")
    return msgspec.structs.replace(record, state=LedgerState.RECOVERING, term=record.term + 1)


def close(
    record: LedgerRecord,
    term: int,
    last: int,
    length: int,
    fragments: tuple[Fragment, ...] | None = None,
    complete: int = NOTHING,
) -> LedgerRecord:
    """Close the ledger, as its writer or as its recovery in `term`.

    `complete`: up to this entry, all entries are known to be on all of their bookies. It changes
    nothing to close a ledger again at the same end. Raises LedgerFenced: there is a higher term;
    LedgerClosed: the ledger has another end.
    """
    if record.state is LedgerState.CLOSED and (record.last, record.length) == (last, length):
        return record
    refuse_others(record, term, also=LedgerState.RECOVERING)
    return msgspec.structs.replace(
        record,
        state=LedgerState.CLOSED,
        last=last,
        length=length,
        complete=min(complete, last),
        fragments=record.fragments if fragments is None else fragments,
    )


def give_up_entries(
    record: LedgerRecord, term: int, last: int, length: int, lost: Iterable[tuple[int, int]]
) -> LedgerRecord:
    """Give up lost entries. A ledger that is not closed is closed at this end, as by `close`.

    It does no harm to repeat this. Raises LedgerFenced, LedgerClosed.
    """
    ended = close(record, term, last, length)
    return msgspec.structs.replace(ended, lost=merge_ranges((*ended.lost, *lost)))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same entries as disjoint ranges in order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def refuse_others(record: LedgerRecord, term: int, also: LedgerState = LedgerState.OPEN) -> None:
    """Raise unless the writer of `term` may change the record."""
    if record.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {record.ledger} is closed and ends with entry {record.last}")
    if record.term > term or record.state not in {LedgerState.OPEN, also}:
        text = f"ledger {record.ledger} is {record.state.value} in term {record.term}"
        raise LedgerFenced(f"{text}; term {term} cannot write any more", record.term)
