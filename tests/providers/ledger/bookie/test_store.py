"""The store of a bookie: when a change takes effect, and when it is durable."""

from __future__ import annotations

import pytest
from tests.providers.ledger.bookie.kit import Looked, entry

from millstream.providers.ledger.bookie.form.frame import JournalRecord, RecordKind, frame_of
from millstream.providers.ledger.bookie.form.index import Index
from millstream.providers.ledger.bookie.form.state import TERM_MAX, DirectoryState
from millstream.providers.ledger.bookie.store import Store, within


class Landed:
    """A store of one segment, and the frames that were written to it."""

    def __init__(self) -> None:
        self.changed: list[tuple[int, int | None]] = []
        self.store = Store("d", Index(), DirectoryState(), {}, self.note)
        self.store.begin_segment(1)
        self.offset, self.sequence, self.check = 512, 0, 0

    def note(self, ledger: int, confirmed: int | None) -> None:
        self.changed.append((ledger, confirmed))

    def land(self, *records: JournalRecord) -> None:
        frame = frame_of(1, self.sequence + 1, self.check, records)
        self.sequence += 1
        self.store.land(self.offset, frame, records, self.sequence, self.check)
        self.offset, self.check = self.offset + frame.length, frame.check


def added(ledger: int, number: int) -> JournalRecord:
    return JournalRecord(RecordKind.ENTRY, ledger, number, entry(ledger, number))


def test_a_fence_that_was_asked_for_counts_at_once_and_is_durable_when_it_landed() -> None:
    landed = Landed()
    store = landed.store
    store.ask_fence(1, 3)
    store.ask_fence(1, 2)
    assert (store.term_of(1), store.is_fenced(1, 1), landed.changed) == (3, False, [(1, None)] * 2)
    landed.land(JournalRecord(RecordKind.FENCE, 1, 2))
    assert (store.term_of(1), store.is_fenced(1, 2), store.is_fenced(1, 3)) == (3, True, False)
    landed.land(JournalRecord(RecordKind.FENCE, 1, 3))
    assert store.is_fenced(1, 3) and not store.is_fenced(1, 4)
    assert store.ledgers() == [1] and not store._asked, "what is durable is asked for no more"


def test_a_tombstone_that_was_asked_for_counts_at_once() -> None:
    landed = Landed()
    store = landed.store
    landed.land(added(1, 0), added(2, 0), JournalRecord(RecordKind.FENCE, 3, 4))
    store.ask_forget([1, 3])
    assert store.is_forgotten(1) and not store.is_forgotten(2) and store.index.find(1, 0)
    landed.land(
        added(1, 1),
        JournalRecord(RecordKind.FORGET, 1, 1),
        JournalRecord(RecordKind.FORGET, 3, 3),
        added(1, 2),
    )
    assert [store.index.find(1, number) for number in range(3)] == [0, 0, 0]
    assert (store.term_of(1), store.term_of(3), store.ledgers()) == (TERM_MAX, TERM_MAX, [2])
    assert landed.changed == [(1, 0), (1, None)], (
        "who waits for more of it is told that it is gone, too"
    )
    assert not store._forgetting
    sealed = store.end_segment()
    assert sealed is not None
    assert [found.ledger for found in sealed.ledgers] == [2]


def test_whoever_waits_is_told_of_what_is_confirmed_and_if_it_is_said_again() -> None:
    landed = Landed()
    landed.land(added(1, 0))
    assert landed.changed == [], "it is the first: nothing before it is confirmed"
    landed.land(added(1, 2), added(1, 1))
    assert landed.changed == [(1, 1)] and landed.store.index.find_confirmed(1) == 1
    landed.store.tell(1, 2)
    assert landed.changed == [(1, 1), (1, None)] and landed.store.index.find_confirmed(1) == 2
    landed.store.tell(1, 1)
    assert (
        landed.changed == [(1, 1), (1, None), (1, None)]
        and landed.store.index.find_confirmed(1) == 2
    )


def test_a_segment_has_an_index_file_from_its_first_frame_on() -> None:
    landed = Landed()
    assert landed.store.end_segment() is None
    landed.land(added(1, 0))
    landed.land(added(1, 1))
    sealed = landed.store.end_segment()
    assert sealed is not None
    assert (sealed.first, sealed.previous, sealed.last) == (1, 0, 2)
    assert (sealed.check, sealed.end) == (landed.check, landed.offset)
    assert landed.store.ends == {1: landed.offset}
    assert Store("d", Index(), DirectoryState(), {}, print).end_segment() is None


def test_of_a_segment_that_is_removed_nothing_is_counted() -> None:
    landed = Landed()
    landed.land(added(1, 0))
    assert landed.store.live_bytes() > 0 and set(landed.store.index.segments) == {1}
    landed.store.on_removed(1)
    assert landed.store.live_bytes() == 0 and landed.store.ends == {}
    assert landed.store.index.segments == {}
    landed.store.on_removed(1)


def test_finding_ledgers_of_a_range_costs_the_smaller_of_the_two() -> None:
    many = Looked({ledger: 1 for ledger in range(1000)})
    assert within(many, 10, 12) == [10, 11, 12] and many.looks == 3
    few = Looked({5: 1, 2000: 1})
    assert within(few, 0, 999) == [5] and few.looks == 0


@pytest.mark.parametrize(
    ("forgotten", "below", "is_so"),
    [
        ([], 1, False),
        ([(0, 4)], 5, True),
        ([(0, 4)], 4, True),
        ([(0, 4)], 6, False),
        ([(0, 5)], 5, True),
        ([(1, 9)], 5, False),
        ([(0, 2), (4, 9)], 5, False),
    ],
    ids=str,
)
def test_below_a_ledger_all_are_forgotten(
    forgotten: list[tuple[int, int]], below: int, is_so: bool
) -> None:
    landed = Landed()
    landed.land(*(JournalRecord(RecordKind.FORGET, *pair) for pair in forgotten))
    assert landed.store.is_forgotten_below(below) is is_so
