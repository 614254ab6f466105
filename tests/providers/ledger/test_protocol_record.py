"""The record of a ledger: which change follows which, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.protocol.record import (
    Claim,
    Fragment,
    LedgerRecord,
    LedgerState,
    closed,
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
        with_ensemble(one, 2, 4, {0: ("a", "d")})  # only with its end
    with pytest.raises(LedgerFenced):
        closed(one, 1, 3, 30)
    with pytest.raises(LedgerFenced):
        closed(two, 2, 3, 30)


def test_an_end_is_final() -> None:
    end = closed(recovering(OPEN), 2, 3, 30, (Fragment(0, ("a", "b", "d")),))
    assert (end.state, end.last, end.length) == (LedgerState.CLOSED, 3, 30)
    assert end.fragments == (Fragment(0, ("a", "b", "d")),)
    assert closed(end, 1, 3, 30) is end
    changes: list[Callable[[], object]] = [
        lambda: closed(end, 2, 4, 40),
        lambda: recovering(end),
        lambda: with_ensemble(end, 2, 4, {}),
    ]
    for change in changes:
        with pytest.raises(LedgerClosed, match="ends with entry 3"):
            change()
    assert closed(OPEN, 1, 3, 30).state is LedgerState.CLOSED


def test_a_bookie_may_let_go_of_a_ledger_that_ended_without_it() -> None:
    assert OPEN.needs("x"), "the ledger may still come to any bookie"
    end = closed(OPEN, 1, 3, 30)
    assert end.needs("a") and not end.needs("x")
    copied = msgspec.structs.replace(end, claim=Claim("token", ("x",)))
    assert copied.needs("x") and not copied.needs("y")


def test_no_more_is_complete_than_the_ledger_has() -> None:
    assert closed(OPEN, 1, 3, 30).complete == -1
    assert closed(OPEN, 1, 3, 30, complete=2).complete == 2
    assert closed(OPEN, 1, 3, 30, complete=9).complete == 3
