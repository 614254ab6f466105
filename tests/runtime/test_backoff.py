"""The back-off: its range, growth and ceiling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import ConfigError
from millstream.runtime.extending import Backoff

rolls = st.floats(0, 1, exclude_max=True)


def test_backoff_doubles_up_to_its_ceiling() -> None:
    backoff = Backoff(first_s=1, factor=2, ceiling_s=5)
    assert [backoff.delay_s(n, 0.0) * 2 for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_backoff_spreads_between_half_and_whole() -> None:
    backoff = Backoff(first_s=8, factor=2, ceiling_s=8)
    assert [backoff.delay_s(1, roll) for roll in (0.0, 0.5, 0.75)] == [4, 6, 7]


@given(st.integers(1, 10**6), rolls, st.floats(1, 10), st.floats(0.001, 10), st.floats(0, 100))
def test_backoff_stays_in_range_for_every_attempt(
    attempt: int, roll: float, factor: float, first_s: float, more_s: float
) -> None:
    backoff = Backoff(first_s, factor, first_s + more_s)
    delay_s = backoff.delay_s(attempt, roll)
    assert first_s / 2 <= delay_s <= backoff.ceiling_s
    assert delay_s <= backoff.delay_s(attempt + 1, roll) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("first_s", "factor", "ceiling_s"),
    [(0, 2, 1), (-1, 2, 1), (2, 2, 1), (1, 0.5, 2), (1, 2, float("inf")), (1, float("nan"), 2)],
)
def test_backoff_refuses_options_that_cannot_work(
    first_s: float, factor: float, ceiling_s: float
) -> None:
    with pytest.raises(ConfigError):
        Backoff(first_s, factor, ceiling_s)


def test_backoff_counts_attempts_from_one() -> None:
    with pytest.raises(AssertionError):
        Backoff().delay_s(0, 0.5)
