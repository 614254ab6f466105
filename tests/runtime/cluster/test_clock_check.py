"""The difference of two clocks: a warning above 5 s, and a refusal above 60 s."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from millstream.runtime.cluster.clock_check import ClockVerdict, judge_clock

SECONDS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("before_s", "table_s", "after_s", "ahead_s", "verdict"),
    [
        (100.0, 100.0, 100.0, 0.0, ClockVerdict.FINE),
        (105.0, 100.0, 105.0, 5.0, ClockVerdict.FINE),
        (105.5, 100.0, 105.5, 5.5, ClockVerdict.WARN),
        (94.5, 100.0, 94.5, -5.5, ClockVerdict.WARN),
        (160.0, 100.0, 160.0, 60.0, ClockVerdict.WARN),
        (160.5, 100.0, 160.5, 60.5, ClockVerdict.REFUSE),
        (39.5, 100.0, 39.5, -60.5, ClockVerdict.REFUSE),
        (100.0, 100.0, 130.0, 15.0, ClockVerdict.FINE),
        (160.0, 100.0, 164.0, 62.0, ClockVerdict.WARN),
    ],
)
def test_the_verdict_on_two_clocks(
    before_s: float, table_s: float, after_s: float, ahead_s: float, verdict: ClockVerdict
) -> None:
    assert judge_clock(before_s, table_s, after_s) == (ahead_s, verdict)


@given(SECONDS, st.floats(0, 1000), st.floats(0, 1))
def test_equal_clocks_are_fine_however_slow_the_answer_is(
    now_s: float, took_s: float, share: float
) -> None:
    ahead_s, verdict = judge_clock(now_s, now_s + took_s * share, now_s + took_s)
    assert verdict is ClockVerdict.FINE and abs(ahead_s) <= took_s / 2 + 1e-6
