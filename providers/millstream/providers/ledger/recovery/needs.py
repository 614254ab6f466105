"""The needs of a ledger, according to its record and the standing of bookies. Pure.

Owns: `FragmentSpan`, `Vacancy`, `Needs`, `needs_of`. As in BookKeeper, whole fragments are
re-replicated. Invariants: only entries that can never change are copied: those of former fragments,
and of the last one of a closed ledger. An empty fragment needs nothing.
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
    """The entries of one fragment, from `first` to `last`, which can never change."""

    first: int
    last: int
    bookies: tuple[str, ...]


class Vacancy(NamedTuple):
    """A place of a span that needs another bookie."""

    span: FragmentSpan
    place: int

    @property
    def bookie(self) -> str:
        """The bookie that has the place."""
        return self.span.bookies[self.place]


class Needs(NamedTuple):
    """The repairs that a ledger needs.

    Attributes:
        vacancies: The places whose bookie is lost or leaving, so that they need another bookie.
        short: How many more replicas each entry can get now. The ledger was made with too few
            bookies.
        unsure: The first entry whose replicas must be checked, because the bookies that answer may
            lack them. None: the ledger is open, all entries are checked, or one of these bookies
            does not answer.
        is_to_end: The ledger is open, and must be closed before its last fragment can be copied.
        copies: How many bookies of a fragment answer, for the fragment where they are fewest. A
            striped ledger can have fewer replicas of an entry.
        is_claimed: A process copies the ledger, or has left its claim.
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
        """Whether anything can be done now."""
        is_wide = self.short == 0 or self.is_to_end
        is_well = not self.vacancies and self.unsure is None and is_wide
        return not is_well or self.is_claimed or (self.is_to_end and may_end)


def spans_of(record: LedgerRecord) -> list[FragmentSpan]:
    """Return the parts of a ledger that can never change, fragment by fragment."""
    following = [fragment.first for fragment in record.fragments[1:]]
    if record.state is LedgerState.CLOSED:
        following.append(record.last + 1)
    return [
        FragmentSpan(fragment.first, end - 1, fragment.bookies)
        for fragment, end in zip(record.fragments, following, strict=False)
        if fragment.first < end
    ]


def bookies_of(record: LedgerRecord) -> set[str]:
    """Return the bookies that have entries of a ledger, or may get some. The bookies of an empty
    fragment of a closed ledger do not count."""
    found = {bookie for span in spans_of(record) for bookie in span.bookies}
    is_closed = record.state is LedgerState.CLOSED
    return found if is_closed else found.union(record.fragments[-1].bookies)


def needs_of(record: LedgerRecord, of: Callable[[str], BookieStanding], room: int) -> Needs:
    """Return the repairs that a ledger needs.

    `of` returns the standing of a bookie. `room` is the number of bookies that can take entries.
    """
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
    """Return the first entry whose replicas must be checked. None: nothing must be checked, or a
    bookie of these entries does not answer now."""
    first = record.complete + 1
    names = {name for span in spans if span.last >= first for name in span.bookies}
    is_ended = record.state is LedgerState.CLOSED and first <= record.last
    return first if is_ended and all(of(name).answers for name in names) else None


def short_by(record: LedgerRecord) -> int:
    """Return how many replicas of each entry are missing because the ledger was made with too few
    bookies. Such a ledger is not striped: each of its bookies has all entries."""
    wanted, quorum = record.wanted, record.quorum
    if wanted is None or quorum.ensemble != quorum.write:
        return 0
    return max(0, wanted.write - quorum.write)


def is_on(quorum: Quorum, place: int, entry: int) -> bool:
    """Whether an entry is on a place of its ensemble."""
    return (place - entry) % quorum.ensemble < quorum.write


def stripe(quorum: Quorum, place: int, first: int, last: int, most: int) -> Iterator[range]:
    """Yield the entries from `first` to `last` of a place, in runs of at most `most`."""
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
