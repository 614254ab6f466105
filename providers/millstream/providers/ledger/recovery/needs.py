"""What a ledger lacks, by its record and by which bookies can be counted on. Pure.

Owns: `FragmentSpan`, `Vacancy`, `Needs`, `needs_of`. Idea: spec/ledger.md 6.5 to 6.7, A01.
Invariants: only entries with an end are copied: those of former fragments, and of the last one of a
closed ledger (what is behind could still change); an empty fragment lacks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState

from .bookie_standing import BookieStanding

__all__ = [
    "FragmentSpan",
    "Needs",
    "Vacancy",
    "bookies_of",
    "is_on",
    "needs_of",
    "spans_of",
    "stripe",
    "unsure_from",
]


class FragmentSpan(NamedTuple):
    """Entries of one fragment, from `first` to `last`, that will never be others."""

    first: int
    last: int
    bookies: tuple[str, ...]


class Vacancy(NamedTuple):
    """A place of a span whose bookie shall be another one."""

    span: FragmentSpan
    place: int

    @property
    def bookie(self) -> str:
        """Who has the place."""
        return self.span.bookies[self.place]


class Needs(NamedTuple):
    """What is to be done for a ledger.

    `vacancies`: places to be filled. `short`: so many copies of each entry can be made more, since
    fewer bookies than wanted were there at the ledger's making. `unsure`: from this entry on some
    may lack copies on bookies that are there; None: it has no end yet, all is known, or some are
    away.
    `is_to_end`: it cannot stay as it is, and only with an end can it be copied. `copies`: bookies
    that answer, where they are fewest. `is_claimed`: somebody copies, or has left a claim.
    """

    ledger: int
    vacancies: tuple[Vacancy, ...] = ()
    short: int = 0
    unsure: int | None = None
    is_to_end: bool = False
    copies: int = 0
    is_claimed: bool = False

    def __bool__(self) -> bool:
        return self.can_be_met(may_end=True)

    def can_be_met(self, may_end: bool) -> bool:
        """Can anything be done now?"""
        is_wide = self.short == 0 or self.is_to_end
        is_well = not self.vacancies and self.unsure is None and is_wide
        return not is_well or self.is_claimed or (self.is_to_end and may_end)


def spans_of(record: LedgerRecord) -> list[FragmentSpan]:
    """What of a ledger has an end, fragment by fragment."""
    following = [fragment.first for fragment in record.fragments[1:]]
    if record.state is LedgerState.CLOSED:
        following.append(record.last + 1)
    return [
        FragmentSpan(fragment.first, end - 1, fragment.bookies)
        for fragment, end in zip(record.fragments, following, strict=False)
        if fragment.first < end
    ]


def bookies_of(record: LedgerRecord) -> set[str]:
    """The bookies that have entries of a ledger, or may get some; none of an empty fragment of one
    that has its end."""
    found = {bookie for span in spans_of(record) for bookie in span.bookies}
    is_closed = record.state is LedgerState.CLOSED
    return found if is_closed else found.union(record.fragments[-1].bookies)


def needs_of(record: LedgerRecord, of: Callable[[str], BookieStanding], room: int) -> Needs:
    """What a ledger lacks, where so many bookies have room."""
    spans = spans_of(record)
    vacancies = [
        Vacancy(span, place)
        for span in spans
        for place, bookie in enumerate(span.bookies)
        if of(bookie).is_needless
    ]
    is_closed = record.state is LedgerState.CLOSED
    short = min(short_by(record), max(0, room - record.quorum.write))
    is_hurt = any(of(bookie).is_needless for bookie in record.fragments[-1].bookies)
    return Needs(
        record.ledger,
        tuple(vacancies),
        short,
        unsure_from(record, spans, of),
        not is_closed and (is_hurt or short > 0),
        min(sum(of(bookie).answers for bookie in one.bookies) for one in record.fragments),
        record.claim is not None,
    )


def unsure_from(
    record: LedgerRecord, spans: Sequence[FragmentSpan], of: Callable[[str], BookieStanding]
) -> int | None:
    """From where on somebody has to look for copies, if all who should have them can be asked."""
    first = record.complete + 1
    names = {name for span in spans if span.last >= first for name in span.bookies}
    is_ended = record.state is LedgerState.CLOSED and first <= record.last
    return first if is_ended and all(of(name).answers for name in names) else None


def short_by(record: LedgerRecord) -> int:
    """By how many copies the ledger was made smaller than wanted; each bookie has all then."""
    wanted, quorum = record.wanted, record.quorum
    if wanted is None or quorum.ensemble != quorum.write:
        return 0
    return max(0, wanted.write - quorum.write)


def is_on(quorum: Quorum, place: int, entry: int) -> bool:
    """Is an entry on a place of its ensemble?"""
    return (place - entry) % quorum.ensemble < quorum.write


def stripe(quorum: Quorum, place: int, first: int, last: int, most: int) -> Iterator[range]:
    """The entries from `first` to `last` that a place has, in runs of `most` at the most."""
    at = first
    while at <= last:
        if not is_on(quorum, place, at):
            at += 1
            continue
        end = at + 1
        while end <= last and end - at < most and is_on(quorum, place, end):
            end += 1
        yield range(at, end)
        at = end
