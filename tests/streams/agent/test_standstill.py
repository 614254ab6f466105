"""A standstill is reported after a time, again while it lasts, and once when it has ended."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.streams.agent.watchdog.standstill import (
    AGAIN_S,
    PieceOfWork,
    Standstill,
    Standstills,
)


def work(place: Hashable, subscription: str = "s") -> PieceOfWork:
    return PieceOfWork("n/a", subscription, place, lambda: "reason", lambda: "dump")


def told(found: list[Standstill]) -> list[tuple[float, bool]]:
    return [(one.still_s, one.work is not None) for one in found]


def test_it_is_told_after_the_limit_then_each_time_the_wait_has_doubled_and_when_it_goes_on() -> (
    None
):
    still = Standstills(30.0)
    lines = {now_s: told(still.look([work(1)], now_s)) for now_s in range(0, 300, 10)}
    assert {now_s for now_s, line in lines.items() if line} == {30, 60, 120, 240}
    assert lines[120] == [(120.0, True)]
    assert told(still.look([work(2)], 300.0)) == [(300.0, False)]
    assert told(still.look([work(2)], 320.0)) == []


def test_what_has_no_work_any_more_has_gone_on() -> None:
    still = Standstills(30.0)
    for now_s in (0.0, 30.0):
        still.look([work(1), work(1, "t")], now_s)
    assert told(still.look([work(1, "t")], 40.0)) == [(40.0, False)]
    assert still.still_s("n/a", "s", 40.0) == 0.0
    assert still.still_s("n/a", "t", 40.0) == 40.0


def test_nothing_is_said_of_what_was_not_told() -> None:
    still = Standstills(30.0)
    still.look([work(1)], 0.0)
    assert told(still.look([work(2)], 29.0)) == []
    assert told(still.look([], 60.0)) == []


def test_what_lasts_is_told_again_within_the_longest_wait() -> None:
    still = Standstills(30.0)
    times = [now_s for now_s in range(0, 20 * int(AGAIN_S), 60) if still.look([work(1)], now_s)]
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= AGAIN_S + 60 and gaps[-1] >= AGAIN_S


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 2)), max_size=40))
def test_it_is_told_exactly_where_a_place_was_kept_for_the_limit(
    looks: list[tuple[int, int]],
) -> None:
    still, now_s, since_s, at, has_told = Standstills(30.0), 0.0, 0.0, -1, False
    for step_s, place in looks:
        now_s += step_s
        found = told(still.look([work(place)], now_s))
        passed = [(now_s - since_s, False)] if place != at and has_told else []
        if place != at:
            since_s, at, has_told = now_s, place, False
        is_late = now_s - since_s >= 30.0
        assert found[: len(passed)] == passed
        assert has_told or (len(found) > len(passed)) is is_late
        has_told = has_told or is_late
