"""When an acknowledgement is due, and the limits of one read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.errors import ConfigError
from millstream.streams.agent.flow import AckThrottle, FlowOptions

OPTIONS = FlowOptions(read_events_max=10, read_bytes_max=1_000, ack_every_events=4, ack_every_s=1.0)


def test_throttle_waits_while_nothing_moved() -> None:
    throttle = AckThrottle(OPTIONS, 0.0)
    assert not throttle.has_moved(0) and not throttle.is_due(0, 100.0)


def test_throttle_acknowledges_a_single_message_when_the_time_has_passed() -> None:
    throttle = AckThrottle(OPTIONS, 10.0)
    assert throttle.next_s == 11.0
    assert not throttle.is_due(1, 10.9)
    assert throttle.is_due(1, 11.0)


def test_throttle_acknowledges_at_once_when_enough_is_done() -> None:
    throttle = AckThrottle(OPTIONS, 10.0)
    assert not throttle.is_due(3, 10.0)
    assert throttle.is_due(4, 10.0)


def test_throttle_counts_anew_after_what_was_sent() -> None:
    throttle = AckThrottle(OPTIONS, 0.0)
    throttle.sent(4, 2.0)
    assert not throttle.is_due(4, 99.0)
    assert not throttle.is_due(7, 2.9)
    assert throttle.is_due(8, 2.9)


def test_throttle_stays_due_until_the_receiver_took_it() -> None:
    throttle = AckThrottle(OPTIONS, 0.0)
    assert throttle.is_due(4, 0.0) and throttle.is_due(4, 0.0)


@given(st.integers(0, 9), st.integers(0, 9), st.floats(0, 5), st.floats(0, 5))
def test_if_the_most_that_can_be_done_is_not_due_nothing_is(
    acked: int, more: int, sent_s: float, later_s: float
) -> None:
    throttle = AckThrottle(OPTIONS, 0.0)
    throttle.sent(acked, sent_s)
    now_s = sent_s + later_s
    if not throttle.is_due(acked + more, now_s):
        assert not any(throttle.is_due(acked + one, now_s) for one in range(more + 1))


@pytest.mark.parametrize(
    "wrong",
    [{"read_events_max": 0}, {"read_bytes_max": 0}, {"ack_every_events": 0}],
)
def test_flow_options_refuse_a_limit_of_nothing(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FlowOptions(**wrong)


def test_flow_options_refuse_an_endless_wait() -> None:
    with pytest.raises(ConfigError, match="ack_every_s"):
        FlowOptions(ack_every_s=float("inf"))


def test_the_least_of_each_option_is_allowed() -> None:
    least = FlowOptions(read_events_max=1, read_bytes_max=1, ack_every_events=1, ack_every_s=0.0)
    assert least.ack_every_s == 0.0
