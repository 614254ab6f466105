"""The record of a ledger: its possible changes, and refused ones."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import ENDLESS, LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.record import (
    Claim,
    Fragment,
    close,
    give_up_entries,
    recovering,
    with_ensemble,
)

OPEN = LedgerRecord(
    7, LedgerState.OPEN, Quorum(3, 2, 2), 1, (Fragment(0, ("a", "b", "c")),), "t", 5.0
)


def test_a_record_is_the_same_after_the_wire() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(OPEN), type=LedgerRecord) == OPEN


def test_other_bookies_before_anything_is_confirmed_replace_the_fragment() -> None:
    changed = with_ensemble(OPEN, 1, 0, {1: ("b", "d")})
    assert changed.fragments == (Fragment(0, ("a", "d", "c")),)


def test_other_bookies_later_begin_a_fragment_and_keep_the_places_of_the_rest() -> None:
    changed = with_ensemble(OPEN, 1, 4, {0: ("a", "d"), 2: ("c", "e")})
    assert changed.fragments == (*OPEN.fragments, Fragment(4, ("d", "b", "e")))
    assert changed.fragment_of(3).bookies == ("a", "b", "c")
    assert changed.fragment_of(4).bookies == ("d", "b", "e")
    assert changed.holders(4) == ("b", "e") and changed.holders(3) == ("a", "b")


def test_the_last_of_several_fragments_is_the_one_that_changes() -> None:
    two = with_ensemble(OPEN, 1, 1, {0: ("a", "d")})
    three = with_ensemble(two, 1, 5, {1: ("b", "e")})
    assert three.fragments == (*two.fragments, Fragment(5, ("d", "e", "c")))
    again = with_ensemble(three, 1, 5, {2: ("c", "f")})
    assert again.fragments == (*two.fragments, Fragment(5, ("d", "e", "f")))
    names = [again.fragment_of(entry).bookies[0] for entry in (-1, 0, 1, 9)]
    assert names == ["a", "a", "d", "d"]


def test_a_place_that_has_another_bookie_by_now_keeps_it() -> None:
    assert with_ensemble(OPEN, 1, 0, {1: ("x", "d")}) == OPEN


def test_who_recovers_has_a_higher_term_and_the_writer_changes_nothing_more() -> None:
    one = recovering(OPEN)
    two = recovering(one)
    assert (one.state, one.term, two.term) == (LedgerState.RECOVERING, 2, 3)
    with pytest.raises(LedgerFenced) as fenced:
        with_ensemble(one, 1, 4, {0: ("a", "d")})
    assert fenced.value.term == 2
    with pytest.raises(LedgerFenced):
        # a recovery replaces bookies only when it closes the ledger
        with_ensemble(one, 2, 4, {0: ("a", "d")})
    with pytest.raises(LedgerFenced):
        close(one, 1, 3, 30)
    with pytest.raises(LedgerFenced):
        close(two, 2, 3, 30)


def test_an_end_is_final() -> None:
    end = close(recovering(OPEN), 2, 3, 30, (Fragment(0, ("a", "b", "d")),))
    assert (end.state, end.last, end.length) == (LedgerState.CLOSED, 3, 30)
    assert end.fragments == (Fragment(0, ("a", "b", "d")),)
    assert close(end, 1, 3, 30) is end
    changes: list[Callable[[], object]] = [
        lambda: close(end, 2, 4, 40),
        lambda: recovering(end),
        lambda: with_ensemble(end, 2, 4, {}),
    ]
    for change in changes:
        with pytest.raises(LedgerClosed, match="ends with entry 3"):
            change()
    assert close(OPEN, 1, 3, 30).state is LedgerState.CLOSED


def test_a_bookie_may_let_go_of_a_ledger_that_ended_without_it() -> None:
    assert OPEN.needs("x"), "the ledger may still come to any bookie"
    end = close(OPEN, 1, 3, 30)
    assert end.needs("a") and not end.needs("x")
    copied = msgspec.structs.replace(end, claim=Claim("token", ("x",)))
    assert copied.needs("x") and not copied.needs("y")


def test_no_more_is_complete_than_the_ledger_has() -> None:
    assert close(OPEN, 1, 3, 30).complete == -1
    assert close(OPEN, 1, 3, 30, complete=2).complete == 2
    assert close(OPEN, 1, 3, 30, complete=9).complete == 3


# --- entries that an operator gave up


def with_lost(*lost: tuple[int, int], last: int = 9) -> LedgerRecord:
    return msgspec.structs.replace(close(OPEN, 1, last, 90), lost=lost)


def test_an_entry_is_in_the_range_that_was_given_up_with_it() -> None:
    record = with_lost((0, 0), (3, 5), (8, ENDLESS))
    found = [record.find_lost(entry) for entry in range(10)]
    assert found[0] == (0, 0) and found[1:3] == [None, None]
    assert found[3:6] == [(3, 5)] * 3 and found[6:8] == [None, None]
    assert found[8:] == [(8, ENDLESS)] * 2
    assert OPEN.find_lost(0) is None


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        (range(0, 10), [range(1, 3), range(6, 8)]),
        (range(1, 3), [range(1, 3)]),
        (range(2, 7), [range(2, 3), range(6, 7)]),
        (range(3, 6), []),
        (range(4, 8), [range(6, 8)]),
        (range(9, 12), []),
        (range(6, 7), [range(6, 7)]),
        (range(2, 2), []),
    ],
)
def test_what_was_not_given_up_is_left_of_a_range(entries: range, kept: list[range]) -> None:
    assert list(with_lost((0, 0), (3, 5), (8, ENDLESS)).iter_kept(entries)) == kept
    assert list(with_lost((0, 0), (3, 5), (8, 11)).iter_kept(entries)) == kept


def test_of_a_ledger_of_which_nothing_was_given_up_all_is_left() -> None:
    assert (
        list(OPEN.iter_kept(range(2, 5))) == [range(2, 5)]
        and list(OPEN.iter_kept(range(2, 2))) == []
    )


def test_the_end_is_lost_where_the_last_entry_is_or_more_may_have_been() -> None:
    assert not OPEN.is_end_lost and not with_lost((0, 8)).is_end_lost
    assert with_lost((8, 9)).is_end_lost and with_lost((3, 3), (10, ENDLESS)).is_end_lost


def test_entries_are_given_up_with_the_end_of_a_ledger_that_has_none() -> None:
    record = give_up_entries(recovering(OPEN), 2, 4, 40, [(5, ENDLESS), (1, 2)])
    assert (record.state, record.last, record.length) == (LedgerState.CLOSED, 4, 40)
    assert record.lost == ((1, 2), (5, ENDLESS))
    assert give_up_entries(record, 2, 4, 40, [(5, ENDLESS), (1, 2)]) == record
    with pytest.raises(LedgerFenced):
        give_up_entries(recovering(recovering(OPEN)), 2, 4, 40, [])
    with pytest.raises(LedgerClosed):
        give_up_entries(record, 2, 3, 30, [])


def test_what_is_given_up_of_a_closed_ledger_joins_what_was_before() -> None:
    record = give_up_entries(with_lost((1, 2), (7, 7)), 1, 9, 90, [(3, 3), (5, 5), (6, 8)])
    assert record.lost == ((1, 3), (5, 8))
    assert give_up_entries(record, 1, 9, 90, [(2, 6)]).lost == ((1, 8),)
    assert (record.state, record.last, record.length) == (LedgerState.CLOSED, 9, 90)


@pytest.mark.parametrize("state", list(LedgerState))
def test_what_is_closed_or_before_the_last_fragment_is_in_one_that_has_an_end(
    state: LedgerState,
) -> None:
    fragments = tuple(Fragment(first, ("a", "b", "c")) for first in (0, 3, 7))
    record = msgspec.structs.replace(OPEN, state=state, fragments=fragments)
    is_closed = state is LedgerState.CLOSED
    ended = [record.is_ended_at(entry) for entry in (0, 3, 6, 7, 8)]
    assert ended == [True, True, True, is_closed, is_closed]
