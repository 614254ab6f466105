"""Each checker with a history that keeps its promise, and with histories that break it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from millstream.runtime.testing import (
    Activated,
    CallEnded,
    CallStarted,
    Deactivated,
    DeadLettered,
    Delivered,
    History,
    HostDown,
    NothingToJudge,
    Published,
    QueueAcquired,
    Repaired,
    SiloDeclaredDead,
    SimulationError,
    Subscribed,
    Unsubscribed,
    check_all,
    check_live_after_repair,
    check_nothing_lost,
    check_one_activation,
    check_one_owner,
    check_tokens_rise,
    check_views,
)
from millstream.runtime.testing.history import Event


def told(*events: Event, end_s: float = 1000.0) -> History:
    """Record one event per second, beginning with second 1, and check the history."""
    times = iter([*(float(number) for number in range(1, len(events) + 1)), end_s])
    history = History(lambda: next(times))
    for event in events:
        history.record(event)
    history.close()
    history.check()
    return history


def delivered(seq: int, *, again: bool = False, who: str = "sub") -> Delivered:
    return Delivered("s", who, (1, seq, 0), f"item{seq}", again)


def test_history_ends_and_is_limited() -> None:
    history = History(lambda: 1.0, events_max=1)
    history.record(Repaired())
    with pytest.raises(SimulationError, match="events_max is 1"):
        history.record(Repaired())
    history.close()
    history.record(Repaired())
    assert len(history.events) == 1 and "Repaired()" in history.text(5)


GOOD: list[Event] = [
    Activated("g", "silo1", 4),
    Deactivated("g", "silo1"),
    Activated("g", "silo2", 4),
    SiloDeclaredDead("silo2", 5),
    Activated("g", "silo3", 5),
    Activated("g", "silo2", 5),
    QueueAcquired("q", "silo1", 1),
    QueueAcquired("q", "silo3", 2),
    QueueAcquired("q", "silo3", 2),
    Subscribed("s", "sub"),
    Published("s", "item1"),
    delivered(1),
    delivered(2),
    delivered(1, again=True),
    CallStarted("1"),
    CallEnded("1"),
    Repaired(),
]


def test_checkers_find_nothing_in_a_good_history() -> None:
    assert check_all(told(*GOOD), live_within_s=5) == []


def test_two_live_activations_of_one_version_are_found() -> None:
    history = told(
        Activated("g", "silo1", 4), Activated("h", "silo2", 4), Activated("g", "silo2", 4)
    )
    assert check_one_activation(history) == [
        "t=3.000000: g activated in silo2 (view 4) while live in silo1 (view 4)"
    ]


def test_silo_that_activates_twice_is_found() -> None:
    assert check_one_activation(told(Activated("g", "silo1", 4), Activated("g", "silo1", 4)))


def test_activations_of_two_versions_collide_only_when_asked() -> None:
    history = told(Activated("g", "silo1", 4), Activated("g", "silo2", 5))
    assert check_one_activation(history) == []
    assert len(check_one_activation(history, across_versions=True)) == 1


@pytest.mark.parametrize(
    "end",
    [Deactivated("g", "silo1"), SiloDeclaredDead("silo1", 5), HostDown("host1")],
    ids=lambda event: type(event).__name__,
)
def test_activation_ends_by_itself_with_its_host_or_by_the_view(end: Event) -> None:
    first, second = Activated("g", "silo1", 4, "host1"), Activated("g", "silo2", 4)
    assert check_one_activation(told(first, end, second)) == []
    assert len(check_one_activation(told(first, second, end))) == 1


def test_token_that_falls_or_repeats_unmarked_is_found() -> None:
    found = check_tokens_rise(told(delivered(2), delivered(2), delivered(1), delivered(3)))
    assert found == [
        "t=2.000000: sub got (1, 2, 0) of s after (1, 2, 0), not marked as redelivered",
        "t=3.000000: sub got (1, 1, 0) of s after (1, 2, 0), not marked as redelivered",
    ]


def test_tokens_of_two_subscriptions_do_not_meet() -> None:
    assert check_tokens_rise(told(delivered(2), delivered(1, who="other"))) == []


def test_redelivery_does_not_lower_the_mark() -> None:
    history = told(delivered(2), delivered(1, again=True), delivered(2))
    assert len(check_tokens_rise(history)) == 1


def test_a_stray_delivery_neither_rises_nor_has_to() -> None:
    stray = Delivered("s", "sub", (1, 5, 0), "item5", is_stray=True)
    assert check_tokens_rise(told(delivered(4), stray, delivered(5), stray)) == []
    assert len(check_tokens_rise(told(delivered(5), stray, delivered(5)))) == 1


def test_accepted_item_that_one_subscription_never_got_is_found() -> None:
    history = told(
        Subscribed("s", "sub"), Subscribed("s", "other"), Published("s", "item1"), delivered(1)
    )
    assert check_nothing_lost(history) == [
        "t=3.000000: item1 of s was accepted, other never got it"
    ]


def test_item_seen_before_its_publish_returned_counts() -> None:
    history = told(Subscribed("s", "sub"), delivered(1), Published("s", "item1", 1.5))
    assert check_nothing_lost(history) == []


@pytest.mark.parametrize(
    "events",
    [
        [Published("s", "i"), Subscribed("s", "sub")],
        [Subscribed("s", "sub"), Published("s", "i", 0.5)],
        [Subscribed("s", "sub"), Published("s", "i"), Unsubscribed("s", "sub")],
        [Subscribed("s", "sub"), Published("s", "i"), DeadLettered("s", "sub", "i")],
        [Subscribed("other", "sub"), Published("s", "i")],
    ],
    ids=["published before", "begun before", "left", "dead letter", "other stream"],
)
def test_item_is_not_owed(events: list[Event]) -> None:
    assert check_nothing_lost(told(*events)) == []


def test_two_owners_of_one_epoch_are_found() -> None:
    history = told(QueueAcquired("q", "silo1", 7), QueueAcquired("q", "silo2", 7))
    assert check_one_owner(history) == ["t=2.000000: q epoch 7 is owned by silo2, and by silo1"]


def test_call_that_never_ends_after_the_repair_is_found() -> None:
    history = told(
        CallStarted("1", "a", "Counter.add"), Repaired(), CallStarted("2"), CallEnded("2")
    )
    assert check_live_after_repair(history, 10) == [
        "t=1.000000: call 1 Counter.add from a did not end within 10 s of the repair at 2.000000"
    ]


def test_call_that_ends_too_late_is_found() -> None:
    history = told(CallStarted("1"), Repaired(), Repaired(), *[HostDown("x")] * 5, CallEnded("1"))
    assert len(check_live_after_repair(history, 5)) == 1
    assert check_live_after_repair(history, 6) == []


def test_call_of_a_crashed_caller_is_not_judged() -> None:
    assert check_live_after_repair(told(CallStarted("1", "a"), HostDown("a")), 10) == []
    assert check_live_after_repair(told(HostDown("a"), CallStarted("1", "a")), 10) != []


def test_call_is_not_judged_before_its_time() -> None:
    assert check_live_after_repair(told(CallStarted("1"), end_s=5), 10) == []


def test_item_that_is_not_seen_in_time_is_found() -> None:
    history = told(Subscribed("s", "sub"), Published("s", "item1"), Repaired())
    assert check_live_after_repair(history, 10) == [
        "t=2.000000: item1 of s did not reach sub within 10 s of the repair at 3.000000"
    ]


@pytest.mark.parametrize(
    "bad",
    [
        [Activated("x", "silo1", 9), Activated("x", "silo4", 9)],
        [delivered(0)],
        [Published("s", "lost")],
        [QueueAcquired("q", "silo9", 2)],
        [CallStarted("never")],
    ],
    ids=["activation", "token", "lost", "owner", "liveness"],
)
def test_check_all_asks_every_checker(bad: list[Event]) -> None:
    assert check_all(told(*GOOD, *bad), live_within_s=5)


def test_checkers_do_not_change_the_history() -> None:
    history = told(*GOOD)
    before = list(history.events)
    checkers: list[Callable[[History], list[str]]] = [check_one_activation, check_nothing_lost]
    for checker in checkers:
        assert checker(history) == checker(history)
    assert history.events == before


def test_checkers_say_how_much_they_looked_at() -> None:
    findings = check_all(told(*GOOD), live_within_s=5)
    assert findings.looked_at == {
        "Activated": 4,
        "CallStarted": 1,
        "Delivered": 3,
        "Published": 1,
        "QueueAcquired": 3,
    }


@pytest.mark.parametrize(
    "check",
    [
        check_one_activation,
        check_tokens_rise,
        check_nothing_lost,
        check_one_owner,
        check_views,
        partial(check_live_after_repair, within_s=5),
        partial(check_all, live_within_s=5),
    ],
    ids=lambda check: getattr(check, "func", check).__name__,
)
def test_a_checker_with_nothing_to_judge_is_an_error(check: Callable[[History], object]) -> None:
    for history in (told(), told(Repaired(), HostDown("a"))):
        with pytest.raises(NothingToJudge, match="record these events, or do not call"):
            check(history)
