"""The new items of a delivery: those after the last one that was done, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.streams import Token
from millstream.streams.consumer.fresh import fresh_of
from millstream.streams.contracts.item import Item


def fresh(seqs: list[int], last: int | None) -> list[int]:
    """Return the places of the new items in a delivery of these numbers."""
    items = [Item(Token(1, seq), b"x", None) for seq in seqs]
    return list(fresh_of(items, None if last is None else Token(1, last)))


def test_as_a_rule_all_are_new() -> None:
    assert fresh([4, 5, 9], 3) == fresh([4, 5, 9], None) == [0, 1, 2]
    assert fresh([], 3) == fresh([], None) == []


def test_where_all_are_new_no_list_of_them_is_made() -> None:
    items = [Item(Token(1, seq), b"x", None) for seq in (4, 5, 9)]
    assert fresh_of(items, Token(1, 3)) == fresh_of(items, None) == range(3)


def test_what_is_at_or_before_the_last_that_was_done_is_known() -> None:
    assert fresh([2, 3, 4, 5], 3) == [2, 3] and fresh([2, 9], 5) == [1]
    assert fresh([3], 3) == fresh([2], 3) == []


def test_what_comes_twice_in_a_delivery_or_out_of_order_is_new_once() -> None:
    assert fresh([4, 4, 5], 3) == [0, 2]
    assert fresh([4, 6, 5, 6, 7], None) == [0, 1, 4]
    assert fresh([1, 2, 1, 2, 3], None) == [0, 1, 4]


@given(st.lists(st.integers(0, 9), max_size=8), st.none() | st.integers(0, 9))
def test_what_is_new_rises_and_nothing_that_is_higher_is_left_out(
    seqs: list[int], last: int | None
) -> None:
    found = fresh(seqs, last)
    highest = -1 if last is None else last
    for at, seq in enumerate(seqs):
        assert (at in found) == (seq > highest)
        highest = max(highest, seq)
