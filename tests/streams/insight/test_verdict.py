"""The hop that delays a stream: each check by its facts, and their order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.streams import (
    HolderReport,
    LetterReport,
    QueueReport,
    StreamId,
    StreamReport,
    SubscriptionReport,
)
from millstream.streams.insight.verdict import CHECKS, rate_of, verdict

STREAM = StreamId("orders", "eu")
AGENT = QueueReport(
    "queue-3", "a:1@7", 4, "reading", "", 0, 1000, 900, 100, 5000, 200, 9000, 0.1, 1, 256
)
SUB = SubscriptionReport("audit", "Ledger/eu", "in_flight", 3, 0.2, 0.001, 0.01, 16)
FINE = StreamReport(STREAM, "queue-3", "a:1@7", "owned", True, AGENT, 100.0, [SUB])


def found(report: StreamReport, **earlier: Any) -> tuple[str, str]:
    before = replace(report, at_s=report.at_s - 0.5, **earlier)
    why = verdict(before, report)
    assert str(why) == why.text and why.reports == (before, report)
    return why.check, why.text


def with_agent(**changes: Any) -> StreamReport:
    return replace(FINE, agent=replace(AGENT, **changes))


def with_subscription(**changes: Any) -> StreamReport:
    return replace(FINE, subscriptions=[replace(SUB, **changes)])


def test_a_stream_that_gets_on_is_held_up_by_nothing() -> None:
    text = "Stream orders/eu makes progress: 3 events are being processed."
    assert found(FINE) == ("nothing", text)
    check, text = found(with_agent(backlog=12_345))
    assert check == "nothing" and "12,345 events of queue queue-3 are not read yet" in text


def test_a_stream_without_a_queue_says_why() -> None:
    text = "orders/eu: the stream has no queue: the function of FunctionMapper 'f' returned 9"
    said = found(StreamReport(STREAM, "", trouble=text))
    assert said == ("no_queue", f"Events cannot be published: {text}.")


@pytest.mark.parametrize(
    ("gaps", "gone", "said"),
    [
        (1, 1_400, "a gap, in which at most 1,400 messages of the queue were lost."),
        (2_000, None, "2,000 gaps, in which an unknown number of messages of the queue were lost."),
    ],
)
def test_of_whom_most_is_missing_it_is_said(gaps: int, gone: int | None, said: str) -> None:
    other = replace(SUB, id="other")
    report = replace(FINE, subscriptions=[other, replace(SUB, gaps=gaps, gone_max=gone), other])
    check, text = found(report)
    assert check == "nothing" and text.endswith(f" Subscription audit had {said}")
    assert not SUB.gaps_text


def test_a_stream_without_events_lately_says_so() -> None:
    assert found(replace(FINE, subscriptions=None))[0] == "nothing"
    assert "no event lately" in found(replace(FINE, subscriptions=None))[1]


def test_what_stands_still_says_what_it_waits_for() -> None:
    still = with_subscription(state="ready", still_s=31.0, reason="1 of 1 calls are in flight")
    assert found(still) == (
        "standing_still",
        "Subscription audit has made no progress for 31.0 s: 1 of 1 calls are in flight.",
    )
    assert found(with_subscription(state="ready", still_s=9.0, reason="calls"))[0] == "nothing"
    check, text = found(with_subscription(state="ready", still_s=31.0))
    assert check == "standing_still" and "please report this" in text
    cold = replace(FINE, subscriptions=None, reason="its subscriptions are being read")
    check, text = found(cold)
    assert check == "standing_still"
    assert text == "All of stream orders/eu waits: its subscriptions are being read."


def test_what_stands_still_is_told_after_ten_seconds_with_a_reason_of_500_characters() -> None:
    assert found(with_subscription(state="ready", still_s=9.99))[0] == "nothing"
    check, text = found(with_subscription(state="ready", still_s=10.0, reason="x" * 501))
    assert check == "standing_still"
    assert text.endswith(f"for 10.0 s: {'x' * 500}... (501 characters).")


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1"), (4, "4"), (5, "5 or more"), (6, "6 or more")]
)
def test_dead_letters_of_a_stream_are_counted_and_the_first_is_told(count: int, said: str) -> None:
    letters = [LetterReport(f"s/{at}", "s", at + 3, f"ValueError: {at}") for at in range(count)]
    check, text = found(replace(FINE, letters=letters))
    assert check == "nothing"
    assert text == (
        "Stream orders/eu makes progress: 3 events are being processed. Dead letters of the "
        f"stream: {said}. For example, s/0 was given up after 3 attempts: ValueError: 0."
    )


@pytest.mark.parametrize(
    ("lags", "said"),
    [
        (None, ""),
        ([], ""),
        ([0, 0], ""),
        ([1, 1_200], ", and 1,200 of its events were read and wait"),
        ([1], ", and 1 of its events were read and wait"),
    ],
)
def test_a_stream_that_is_paused_tells_how_many_of_its_events_wait(
    lags: list[int] | None, said: str
) -> None:
    subscriptions = None if lags is None else [replace(SUB, lag_events=lag) for lag in lags]
    report = replace(FINE, is_paused=True, subscriptions=subscriptions)
    text = f"Stream orders/eu is paused by `pause_stream`{said}. `resume_stream` resumes it."
    assert found(report) == ("stream_paused", text)


def test_a_queue_that_cannot_be_read_says_what_its_adapter_raised() -> None:
    check, text = found(with_agent(state="starting", trouble="Odd.read raised\nOSError"))
    assert check == "queue_unreachable"
    assert "queue-3" in text and "Odd.read raised\\nOSError" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"owner": "", "owner_state": "free"}, "No silo owns queue queue-3"),
        ({"is_owner_live": False}, "Silo a:1@7, the owner of queue queue-3, is gone"),
        ({}, "Silo a:1@7 owns queue queue-3, but does not read it yet"),
    ],
)
def test_a_queue_that_nobody_reads(changes: dict[str, Any], said: str) -> None:
    check, text = found(replace(FINE, agent=None, subscriptions=None, **changes))
    assert check == "queue_unowned" and said in text


def test_a_queue_that_is_handed_over() -> None:
    assert found(with_agent(state="paused", calls_out=7))[0] == "queue_paused"
    assert (
        "7 calls"
        in found(replace(FINE, owner_state="pausing", agent=replace(AGENT, calls_out=7)))[1]
    )


def test_a_full_cache_names_who_holds_it_and_why() -> None:
    slow = replace(SUB, id="slow", state="in_flight", lag_s=42.0, event_s=0.009)
    other = StreamId("orders", "us")
    report = with_agent(
        state="full", cached_events=200, read=2000, holder=HolderReport(other, slow)
    )
    check, text = found(report, agent=replace(AGENT, read=1000))
    assert check == "cache_full"
    assert "200 of 200 events" in text and "slow of stream orders/us, which lags by 42.0 s" in text
    assert "9 ms for an event, so it processes at most 111 events a second" in text
    assert "2,000 events a second are read" in text


def test_a_full_cache_whose_subscriptions_are_not_known() -> None:
    assert "being looked up" in found(with_agent(state="full", holder=HolderReport(STREAM)))[1]
    assert found(with_agent(state="full"))[0] == "cache_full"
    fast = HolderReport(STREAM, SUB)
    assert found(with_agent(state="full", holder=fast))[1].endswith("progress.")


@pytest.mark.parametrize(
    ("changes", "check", "said"),
    [
        ({"state": "faulted", "lag_events": 9}, "subscription_parked", "9 of its events wait"),
        ({"state": "paused"}, "subscription_parked", "is paused"),
        ({"state": "stream_paused"}, "subscription_parked", "`resume_stream` resumes it"),
        ({"state": "lagging"}, "subscription_parked", "read again from the queue"),
        (
            {"state": "unacked", "lag_s": 20.0, "lag_events": 3},
            "subscription_parked",
            "has 3 events that wait for manual acknowledgement, the oldest for 20.0 s",
        ),
        ({"state": "unacked", "lag_s": 9.0, "lag_events": 3}, "nothing", "3 events are"),
        (
            {"state": "backoff", "attempts": 2, "trouble": "ValueError: no"},
            "subscription_parked",
            "failed 2 attempts at one event, and retries it: ValueError: no",
        ),
        ({"out_s": 42.0}, "handler_blocked", "a delivery of subscription audit for 42.0 s"),
        ({"lag_s": 5.0, "event_s": 0.05}, "handler_slow", "50 ms for an event, so it processes"),
        (
            {"state": "backoff", "trouble": "Overloaded: full"},
            "grain_unreachable",
            "Ledger/eu could not be reached for subscription audit; the delivery is retried: Over",
        ),
    ],
)
def test_what_a_subscription_waits_for(changes: dict[str, Any], check: str, said: str) -> None:
    got, text = found(with_subscription(**changes))
    assert got == check and said in text


@pytest.mark.parametrize(
    "changes",
    [
        {"lag_s": 0.9, "event_s": 0.5},
        {"lag_s": 5.0, "event_s": 0.0},
        {"out_s": 9.0},
        {"out_s": 50.0, "event_s": 6.0},  # its events take that long
        {"state": "idle", "lag_s": 50.0},
        {"state": "ready"},
    ],
)
def test_what_is_no_cause(changes: dict[str, Any]) -> None:
    assert found(with_subscription(**changes))[0] == "nothing"


def test_nobody_subscribes() -> None:
    assert found(replace(FINE, subscriptions=[]))[0] == "nobody_subscribes"


def test_the_rate_is_not_told_across_owners() -> None:
    slow = replace(SUB, lag_s=5.0, event_s=0.05)
    report = replace(FINE, agent=replace(AGENT, read=5000), subscriptions=[slow])
    assert " 0 events a second are read" in found(report, agent=replace(AGENT, epoch=3))[1]
    assert " 8,000 events a second are read" in found(report, agent=AGENT)[1]


def test_what_is_worst_behind_is_named_first() -> None:
    one, two = (replace(SUB, id=name, lag_s=lag, event_s=0.1) for name, lag in (("x", 3), ("y", 9)))
    assert "Subscription y lags by 9.0 s" in found(replace(FINE, subscriptions=[one, two]))[1]


BROKEN: list[tuple[str, StreamReport]] = [
    ("queue_unowned", replace(FINE, agent=None)),
    ("queue_unreachable", with_agent(trouble="x", state="full")),
    ("queue_paused", with_agent(state="paused")),
    ("stream_paused", replace(with_agent(state="full"), is_paused=True)),
    ("cache_full", with_agent(state="full")),
]


@given(st.sampled_from(BROKEN), st.sampled_from(["faulted", "backoff", "in_flight"]))
def test_what_is_upstream_comes_first(broken: tuple[str, StreamReport], state: str) -> None:
    check, report = broken
    downstream = [replace(SUB, state=state, attempts=3, out_s=99.0, lag_s=99.0)]
    assert found(replace(report, subscriptions=downstream))[0] == check


def test_every_check_has_been_seen() -> None:
    assert CHECKS[:2] == ("no_queue", "queue_unreachable") and CHECKS[-1] == "nothing"


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"out_s": 10.0}, "handler_blocked"),
        ({"out_s": 9.99}, "nothing"),
        ({"out_s": 20.0, "event_s": 2.0}, "handler_blocked"),
        ({"out_s": 20.0, "event_s": 2.1}, "nothing"),
        ({"lag_s": 1.0, "event_s": 0.1}, "handler_slow"),
        ({"lag_s": 0.99, "event_s": 0.1}, "nothing"),
        ({"lag_s": 5.0, "event_s": 0.1, "state": "ready"}, "handler_slow"),
        ({"lag_s": 60.0, "event_s": 0.1, "state": "ready", "still_s": 9.99}, "handler_slow"),
        ({"lag_s": 60.0, "event_s": 0.1, "state": "ready", "still_s": 10.0}, "standing_still"),
        ({"lag_s": 60.0, "event_s": 0.1, "still_s": 10.0}, "handler_slow"),
        ({"lag_s": 10.0, "state": "unacked"}, "subscription_parked"),
        ({"lag_s": 9.99, "state": "unacked"}, "nothing"),
    ],
)
def test_the_limits_of_the_checks(changes: dict[str, Any], check: str) -> None:
    assert found(with_subscription(**changes))[0] == check


def test_a_rate_needs_two_looks_at_one_owner_at_two_times() -> None:
    after = replace(FINE, agent=replace(AGENT, read=1050))
    assert rate_of(replace(FINE, at_s=99.5), after) == 100.0
    assert rate_of(FINE, after) == 0.0
    assert rate_of(replace(FINE, at_s=101.0), after) == 0.0
    assert rate_of(replace(FINE, at_s=99.5, agent=None), after) == 0.0
    assert rate_of(replace(FINE, at_s=99.5), replace(FINE, agent=None)) == 0.0
    assert rate_of(replace(FINE, at_s=99.5), replace(after, agent=replace(AGENT, epoch=5))) == 0.0


def test_times_are_told_in_their_unit() -> None:
    assert "takes 999 ms" in found(with_subscription(lag_s=5.0, event_s=0.999))[1]
    assert "takes 1.0 s" in found(with_subscription(lag_s=5.0, event_s=1.0))[1]
    assert "takes 1.5 s" in found(with_subscription(lag_s=5.0, event_s=1.5))[1]


def test_a_subscription_that_has_done_nothing_yet_has_no_rate() -> None:
    assert (replace(SUB, event_s=0.0).rate, replace(SUB, event_s=0.5).rate) == (0.0, 2.0)
