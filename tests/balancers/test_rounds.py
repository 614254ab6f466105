"""The silos that a balancer counts, and the time at which it begins to count them."""

from __future__ import annotations

import math

import pytest

from millstream.balancers.rounds import Counting, check_number
from millstream.runtime import ConfigError

A, AB, ABC = frozenset("a"), frozenset("ab"), frozenset("abc")


def counting(*counted: str) -> Counting:
    found = Counting(5.0)
    found.count(frozenset(counted))
    return found


def test_joins_count_after_the_delay_and_each_moves_it_three_delays_at_most() -> None:
    found = counting("a")
    assert found.due_s == math.inf
    found.see(AB, 100.0)
    assert (found.due_s, found.counted) == (105.0, A)
    found.see(ABC, 104.0)
    assert found.due_s == 109.0
    found.see(ABC, 114.0)
    assert found.due_s == 115.0
    found.count(ABC)
    assert (found.due_s, found.counted) == (math.inf, ABC)
    found.see(frozenset("abcd"), 200.0)
    assert found.due_s == 205.0


def test_at_first_nobody_counts_and_who_is_seen_does_after_the_delay() -> None:
    found = Counting(5.0)
    assert (found.due_s, found.counted) == (math.inf, frozenset())
    found.see(A, 3.0)
    assert found.due_s == 8.0


def test_who_is_gone_counts_at_once_also_while_others_join() -> None:
    found = counting("a", "b")
    found.see(A, 7.0)
    assert found.due_s == 7.0
    found = counting("a", "b")
    found.see(ABC, 7.0)
    found.see(frozenset("ac"), 8.0)
    assert found.due_s == 8.0


def test_who_comes_and_goes_within_the_delay_counts_for_nothing() -> None:
    found = counting("a")
    found.see(AB, 1.0)
    found.see(A, 2.0)
    assert found.due_s == math.inf
    found.see(AB, 30.0)
    assert found.due_s == 35.0


@pytest.mark.parametrize("number", [0, 0.0, 1, 2.5])
def test_a_number_that_may_be_zero_is_taken(number: float) -> None:
    check_number("x", number)
    if number > 0:
        check_number("x", number, may_be_zero=False)


@pytest.mark.parametrize("number", [-1, math.inf, math.nan, "1", True, None])
def test_what_is_no_number_is_refused_by_name(number: object) -> None:
    for may_be_zero in (True, False):
        with pytest.raises(ConfigError, match="x is"):
            check_number("x", number, may_be_zero=may_be_zero)
    with pytest.raises(ConfigError, match="above 0"):
        check_number("x", 0, may_be_zero=False)
