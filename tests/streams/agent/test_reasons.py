"""The reasons that a delivery gives for not moving: their limits, and the text about its
failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.streams.agent.delivery.consumer_calls import ANSWER_S
from millstream.streams.agent.delivery.steps import DeliveryState
from millstream.streams.agent.delivery.subscriber import Seat
from millstream.streams.agent.watchdog.waits import LATE_S, TROUBLE_CHARS_MAX, reason_of

NOW_S = 1_000.0
LIMIT_S = 20.0 + ANSWER_S + LATE_S


def reason(state: DeliveryState, seat: dict[str, Any], one: dict[str, Any], **of: Any) -> str:
    """Return the reason of a subscription of Ledger/eu whose delivery has these facts."""
    delivery = SimpleNamespace(
        **{"state": state, "trouble": "", "attempts": 3, "when_s": NOW_S, **of},
        out_s=lambda now_s: now_s - of["began_s"],
    )
    options = SimpleNamespace(handler_timeout_s=20.0)
    facts = {"held": "", "is_paused": False, **one}
    subscriber: Any = SimpleNamespace(
        work=delivery, grain_type="Ledger", grain_key="eu", options=options, **facts
    )
    return reason_of(subscriber, Seat(NOW_S, 0, 1, **seat))


@pytest.mark.parametrize(
    ("out_s", "is_out", "said"),
    [
        (
            LIMIT_S,
            True,
            f"the delivery has waited {LIMIT_S:.1f} s for the reply of Ledger/eu in silo a:1@1",
        ),
        (LIMIT_S + 0.1, True, ""),
        (1.0, False, ""),
    ],
)
def test_a_reply_is_waited_for_until_its_call_must_have_ended(
    out_s: float, is_out: bool, said: str
) -> None:
    seat = {"is_out": is_out, "silo": "a:1@1"}
    assert reason(DeliveryState.IN_FLIGHT, seat, {}, began_s=NOW_S - out_s) == said


@pytest.mark.parametrize(
    ("left_s", "said"),
    [
        (2.5, "the delivery is retried in 2.5 s, after -"),
        (-LATE_S, "the delivery is retried in 0.0 s, after -"),
        (-LATE_S - 0.1, ""),
    ],
)
def test_a_timer_that_is_late_is_no_reason(left_s: float, said: str) -> None:
    assert reason(DeliveryState.BACKOFF, {}, {}, when_s=NOW_S + left_s) == said


def test_of_the_trouble_its_first_line_is_told_as_far_as_it_is_short() -> None:
    trouble = "x" * (TROUBLE_CHARS_MAX + 1) + "\nline 2\nline 3"
    said = reason(DeliveryState.BACKOFF, {}, {}, trouble=trouble)
    assert said.endswith(f"after {'x' * TROUBLE_CHARS_MAX}... (301 characters)")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("", "the subscription is faulted: `resume()` resumes it"),
        (
            "ValueError: no",
            "the subscription is faulted, after ValueError: no: `resume()` resumes it",
        ),
    ],
)
def test_a_subscription_that_is_faulted_says_after_what(trouble: str, said: str) -> None:
    assert reason(DeliveryState.FAULTED, {}, {"held": "faulted"}, trouble=trouble) == said
