"""The limits of one read, and the frequency of acknowledgements."""

from __future__ import annotations

import pytest

from millstream.runtime import ConfigError
from millstream.streams import FlowOptions


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
