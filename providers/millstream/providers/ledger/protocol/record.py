"""The row of one ledger: its state, its quorums, and which bookies hold which entries.

Owns: `LedgerRecord`, `Fragment`, and the changes that a record may undergo, as functions from
record to record. Not: storing it (`metadata`). Idea: spec/ledger.md 2.5, 4.1, 4.15, 7.1.
Invariants: open → recovering → closed, or open → closed; terms and starts of fragments rise; the
last entry of a closed ledger never changes; nobody adds a fragment to a ledger under recovery but
the one who closes it; an entry that was given up stays so, whoever comes back.
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
"""The end of a range of lost entries of which nobody knows how many there were."""


class LedgerState(Enum):
    """Who may change a ledger: its writer, those who recover it, nobody."""

    OPEN = "open"
    RECOVERING = "recovering"
    CLOSED = "closed"


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """Entries from `first` to the next fragment's are on these bookies, by place."""

    first: int
    bookies: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Somebody copies entries to these bookies, which keep them though no fragment names them yet.

    `token`: whose claim it is; a later one replaces it, and what the former has copied is void.
    """

    token: str
    bookies: tuple[str, ...]


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A ledger as its row says.

    `term`: bookies refuse what was written in a lower one, once they know it. `last`, `length`:
    the last entry and the bytes of all payloads, once it is closed. `topic`: whose it is, for
    people and for whoever looks for orphans. `first`: the number of its first message in the
    topic. `owner`: the epoch and opening of the topic in which it was made. `operation`: the token
    of the write that made this version, by which a writer whose answer was lost knows its own.
    `wanted`: the quorum that was asked for, if there were too few bookies for its copies when it
    was made. `complete`: once it
    is closed, entries up to this one are known to have been on every bookie of their write sets.
    `claim`: of whoever copies them elsewhere. `lost`: entries that a person gave up, first and
    last, in order and apart; the last range ends at `ENDLESS` if there may have been more entries
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
        """The fragment that an entry is in, or would be."""
        return next(f for f in reversed(self.fragments) if f.first <= max(entry, 0))

    def holders(self, entry: int) -> tuple[str, ...]:
        """The bookies of an entry's write set."""
        bookies = self.fragment_of(entry).bookies
        return tuple(bookies[place] for place in self.quorum.write_set(entry))

    def needs(self, bookie: str) -> bool:
        """May a bookie have entries that somebody looks for there, now or soon?"""
        if self.state is not LedgerState.CLOSED or (self.claim and bookie in self.claim.bookies):
            return True
        return any(bookie in fragment.bookies for fragment in self.fragments)

    def is_ended_at(self, entry: int) -> bool:
        """Is an entry in a fragment that has an end? The writer of an open one may not have sent
        the entry to all of its bookies yet."""
        return self.state is LedgerState.CLOSED or entry < self.fragments[-1].first

    def find_lost(self, entry: int) -> tuple[int, int] | None:
        """The range of entries that were given up which an entry is in."""
        at = bisect_right(self.lost, entry, key=lambda one: one[0]) - 1
        return self.lost[at] if at >= 0 and entry <= self.lost[at][1] else None

    def iter_kept(self, entries: range) -> Iterator[range]:
        """Those of these entries, which follow each other, that were not given up."""
        at = entries.start
        for first, last in self.lost:
            if at < min(first, entries.stop):
                yield range(at, min(first, entries.stop))
            at = max(at, last + 1)
        if at < entries.stop:
            yield range(at, entries.stop)

    @property
    def is_end_lost(self) -> bool:
        """Were its last entries given up, or some that may have been behind them?"""
        return bool(self.lost) and self.lost[-1][1] >= self.last


def with_ensemble(
    record: LedgerRecord, term: int, first: int, instead: Mapping[int, tuple[str, str]]
) -> LedgerRecord:
    """The writer of `term` has other bookies from entry `first` on: {place: (old, new)}.

    A place whose bookie is no longer the old one keeps what it has. Raises LedgerFenced and
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
    """Someone recovers it, in a new term. Raises LedgerClosed."""
    if record.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {record.ledger} ends with entry {record.last}")
    return msgspec.structs.replace(record, state=LedgerState.RECOVERING, term=record.term + 1)


def close(
    record: LedgerRecord,
    term: int,
    last: int,
    length: int,
    fragments: tuple[Fragment, ...] | None = None,
    complete: int = NOTHING,
) -> LedgerRecord:
    """Its writer, or who recovers it in `term`, gives it its end.

    `complete`: up to here all entries are known to be on all of their bookies. Closing again with
    the same end changes nothing. Raises LedgerFenced: a higher term; LedgerClosed: another end.
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
    """These entries are lost for good; without an end the ledger gets this one, as by `close`.

    Again is harmless. Raises LedgerFenced, LedgerClosed.
    """
    ended = close(record, term, last, length)
    return msgspec.structs.replace(ended, lost=merge_ranges((*ended.lost, *lost)))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same entries as ranges that are in order and apart."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def refuse_others(record: LedgerRecord, term: int, also: LedgerState = LedgerState.OPEN) -> None:
    """Raise unless the record is that of the writer of `term`, and may be changed by it."""
    if record.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {record.ledger} ends with entry {record.last}")
    if record.term > term or record.state not in {LedgerState.OPEN, also}:
        text = f"ledger {record.ledger} is {record.state.value} in term {record.term}"
        raise LedgerFenced(f"{text}: term {term} is over", record.term)
