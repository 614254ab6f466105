"""The delivery core: single rules, and each state with each event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.streams.agent import events
from tests.streams.agent.cursors import SUBSCRIPTION, append, delivery_at
from tests.streams.agent.cursors import add as add_to
from tests.streams.agent.events import Event
from tests.streams.agent.stepping import RAISED, A, offer, send, state_of, steps

from millstream.runtime import ConfigError
from millstream.runtime.extending import Backoff
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, Token
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    AckBy,
    Action,
    CallReply,
    DeliveryState,
    Died,
    Failure,
    FailureKind,
    Fetch,
    GiveUp,
    GiveUpOutcome,
    Unreachable,
    WaitUntil,
)

TIMED_OUT = Failure(FailureKind.TIMEOUT, "after 60 s")
OPTIONS = DeliveryOptions(retries=2, backoff=Backoff(first_s=1, factor=2, ceiling_s=8))
State = DeliveryState


def message(seq: int, count: int) -> QueueMessage:
    return QueueMessage(A, Token(0, seq), [b"%d" % n for n in range(count)])


def add(cache: QueueCache, seq: int, count: int) -> None:
    add_to(cache, message(seq, count))


def arrive(cache: QueueCache, delivery: Delivery, seq: int, count: int = 1) -> None:
    """Append another message, and tell the delivery as the driver does."""
    slot = append(cache, message(seq, count))
    assert steps(delivery, events.arrived(slot)) == ()
    cache.release(slot)
    cache.check()


def delivery_in(
    count: int, options: DeliveryOptions = OPTIONS, after: Token | None = None, **how: bool
) -> tuple[QueueCache, Delivery]:
    """Make a cache with one message of `count` items of stream A, and a delivery at it."""
    cache = QueueCache(CacheLimits())
    slot = append(cache, message(1, count))
    delivery = delivery_at(LaggingCursors(cache, is_used=True), slot, options, after, **how)
    cache.release(slot)
    return cache, delivery


def delivery_of(count: int, options: DeliveryOptions = OPTIONS) -> Delivery:
    return delivery_in(count, options)[1]


def offered(delivery: Delivery) -> list[int]:
    """Return the indexes of the items that a wake-up offers."""
    return [item.token.index for item in offer(delivery).items]


def fail(delivery: Delivery, done: int = 0, error: Failure = RAISED) -> Sequence[Action]:
    """Send, and let the item after the first `done` items fail at time 0."""
    send(delivery)
    return steps(delivery, CallReply(done, error, 0.0, 0.0))


def test_delivery_offers_the_window_and_moves_only_after_the_reply() -> None:
    delivery = delivery_of(40)
    assert offered(delivery) == list(range(16))
    assert offered(delivery) == list(range(16))
    steps(delivery, events.sent(16, 0.0))
    assert steps(delivery, events.wake) == ()
    assert steps(delivery, CallReply(16, None, 0.2, 0.0)) == ()
    assert state_of(delivery) is State.READY
    assert delivery.position == Token(0, 1, 15)
    assert offered(delivery) == list(range(16, 32))


def test_delivery_may_send_less_than_offered() -> None:
    delivery = delivery_of(5)
    offered(delivery)
    steps(delivery, events.sent(2, 0.0), CallReply(2, None, 0.0, 0.0))
    assert offered(delivery) == [2, 3, 4]


def test_delivery_is_idle_after_the_last_item_and_lets_the_message_go() -> None:
    cache, delivery = delivery_in(3)
    send(delivery)
    assert cache.find_acked() is None
    assert steps(delivery, CallReply(3, None, 0.0, 0.0)) == ()
    assert state_of(delivery) is State.IDLE and delivery.cursor.next_token is None
    assert cache.find_acked() == Token(0, 1)


def test_delivery_goes_on_with_what_arrived_during_the_last_call() -> None:
    cache, delivery = delivery_in(1)
    send(delivery)
    add(cache, 2, 2)
    assert steps(delivery, CallReply(1, None, 0.0, 0.0)) == ()
    assert offered(delivery) == [0, 1]


def test_delivery_begins_behind_the_last_token() -> None:
    _, delivery = delivery_in(4, OPTIONS, Token(0, 1, 1))
    assert delivery.position == Token(0, 1, 1)
    assert offered(delivery) == [2, 3]


def test_delivery_is_idle_at_once_when_everything_was_seen() -> None:
    cache, delivery = delivery_in(2, OPTIONS, Token(0, 1, 1))
    assert state_of(delivery) is State.IDLE and delivery.position == Token(0, 1, 1)
    assert steps(delivery, events.wake) == () and cache.find_acked() == Token(0, 1)


def test_a_failure_behind_the_last_item_is_none() -> None:
    delivery = delivery_of(20)
    send(delivery)
    assert steps(delivery, CallReply(16, RAISED, 0.2, 0.0)) == ()
    assert (delivery.state, delivery.attempts) == (State.READY, 0)


def test_nothing_is_sent_that_was_not_offered_since_the_last_reply() -> None:
    delivery = delivery_of(20)
    send(delivery)
    steps(delivery, CallReply(16, None, 0.2, 0.0))
    with pytest.raises(AssertionError, match="sent 1 of 0"):
        delivery.on_sent(1, 1.0)


@pytest.mark.parametrize(
    ("took_s", "window"), [(0.0, 32), (0.124, 32), (0.125, 16), (0.25, 16), (0.26, 8)]
)
def test_calls_grow_below_half_of_the_target_and_shrink_above_it(
    took_s: float, window: int
) -> None:
    delivery = delivery_of(99)
    send(delivery)
    steps(delivery, CallReply(16, None, took_s, 0.0))
    assert delivery.window == window


def test_failed_item_is_tried_alone_until_it_succeeds() -> None:
    delivery = delivery_of(20)
    assert fail(delivery, done=3) == (WaitUntil(0.5),)
    assert delivery.position == Token(0, 1, 2)
    assert steps(delivery, events.tick(0.4)) == (WaitUntil(0.5),)
    assert steps(delivery, events.tick(0.5)) == ()
    action = offer(delivery)
    assert (action.attempt, [item.token.index for item in action.items]) == (2, [3])
    steps(delivery, events.sent(1, 1.0), CallReply(1, None, 1.0, 0.0))
    assert offered(delivery) == list(range(4, 20))


def test_items_done_before_the_failure_begin_a_new_count() -> None:
    delivery = delivery_of(9)
    fail(delivery)
    steps(delivery, events.tick(9.0))
    send(delivery)
    steps(delivery, CallReply(1, None, 9.0, 0.0))
    assert fail(delivery, done=2) == (WaitUntil(0.5),)


def test_item_is_given_up_after_its_retries() -> None:
    delivery = delivery_of(4)
    assert fail(delivery, done=1) == (WaitUntil(0.5),)
    steps(delivery, events.tick(9.0))
    assert fail(delivery, error=TIMED_OUT) == (WaitUntil(1.0),)
    steps(delivery, events.tick(9.0))
    (action,) = fail(delivery)
    assert isinstance(action, GiveUp)
    assert (action.item.token.index, action.error, action.attempts) == (1, RAISED, 3)
    assert state_of(delivery) is State.GIVING_UP
    assert steps(delivery, events.wake, events.tick(99.0)) == ()


def given_up(count: int, done: int = 0) -> Delivery:
    """Make a delivery that has just given up the item after the first `done` items."""
    delivery = delivery_of(count, DeliveryOptions(retries=0))
    fail(delivery, done=done)
    assert state_of(delivery) is State.GIVING_UP
    return delivery


@pytest.mark.parametrize("outcome", ["dead_letter", "skip"])
def test_cursor_moves_past_a_given_up_item_only_after_the_answer(outcome: GiveUpOutcome) -> None:
    delivery = given_up(4, done=1)
    assert delivery.position == Token(0, 1, 0)
    assert steps(delivery, events.given_up(outcome)) == ()
    assert delivery.position == Token(0, 1, 1)
    assert offered(delivery) == [2, 3]


def test_delivery_is_idle_when_the_last_item_was_given_up() -> None:
    delivery = given_up(1)
    assert steps(delivery, events.given_up("skip")) == () and state_of(delivery) is State.IDLE
    assert delivery.position == Token(0, 1) and delivery.attempts == 0


def test_paused_delivery_holds_what_is_not_done_and_resumes_behind_its_token() -> None:
    cache, delivery = delivery_in(4, DeliveryOptions(retries=0))
    fail(delivery, done=2)
    assert steps(delivery, events.given_up("pause")) == ()
    assert state_of(delivery) is State.FAULTED
    assert cache.first_slot(A, delivery.position) is not None
    assert steps(delivery, events.wake, events.tick(1e9), Unreachable("silo gone", 0.0, 0.0)) == ()
    steps(delivery, events.resume(delivery.position))
    assert offered(delivery) == [2, 3]


def test_held_delivery_offers_nothing_until_it_is_resumed() -> None:
    _, delivery = delivery_in(4, DeliveryOptions(), is_faulted=True)
    delivery.check()
    assert steps(delivery, events.wake, events.tick(1e9)) == ()
    steps(delivery, events.resume(None))
    assert offered(delivery) == [0, 1, 2, 3]


def test_give_up_is_asked_again_when_the_item_could_not_be_stored() -> None:
    delivery = given_up(3)
    first = Unreachable("store is away", 10.0, 0.0)
    assert steps(delivery, first) == (WaitUntil(10.05),)
    (action,) = steps(delivery, events.tick(10.1))
    assert isinstance(action, GiveUp) and action.attempts == 1
    assert steps(delivery, Unreachable("still", 20.0, 0.0)) == (WaitUntil(20.1),)
    steps(delivery, events.tick(21.0), events.given_up("dead_letter"))
    assert len(send(delivery).items) == 2
    assert steps(delivery, Unreachable("silo gone", 30.0, 0.0)) == (WaitUntil(30.05),)


def test_unreachable_repeats_the_batch_without_counting_an_attempt() -> None:
    delivery = delivery_of(5)
    for nth in range(50):
        send(delivery)
        (action,) = steps(delivery, Unreachable("overloaded", 0.0, 0.0))
        assert action == WaitUntil(min(8, 2.0**nth) / 2)
        steps(delivery, events.tick(100.0))
    again = offer(delivery)
    assert (again.attempt, len(again.items)) == (1, 5)


def test_unreachable_keeps_the_attempts_of_a_failed_item() -> None:
    delivery = delivery_of(5)
    fail(delivery)
    steps(delivery, events.tick(9.0))
    send(delivery)
    steps(delivery, Unreachable("moved", 9.0, 0.0), events.tick(99.0))
    again = offer(delivery)
    assert (again.attempt, len(again.items)) == (2, 1)


def test_back_off_for_lost_calls_begins_anew_after_a_reply() -> None:
    delivery = delivery_of(5)
    for _ in range(4):
        send(delivery)
        steps(delivery, Unreachable("gone", 0.0, 0.0), events.tick(100.0))
    send(delivery)
    steps(delivery, CallReply(2, None, 100.0, 0.0))
    send(delivery)
    assert steps(delivery, Unreachable("gone", 100.0, 0.0)) == (WaitUntil(100.5),)


def test_reply_without_progress_or_error_backs_off() -> None:
    delivery = delivery_of(5)
    send(delivery)
    assert steps(delivery, CallReply(0, None, 0.0, 0.0)) == (WaitUntil(0.5),)


@pytest.mark.parametrize("done", [-3, 6, 99])
def test_reply_outside_of_what_was_sent_is_bounded(done: int) -> None:
    delivery = delivery_of(8)
    offered(delivery)
    steps(delivery, events.sent(5, 0.0), CallReply(done, RAISED, 0.0, 0.0), events.tick(9.0))
    assert offered(delivery)[0] == (0 if done < 0 else 5)


def call(delivery: Delivery, took_s: float) -> int:
    """Make one whole call of this duration; return its number of items."""
    count = len(send(delivery, at_s=100.0).items)
    steps(delivery, CallReply(count, None, 100.0 + took_s, 0.0))
    return count


def test_window_doubles_while_calls_are_fast_up_to_max_batch() -> None:
    delivery = delivery_of(1_000, DeliveryOptions(max_batch=50))
    assert [call(delivery, 0.1) for _ in range(4)] == [16, 32, 50, 50]


def test_window_halves_while_calls_are_slow_down_to_one() -> None:
    delivery = delivery_of(1_000)
    assert [call(delivery, 1.0) for _ in range(6)] == [16, 8, 4, 2, 1, 1]


def test_window_stays_when_a_call_was_shorter_than_the_window() -> None:
    cache, delivery = delivery_in(1)
    add(cache, 2, 1)
    offered(delivery)
    steps(delivery, events.sent(1, 0.0), CallReply(1, None, 0.0, 0.0))
    assert delivery.window == 16


def test_window_falls_to_one_after_a_time_out() -> None:
    delivery = delivery_of(100)
    fail(delivery, error=TIMED_OUT)
    steps(delivery, events.tick(9.0))
    assert [call(delivery, 0.01) for _ in range(3)] == [1, 2, 4]


def test_window_begins_within_the_options() -> None:
    assert delivery_of(1).window == 16
    assert offered(delivery_of(9, DeliveryOptions(max_batch=1))) == [0]


def test_new_limits_bound_the_window() -> None:
    cache, delivery = delivery_in(16)
    call(delivery, 0.1)
    delivery.follow(replace(OPTIONS, max_batch=4))
    delivery.check()
    arrive(cache, delivery, 2, 40)
    assert delivery.window == 4 and len(offered(delivery)) == 4


def test_new_limits_bound_what_is_out_by_hand() -> None:
    cache, delivery = delivery_in(1, replace(OPTIONS, max_unacked=9), is_manual=True)
    call(delivery, 0.1)
    steps(delivery, events.acked(Token(0, 1)))
    assert state_of(delivery) is State.IDLE
    delivery.follow(replace(OPTIONS, max_unacked=2))
    arrive(cache, delivery, 2, 40)
    assert len(offered(delivery)) == 2


def test_batch_is_bounded_in_bytes() -> None:
    cache = QueueCache(CacheLimits())
    slot = append(cache, QueueMessage(A, Token(0, 1), [b"x" * 40] * 9))
    laggards = LaggingCursors(cache, is_used=True)
    delivery = delivery_at(laggards, slot, DeliveryOptions(max_batch_bytes=100))
    assert offered(delivery) == [0, 1]


def test_resume_waits_for_the_call_that_is_out() -> None:
    delivery = delivery_of(9)
    offered(delivery)
    steps(delivery, events.sent(2, 0.0))
    assert steps(delivery, events.resume(Token(0, 1, 5))) == ()
    assert state_of(delivery) is State.IN_FLIGHT
    steps(delivery, CallReply(2, None, 0.0, 0.0))
    assert delivery.position == Token(0, 1, 5)
    assert offered(delivery) == [6, 7, 8]


def test_resume_waits_for_the_give_up_that_is_out() -> None:
    delivery = given_up(4)
    steps(delivery, events.resume(Token(0, 1, 0)), events.given_up("pause"))
    assert offered(delivery) == [1, 2, 3]


def test_resume_goes_back_to_the_oldest_event_that_is_held() -> None:
    delivery = delivery_of(20)
    call(delivery, 0.2)
    steps(delivery, events.resume(None))
    assert offered(delivery)[0] == 0


def test_resume_forgets_the_attempts() -> None:
    delivery = delivery_of(4)
    fail(delivery)
    assert steps(delivery, events.resume(None)) == ()
    action = offer(delivery)
    assert action.attempt == 1


def test_resume_behind_everything_is_to_be_idle_there() -> None:
    cache, delivery = delivery_in(4)
    assert steps(delivery, events.resume(Token(0, 9))) == () and state_of(delivery) is State.IDLE
    arrive(cache, delivery, 9)
    assert state_of(delivery) is State.IDLE, "that is done"
    arrive(cache, delivery, 10)
    assert [item.token for item in offer(delivery).items] == [Token(0, 10)]


def test_closed_delivery_ignores_the_reply_that_was_out() -> None:
    cache, delivery = delivery_in(4)
    send(delivery)
    delivery.close()
    assert cache.find_acked() == Token(0, 1)
    assert steps(delivery, CallReply(4, None, 0.0, 0.0), events.tick(1.0)) == ()


def test_what_failed_is_tried_as_if_it_were_new_after_a_retry() -> None:
    delivery = in_pause()
    failed = delivery.cursor.next_token
    steps(delivery, events.retry)
    assert delivery.cursor.next_token == failed and delivery.attempts == 0
    delivery.check()


def test_a_retry_while_the_failure_handler_thinks_overrules_its_pause() -> None:
    delivery = given_up(4)
    steps(delivery, events.retry, events.given_up("pause"))
    assert state_of(delivery) is State.READY and delivery.attempts == 0
    delivery.check()


@pytest.mark.parametrize("outcome", ["done", "raised", "lost"])
def test_what_is_out_when_a_pause_comes_counts_and_nothing_follows(outcome: str) -> None:
    delivery = delivery_of(4)
    send(delivery, 1)
    steps(delivery, events.pause)
    failure = Failure(FailureKind.HANDLER, "boom")
    ends: dict[str, Event] = {
        "done": CallReply(1, None, 0.0, 0.0),
        "raised": CallReply(0, failure, 0.0, 0.0),
        "lost": Unreachable("gone", 0.0, 0.0),
    }
    assert steps(delivery, ends[outcome], events.wake, events.tick(1e6)) == ()
    assert delivery.state.value == "faulted"
    steps(delivery, events.retry)
    assert delivery.state.value == "ready" and delivery.attempts == 0


def test_a_pause_that_was_taken_back_while_a_call_was_out_means_nothing() -> None:
    delivery = delivery_of(4)
    send(delivery, 1)
    steps(delivery, events.pause, events.retry, CallReply(1, None, 0.0, 0.0))
    assert state_of(delivery) is State.READY


def test_a_retry_ends_a_wait_and_its_late_tick_does_not_end_the_next_one() -> None:
    delivery = delivery_of(4)
    send(delivery)
    (wait,) = steps(delivery, Unreachable("gone", 0.0, 0.0))
    assert isinstance(wait, WaitUntil) and state_of(delivery) is State.BACKOFF
    steps(delivery, events.retry)
    send(delivery)
    (later,) = steps(delivery, Unreachable("gone", 5.0, 0.0))
    assert steps(delivery, events.tick(wait.when_s)) == (later,)
    delivery.check()


def test_a_retry_is_of_one_item_only() -> None:
    delivery = given_up(4)
    steps(delivery, events.retry, events.given_up("skip"))
    fail(delivery)
    steps(delivery, events.given_up("pause"))
    assert state_of(delivery) is State.FAULTED


# Idle: the delivery keeps its facts about the subscription, and no items that are done.


def idle() -> tuple[QueueCache, Delivery]:
    """Make a delivery whose only item is done."""
    cache, delivery = delivery_in(1)
    call(delivery, 0.1)
    assert state_of(delivery) is State.IDLE
    return cache, delivery


def test_an_idle_delivery_keeps_its_position_its_window_and_what_an_event_takes() -> None:
    cache, delivery = delivery_in(16)
    call(delivery, 0.1)
    known = (delivery.position, delivery.window, delivery.event_s)
    assert state_of(delivery) is State.IDLE and cache.events == 0
    assert known[:2] == (Token(0, 1, 15), 32) and known[2] == pytest.approx(0.1 / 16)
    assert delivery.cursor.lag() == (0, 0.0) and delivery.place == (None, None)
    arrive(cache, delivery, 2, 40)
    assert (delivery.position, delivery.window, delivery.event_s) == known
    assert state_of(delivery) is State.READY and len(offered(delivery)) == 32


def test_an_idle_delivery_wakes_with_the_next_message_as_often_as_one_comes() -> None:
    cache, delivery = idle()
    for seq in (2, 3, 4):
        arrive(cache, delivery, seq)
        assert state_of(delivery) is State.READY and delivery.cursor.next_token == Token(0, seq)
        assert call(delivery, 0.1) == 1
        assert state_of(delivery) is State.IDLE and delivery.position == Token(0, seq)
        assert cache.find_acked() == Token(0, seq)


def test_an_idle_delivery_is_not_woken_by_what_it_has_done() -> None:
    cache, delivery = idle()
    arrive(cache, delivery, 1)
    assert state_of(delivery) is State.IDLE and cache.events == 0


def test_where_tokens_do_not_rise_an_idle_delivery_is_woken_by_each_message() -> None:
    cache, delivery = idle()
    delivery.has_positions = False
    arrive(cache, delivery, 1)
    assert state_of(delivery) is State.READY and delivery.cursor.next_token == Token(0, 1)


def test_an_idle_delivery_has_forgotten_what_was_tried() -> None:
    cache, delivery = delivery_in(1)
    fail(delivery)
    steps(delivery, events.tick(9.0), Died(2, sent=3))
    send(delivery)
    steps(delivery, CallReply(1, None, 9.0, 0.0))
    assert state_of(delivery) is State.IDLE
    assert (delivery.attempts, delivery.tries.deaths, delivery.careful) == (0, 0, 0)
    assert delivery.trouble == "" and not delivery.is_feared
    arrive(cache, delivery, 2, 4)
    action = offer(delivery)
    assert (action.attempt, len(action.items)) == (1, 4)


@pytest.mark.parametrize(
    "event",
    [
        events.wake,
        events.tick(1e9),
        events.ack_due(1e9),
        Died(2, sent=3, is_alone=True),
        events.fetched,
        events.retry,
    ],
    ids=["wake", "tick", "ack_due", "died", "fetched", "retry"],
)
def test_what_comes_too_late_changes_nothing_of_an_idle_delivery(event: Event) -> None:
    cache, delivery = idle()
    assert steps(delivery, event, Unreachable("gone", 9.0, 0.0)) == ()
    assert state_of(delivery) is State.IDLE and delivery.position == Token(0, 1)
    arrive(cache, delivery, 2, 4)
    assert (delivery.attempts, delivery.tries.deaths, delivery.careful) == (0, 0, 0)
    assert not delivery.is_feared and delivery.trouble == ""
    action = offer(delivery)
    assert (action.attempt, len(action.items)) == (1, 4)


def test_an_idle_delivery_that_is_paused_holds_what_comes_then() -> None:
    cache, delivery = idle()
    assert steps(delivery, events.pause) == () and state_of(delivery) is State.IDLE
    slot = append(cache, message(2, 1))
    assert steps(delivery, events.arrived(slot, is_held=True)) == ()
    cache.release(slot)
    assert state_of(delivery) is State.FAULTED and cache.events == 1
    arrive(cache, delivery, 3)
    assert state_of(delivery) is State.FAULTED and steps(delivery, events.wake) == ()
    steps(delivery, events.retry)
    assert [item.token.seq for item in offer(delivery).items] == [2, 3]


def test_what_wakes_an_idle_delivery_says_whether_it_is_held() -> None:
    cache, delivery = idle()
    steps(delivery, events.pause)
    arrive(cache, delivery, 2, 2)
    send(delivery, 1)
    steps(delivery, CallReply(1, None, 1.0, 0.0))
    assert delivery.state is State.READY


def test_what_was_paused_and_went_on_while_it_was_idle_delivers_what_comes() -> None:
    cache, delivery = idle()
    assert steps(delivery, events.pause, events.retry) == () and state_of(delivery) is State.IDLE
    arrive(cache, delivery, 2)
    assert state_of(delivery) is State.READY


def test_an_idle_delivery_that_is_resumed_goes_on_behind_that_token() -> None:
    cache, delivery = idle()
    assert steps(delivery, events.pause, events.resume(Token(0, 3))) == ()
    assert state_of(delivery) is State.IDLE and delivery.position == Token(0, 3)
    for seq in (2, 3):
        arrive(cache, delivery, seq)
        assert state_of(delivery) is State.IDLE and cache.events == 0
    arrive(cache, delivery, 4)
    assert state_of(delivery) is State.READY and delivery.cursor.next_token == Token(0, 4)


def test_an_idle_delivery_that_is_resumed_goes_back_to_what_another_still_holds() -> None:
    cache = QueueCache(CacheLimits())
    laggards, slot = LaggingCursors(cache, is_used=True), append(cache, message(1, 2))
    other, delivery = (delivery_at(laggards, slot, OPTIONS) for _ in range(2))
    cache.release(slot)
    call(delivery, 0.1)
    assert state_of(delivery) is State.IDLE and other.cursor.index == 0
    steps(delivery, events.resume(None))
    assert state_of(delivery) is State.READY and offered(delivery) == [0, 1]


def test_an_idle_delivery_that_is_resumed_where_it_lags_reads_anew() -> None:
    cache, delivery = idle()
    laggards = LaggingCursors(cache, is_used=True)
    steps(delivery, events.resume(None, laggards.begin((A, SUBSCRIPTION), Token(0, 1))))
    assert state_of(delivery) is State.READY and steps(delivery, events.wake) == (Fetch(),)


def test_an_idle_delivery_that_ends_hears_nothing_more() -> None:
    cache, delivery = idle()
    delivery.close()
    arrive(cache, delivery, 2)
    assert state_of(delivery) is State.CLOSED and cache.events == 0


# Each state with each event: the way to the state, then the next state and the kinds of actions.

IN_STATE: dict[State, Callable[[], Delivery]] = {
    State.READY: lambda: in_ready(),
    State.IN_FLIGHT: lambda: in_flight(),
    State.GIVING_UP: lambda: given_up(4),
    State.BACKOFF: lambda: in_backoff(),
    State.FAULTED: lambda: in_pause(),
    State.UNACKED: lambda: unacked(),
    State.LAGGING: lambda: lagging(),
    State.IDLE: lambda: idle()[1],
    State.CLOSED: lambda: closed(),
}
EVENTS: dict[str, Event] = {
    "wake": events.wake,
    "sent": events.sent(1, 0.0),
    "done": CallReply(1, None, 0.0, 0.0),
    "error": CallReply(0, RAISED, 0.0, 0.0),
    "lost": Unreachable("gone", 0.0, 0.0),
    "early": events.tick(0.01),
    "late": events.tick(99.0),
    "skip": events.given_up("skip"),
    "pause": events.given_up("pause"),
    "resume": events.resume(None),
    "retry": events.retry,
    "fetched": events.fetched,
    "hold": events.pause,
    "acked": events.acked(Token(0, 1, 0)),
    "overdue": events.ack_due(99.0),
    "arrived": events.arrived(Slot(message(9, 1), 9, None)),
    "died": Died(),
}
# columns: wake sent done error lost early late skip pause resume retry fetched hold acked overdue
# arrived died; "state+Action" where an action is due
MATRIX = {
    "ready": "ready+Deliver in_flight ! ! backoff+WaitUntil ready ready ! ! ready ready ready"
    " faulted ready ready ready ready",
    "in_flight": "in_flight ! ready backoff+WaitUntil backoff+WaitUntil in_flight in_flight"
    " ! ! in_flight in_flight in_flight in_flight in_flight in_flight in_flight in_flight",
    "giving_up": "giving_up ! ! ! backoff+WaitUntil giving_up giving_up ready faulted giving_up"
    " giving_up giving_up giving_up giving_up giving_up giving_up giving_up",
    "backoff": "backoff ! ! ! backoff backoff+WaitUntil ready ! ! ready ready backoff faulted"
    " backoff backoff backoff ready",
    "faulted": "faulted ! ! ! faulted faulted faulted ! ! ready ready faulted faulted"
    " faulted faulted faulted faulted",
    "unacked": "unacked ! ! ! unacked unacked unacked ! ! ready unacked unacked faulted"
    " ready ready unacked unacked",
    "lagging": "lagging ! ! ! lagging lagging lagging ! ! ready lagging ready faulted"
    " lagging lagging lagging lagging",
    "idle": "idle ! ! ! idle idle idle ! ! idle idle idle idle idle idle ready idle",
    "closed": " ".join(["closed"] * 17),
}
CELLS = [
    (state, event, cell)
    for state, row in MATRIX.items()
    for event, cell in zip(EVENTS, row.split(), strict=True)
]


def in_ready() -> Delivery:
    delivery = delivery_of(4)
    steps(delivery, events.wake)
    return delivery


def in_flight() -> Delivery:
    delivery = delivery_of(4)
    send(delivery)
    return delivery


def in_backoff() -> Delivery:
    delivery = delivery_of(4)
    fail(delivery)
    return delivery


def in_pause() -> Delivery:
    delivery = given_up(4)
    steps(delivery, events.given_up("pause"))
    return delivery


def unacked() -> Delivery:
    """Make a delivery with two of four events out, which is the maximum."""
    options = replace(OPTIONS, max_unacked=2)
    _, delivery = delivery_in(4, options, is_manual=True)
    send(delivery)
    (action,) = steps(delivery, CallReply(2, None, 0.0, 0.0))
    assert isinstance(action, AckBy)
    return delivery


def lagging() -> Delivery:
    """Make a delivery at the second message, which only another subscription pins in the cache."""
    cache = QueueCache(CacheLimits())
    add_to(cache, message(1, 2))
    append(cache, message(2, 2))
    cursor = LaggingCursors(cache, is_used=True).begin((A, SUBSCRIPTION), Token(0, 2))
    delivery = Delivery(cursor, OPTIONS)
    assert steps(delivery, events.wake) == (Fetch(),)
    return delivery


def closed() -> Delivery:
    delivery = delivery_of(4)
    delivery.close()
    return delivery


def returns_actions(name: str, one: object) -> bool:
    """Is it a method for the driver of a delivery that returns actions?"""
    annotations = getattr(one, "__annotations__", {})
    return not name.startswith("_") and annotations.get("return") == "Sequence[Action]"


def test_matrix_covers_every_state_and_every_event() -> None:
    assert {State(state) for state, _, _ in CELLS} == set(State)
    returned = {name for name, one in vars(Delivery).items() if returns_actions(name, one)}
    calls = [events.call_of(event) for event in EVENTS.values()]
    names = {getattr(call, "func", call).__name__ for call in calls}
    assert names == returned | {"on_sent", "pause"}


@pytest.mark.parametrize(("state", "event", "cell"), CELLS)
def test_delivery_answers_every_event_in_every_state(state: str, event: str, cell: str) -> None:
    delivery = IN_STATE[State(state)]()
    assert delivery.state is State(state)
    if cell == "!":
        with pytest.raises(AssertionError):
            events.apply(delivery, EVENTS[event])
        return
    actions = steps(delivery, EVENTS[event])
    found = "+".join([delivery.state.value, *(type(action).__name__ for action in actions)])
    assert found == cell


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch": 0},
        {"max_batch_bytes": 0},
        {"retries": -1},
        {"target_call_s": 0.0},
        {"target_call_s": 61.0},
    ],
)
def test_delivery_options_refuse_what_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DeliveryOptions(**wrong)


def test_a_call_may_be_meant_to_take_as_long_as_it_may() -> None:
    assert DeliveryOptions(target_call_s=3.0, handler_timeout_s=3.0).target_call_s == 3.0


def test_a_retry_that_was_asked_for_before_a_resume_means_nothing_after_it() -> None:
    delivery = given_up(4)
    steps(delivery, events.retry, events.resume(Token(0, 1, 1)), events.given_up("pause"))
    assert fail(delivery)
    assert steps(delivery, events.given_up("pause")) == ()
    assert state_of(delivery) is State.FAULTED
