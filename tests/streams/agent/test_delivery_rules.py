"""Rules of delivering to one subscription: its figures, and its lag."""

from __future__ import annotations

import pytest
from tests.streams.agent import events
from tests.streams.agent.cursors import add, append, at_hand, delivery_at
from tests.streams.agent.events import Event
from tests.streams.agent.stepping import RAISED, A, offer, state_of, tokens

from millstream.runtime.extending import Backoff
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.positions import before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import FATE_WAIT_S, Delivery
from millstream.streams.agent.delivery.steps import (
    CallReply,
    DeliveryState,
    Died,
    Failure,
    FailureKind,
    Fetch,
    GiveUp,
    Unreachable,
    WaitUntil,
)

OPTIONS = DeliveryOptions(retries=2, max_batch=4, backoff=Backoff(first_s=1, factor=2, ceiling_s=8))
LAST = 2**32 - 1


class Desk:
    """A subscription of a stream with cached messages 1, 2 and 3 of two items each."""

    def __init__(
        self,
        options: DeliveryOptions = OPTIONS,
        *,
        is_faulted: bool = False,
        is_manual: bool = False,
    ) -> None:
        self.cache = QueueCache(CacheLimits(), Token(1, 0))
        self.laggards = LaggingCursors(self.cache, is_used=True)
        slots = [
            append(self.cache, QueueMessage(A, Token(1, seq), [b"x", b"y"], {}, float(seq)))
            for seq in (1, 2, 3)
        ]
        self.delivery = delivery_at(
            self.laggards, slots[0], options, is_manual=is_manual, is_faulted=is_faulted
        )
        for slot in slots:
            self.cache.release(slot)

    def steps(self, *happened: Event) -> list[type]:
        """Deliver the events; return the kinds of the actions of the last one."""
        kinds: list[type] = []
        for event in happened:
            kinds = [type(one) for one in events.apply(self.delivery, event)]
            self.delivery.check()
            self.cache.check()
            self.laggards.check()
        return kinds

    def offered(self) -> list[Token]:
        return tokens(offer(self.delivery))

    def send(self, at_s: float = 0.0) -> int:
        count = len(self.offered())
        self.steps(events.sent(count, at_s))
        return count

    def fail(self, at_s: float = 0.0) -> list[type]:
        self.send()
        return self.steps(CallReply(0, RAISED, at_s, 0.0))

    def start_lagging(self, *, may_repeat: bool = False) -> Cursor:
        self.delivery.start_lagging(may_repeat=may_repeat)
        self.steps()
        behind = self.laggards.get((A, "s"))
        assert behind is not None
        return behind


# --- figures --------------------------------------------------------------------------------------


def test_it_tells_where_it_is_and_whether_a_part_of_a_message_is_done() -> None:
    desk = Desk()
    assert (desk.delivery.cursor.index, desk.delivery.cursor.next_token) == (0, Token(1, 1))
    assert desk.delivery.position is None
    assert desk.delivery.cursor.lag() == (6, 1.0)
    desk.send()
    desk.steps(CallReply(1, None, 0.0, 0.0))
    assert desk.delivery.position == Token(1, 1)
    desk.send()
    desk.steps(CallReply(1, None, 0.0, 0.0))
    assert desk.delivery.cursor.index == 1
    assert desk.delivery.cursor.lag() == (4, 2.0)
    desk.delivery.close()
    assert desk.delivery.cursor.index is None
    assert desk.delivery.cursor.next_token is None


def test_the_check_sees_a_cursor_that_is_wrong() -> None:
    delivery = Desk().delivery
    delivery.cursor._item = 2
    with pytest.raises(AssertionError):
        delivery.check()


def test_it_tells_what_is_out_and_since_when() -> None:
    desk = Desk()
    assert (desk.delivery.last_out, desk.delivery.out_s(9.0)) == (-1, 0.0)
    desk.offered()
    assert desk.delivery.last_out == -1, "offered is not out"
    assert desk.send(at_s=5.0) == 4
    assert (desk.delivery.last_out, desk.delivery.out_s(9.0)) == (1, 4.0)
    desk.steps(CallReply(1, None, 9.0, 0.0))
    desk.offered()
    desk.steps(events.sent(2, 10.0))  # the end of message 1, the beginning of message 2
    assert (desk.delivery.last_out, desk.delivery.out_s(11.0)) == (1, 1.0)
    desk.steps(CallReply(2, None, 12.0, 0.0))
    desk.offered()
    desk.steps(events.sent(1, 13.0))
    assert desk.delivery.last_out == 1
    desk.start_lagging()
    assert desk.delivery.last_out == -1, "nothing of what is out is in the cache"
    assert desk.delivery.out_s(14.0) == 1.0


def test_what_the_failure_handler_has_is_out_too_and_no_call_is() -> None:
    desk = Desk(DeliveryOptions(retries=0))
    assert desk.fail() == [GiveUp]
    assert (desk.delivery.last_out, desk.delivery.out_s(9.0)) == (0, 0.0)


def test_it_tells_what_went_wrong_last_while_something_is() -> None:
    desk = Desk()
    assert desk.delivery.trouble == "" and desk.delivery.tries.error is None
    desk.send()
    desk.steps(CallReply(0, None, 0.0, 0.0))
    assert desk.delivery.trouble == "", "a reply that told nothing has no reason"
    desk.steps(events.tick(99.0))
    desk.send()
    desk.steps(Unreachable("the silo is gone", 0.0, 0.0))
    assert desk.delivery.trouble == "the silo is gone" and desk.delivery.tries.error is None
    desk.steps(events.tick(99.0))
    assert desk.fail() and desk.delivery.trouble == "ValueError: no"
    assert desk.delivery.tries.error is not None and desk.delivery.attempts == 1
    desk.steps(events.retry)
    assert desk.delivery.trouble == "" and desk.delivery.tries.error is None
    desk.send()
    desk.steps(Unreachable("again", 0.0, 0.0), events.tick(99.0))
    desk.send()
    desk.steps(CallReply(4, None, 0.0, 0.0))
    assert desk.delivery.trouble == ""


def test_the_time_of_an_event_is_smoothed_over_calls() -> None:
    desk = Desk()
    desk.send(at_s=10.0)
    desk.steps(CallReply(4, None, 12.0, 0.0))
    assert desk.delivery.event_s == 0.5
    desk.send(at_s=20.0)
    desk.steps(CallReply(1, None, 21.0, 0.0))
    assert desk.delivery.event_s == pytest.approx(0.5 + 0.2 * (1.0 - 0.5))


def test_new_limits_hold_from_now_on() -> None:
    desk = Desk()
    desk.delivery.follow(DeliveryOptions(retries=0, max_batch=4))
    assert desk.fail() == [GiveUp]


def test_after_a_call_that_timed_out_one_item_is_sent_at_a_time() -> None:
    desk = Desk()
    desk.send()
    slow = Failure(FailureKind.TIMEOUT, "CallTimeout: 30 s")
    assert desk.steps(CallReply(0, slow, 30.0, 0.0)) == [WaitUntil]
    assert desk.delivery.window == 1


def test_a_subscription_that_is_faulted_gives_back_what_others_may_take_and_no_other_does() -> None:
    cache = QueueCache(CacheLimits(), Token(1, 0), notes="all", gives_back=True)
    slots = [append(cache, QueueMessage(A, Token(1, seq), [b"x"])) for seq in (1, 2)]
    for slot in slots:
        slot.goes_back = True
    delivery = delivery_at(LaggingCursors(cache, is_used=False), slots[0], OPTIONS)
    assert delivery.going_back() == ()
    offer(delivery)
    delivery.pause()
    assert state_of(delivery) is DeliveryState.FAULTED
    assert delivery.going_back() == [Token(1, 1), Token(1, 2)]
    desk = Desk(is_faulted=True)
    assert desk.delivery.going_back() == (), "its queue has an order"
    desk.start_lagging()
    assert desk.delivery.going_back() == ()


def test_one_that_is_to_go_on_elsewhere_in_the_cache_falls_behind_all_the_same() -> None:
    desk = Desk()
    desk.send()
    desk.steps(events.resume(Token(1, 2)))
    behind = desk.start_lagging()
    assert at_hand(behind) == [1, 2, 3], "what is out is of message 1"


# --- beginning to lag -----------------------------------------------------------------------------


def test_one_that_waits_for_its_turn_falls_behind_with_what_is_here() -> None:
    behind = Desk().start_lagging()
    assert at_hand(behind) == [1, 2, 3] and behind.key == (A, "s")


def test_one_that_has_nothing_or_is_about_to_lag_elsewhere_does_not_fall_behind() -> None:
    desk = Desk()
    desk.send()
    behind, resume = elsewhere(desk, "s", Token(1, 2))
    desk.steps(resume)
    desk.delivery.start_lagging(may_repeat=False)
    assert not desk.delivery.cursor.is_lagging and desk.laggards.get((A, "s")) is behind
    desk.delivery.let_go()
    desk.delivery.start_lagging(may_repeat=False)
    assert desk.delivery.cursor.is_drained


def test_one_that_is_faulted_falls_behind_with_nothing() -> None:
    desk = Desk(is_faulted=True)
    behind = desk.start_lagging()
    assert at_hand(behind) == [] and behind.position == Token(1, 1)
    assert desk.cache.find_acked() == Token(1, 3) and desk.cache.chained_events == 0


def test_one_that_is_faulted_while_it_is_behind_holds_nothing_any_more() -> None:
    desk = Desk()
    behind = desk.start_lagging()
    desk.start_lagging()
    assert at_hand(behind) == [1, 2, 3], "it is not faulted"
    desk.steps(events.pause)
    desk.start_lagging()
    assert at_hand(behind) == [] and not behind.has_all
    assert state_of(desk.delivery) is DeliveryState.FAULTED


@pytest.mark.parametrize("sent", [3, 4])
@pytest.mark.parametrize("stream_events_max", [1, 4_096])
def test_what_is_out_stays_at_hand_and_is_done_when_its_reply_comes(
    stream_events_max: int, sent: int
) -> None:
    desk = Desk()
    desk.cache.limits = CacheLimits(stream_events_max=stream_events_max)
    desk.offered()
    desk.steps(events.sent(sent, 0.0))  # items of messages 1 and 2
    behind = desk.start_lagging(may_repeat=True)
    assert at_hand(behind) == ([1, 2] if stream_events_max == 1 else [1, 2, 3])
    assert desk.delivery.cursor.may_repeat
    desk.steps(CallReply(3, None, 0.0, 0.0))
    assert desk.delivery.position == Token(1, 2) and behind.position == Token(1, 2, 1)


def test_what_has_failed_stays_at_hand_for_its_next_attempt() -> None:
    desk = Desk()
    desk.cache.limits = CacheLimits(stream_events_max=1)
    desk.fail()
    behind = desk.start_lagging()
    assert at_hand(behind) == [1]
    desk.steps(events.tick(99.0))
    assert desk.offered() == [Token(1, 1)]


def test_one_that_has_nothing_out_and_no_room_holds_nothing_and_fetches() -> None:
    desk = Desk()
    desk.cache.limits = CacheLimits(stream_events_max=1)
    behind = desk.start_lagging()
    assert at_hand(behind) == [1], "a chain of one message always may be"
    desk.send()
    assert desk.steps(CallReply(2, None, 0.0, 0.0)) == []
    assert desk.steps(events.wake) == [Fetch]
    assert state_of(desk.delivery) is DeliveryState.LAGGING


def test_what_was_fetched_is_delivered_behind_what_was_skipped() -> None:
    desk = Desk()
    desk.cache.limits = CacheLimits(stream_events_max=1)
    behind = desk.start_lagging()
    desk.send()
    desk.steps(CallReply(2, None, 0.0, 0.0), events.wake)
    behind.lose(Token(1, 3))
    behind.take([QueueMessage(A, Token(1, 3), [b"x", b"y"])], Token(1, 4))
    assert desk.steps(events.fetched) == [] and state_of(desk.delivery) is DeliveryState.READY
    assert desk.delivery.position == Token(1, 2, LAST), "message 2 is gone"
    assert desk.offered() == [Token(1, 3), Token(1, 3, 1)]
    assert desk.steps(events.fetched) == [], "what was not asked for changes nothing"


def lagging(options: DeliveryOptions = OPTIONS, *, is_manual: bool = False) -> tuple[Desk, Cursor]:
    """Message 1 is done; 2 and 3 have left the cache, and are read again."""
    desk = Desk(options, is_manual=is_manual)
    desk.cache.limits = CacheLimits(stream_events_max=1)
    cursor = desk.start_lagging()
    desk.send()
    desk.steps(CallReply(2, None, 0.0, 0.0))
    if is_manual:
        desk.steps(events.acked(Token(1, 1, 1)))
    assert desk.steps(events.wake) == [Fetch]
    cursor.keeps = True
    return desk, cursor


def arrive(desk: Desk, seq: int, *, is_held: bool = False) -> None:
    """Append a message, and tell the delivery as the driver does."""
    slot = append(desk.cache, QueueMessage(A, Token(1, seq), [b"x"]))
    assert desk.steps(events.arrived(slot, is_held=is_held)) == []
    desk.cache.release(slot)


def test_one_that_has_all_goes_on_in_the_cache_or_is_idle() -> None:
    desk, cursor = lagging()
    add(desk.cache, QueueMessage(A, Token(1, 4), [b"x"]))
    cursor.lose(Token(1, 4))
    assert not cursor.is_lagging and len(desk.laggards) == 0
    assert desk.steps(events.fetched) == [] and desk.delivery.position == Token(1, 3, LAST)
    assert desk.delivery.cursor.index == 3 and desk.offered() == [Token(1, 4)]
    desk.steps(events.sent(1, 0.0))
    assert desk.steps(CallReply(1, None, 0.0, 0.0)) == []
    assert state_of(desk.delivery) is DeliveryState.IDLE


@pytest.mark.parametrize("is_manual", [False, True])
def test_one_for_which_nothing_is_left_is_idle_behind_what_it_looked_for(is_manual: bool) -> None:
    desk, cursor = lagging(is_manual=is_manual)
    cursor.take([], Token(1, 4))
    assert desk.steps(events.fetched) == [] and state_of(desk.delivery) is DeliveryState.IDLE
    assert desk.delivery.position == Token(1, 3, LAST)
    arrive(desk, 4)
    assert state_of(desk.delivery) is DeliveryState.READY and desk.offered() == [Token(1, 4)]


def test_one_that_was_to_begin_ahead_of_the_queue_gets_what_comes_next() -> None:
    desk = Desk()
    cursor, resume = elsewhere(desk, "s", Token(7, 1))
    desk.steps(resume)
    assert desk.steps(events.wake) == [Fetch]
    assert cursor.begin_within(Token(1, 1), Token(1, 3), None)
    desk.steps(events.fetched)
    assert state_of(desk.delivery) is DeliveryState.IDLE
    assert desk.delivery.position == Token(1, 3, LAST)
    arrive(desk, 4)
    assert state_of(desk.delivery) is DeliveryState.READY and desk.offered() == [Token(1, 4)]


@pytest.mark.parametrize("is_manual", [False, True])
def test_what_comes_for_one_that_waits_and_has_nothing_left_is_delivered_when_the_wait_ends(
    is_manual: bool,
) -> None:
    desk, cursor = lagging(is_manual=is_manual)
    cursor.take([], Token(1, 4))
    assert cursor.is_drained and state_of(desk.delivery) is DeliveryState.LAGGING
    arrive(desk, 4)
    assert state_of(desk.delivery) is DeliveryState.LAGGING and desk.delivery.cursor.index == 3
    arrive(desk, 5)
    assert desk.steps(events.fetched) == [] and desk.delivery.position == Token(1, 3, LAST)
    assert state_of(desk.delivery) is DeliveryState.READY
    assert desk.offered() == [Token(1, 4), Token(1, 5)]


def test_what_comes_for_one_that_waits_ahead_of_the_queue_is_not_passed_over() -> None:
    desk = Desk()
    cursor, resume = elsewhere(desk, "s", Token(7, 1))
    desk.steps(resume, events.wake)
    assert cursor.begin_within(Token(1, 1), Token(1, 3), None)
    arrive(desk, 4)
    assert desk.steps(events.fetched) == []
    assert state_of(desk.delivery) is DeliveryState.READY and desk.offered() == [Token(1, 4)]


def test_what_comes_for_one_that_waits_and_has_met_the_cache_is_delivered_behind_the_rest() -> None:
    desk, cursor = lagging()
    add(desk.cache, QueueMessage(A, Token(1, 4), [b"x"]))
    cursor.take([], Token(1, 4))
    assert not cursor.is_lagging and desk.delivery.cursor.index == 3
    arrive(desk, 5)
    assert state_of(desk.delivery) is DeliveryState.LAGGING
    desk.steps(events.fetched)
    assert desk.offered() == [Token(1, 4), Token(1, 5)]


def test_what_comes_for_one_that_waits_and_lags_still_is_read_anew_or_kept_for_it() -> None:
    desk, cursor = lagging()
    arrive(desk, 4)
    cursor.take([QueueMessage(A, Token(1, 2), [b"x"])], Token(1, 4))
    arrive(desk, 5)
    assert cursor.is_lagging and state_of(desk.delivery) is DeliveryState.LAGGING
    desk.steps(events.fetched)
    assert desk.offered() == [Token(1, 2)]
    desk.steps(events.sent(1, 0.0), CallReply(1, None, 0.0, 0.0))
    assert not cursor.is_lagging and desk.offered() == [Token(1, 4), Token(1, 5)]


def test_one_that_was_paused_while_it_waited_and_has_nothing_left_holds_nothing() -> None:
    desk, cursor = lagging()
    desk.steps(events.pause)
    desk.start_lagging()
    cursor.take([], Token(1, 4))
    assert cursor.is_drained
    assert desk.steps(events.fetched) == []
    assert state_of(desk.delivery) is DeliveryState.IDLE
    assert desk.delivery.position == Token(1, 3, LAST)
    arrive(desk, 4, is_held=True)
    assert state_of(desk.delivery) is DeliveryState.FAULTED
    desk.start_lagging()
    assert desk.cache.events == 0 and at_hand(cursor) == []
    desk.steps(events.retry)
    assert desk.steps(events.wake) == [Fetch] and cursor.position == Token(1, 4)


def test_one_that_was_paused_while_it_fetched_delivers_nothing() -> None:
    desk = Desk()
    desk.cache.limits = CacheLimits(stream_events_max=1)
    desk.start_lagging()
    desk.send()
    desk.steps(CallReply(2, None, 0.0, 0.0), events.wake, events.pause)
    assert desk.steps(events.fetched) == [] and desk.steps(events.wake) == []
    assert state_of(desk.delivery) is DeliveryState.FAULTED


# --- starting elsewhere ---------------------------------------------------------------------------


def elsewhere(desk: Desk, name: str, start: Token) -> tuple[Cursor, Event]:
    behind = desk.laggards.begin((A, name), start)
    return behind, events.resume(before(start), behind)


def test_a_pause_that_a_resume_has_ended_is_over_whatever_was_out() -> None:
    desk = Desk()
    desk.steps(events.pause, events.resume(None))
    assert desk.send() == 4
    desk.steps(events.pause, events.resume(None), CallReply(1, None, 0.0, 0.0))
    assert state_of(desk.delivery) is DeliveryState.READY and desk.offered()[0] == Token(1, 1)


def test_who_resumes_where_it_is_behind_is_there_once_what_is_out_has_ended() -> None:
    for is_out in (True, False):
        desk = Desk()
        if is_out:
            desk.send()
        behind, resume = elsewhere(desk, "s", Token(1, 2))
        desk.steps(resume)
        assert (desk.delivery.position is None) is is_out
        if is_out:
            desk.steps(CallReply(4, None, 0.0, 0.0))
        assert desk.delivery.position == Token(1, 1, LAST)
        assert desk.delivery.cursor.next_token == behind.position == Token(1, 2)
        assert desk.cache.find_acked() == Token(1, 3), "its former place holds nothing"
        assert desk.steps(events.wake) == [Fetch]


def test_who_resumes_twice_while_something_is_out_goes_where_it_was_told_last() -> None:
    desk = Desk()
    desk.send()
    first, to_first = elsewhere(desk, "first", Token(1, 2))
    second, to_second = elsewhere(desk, "second", Token(1, 3))
    desk.steps(to_first, to_second)
    assert not first.is_lagging and second.is_lagging
    desk.steps(CallReply(4, None, 0.0, 0.0))
    assert desk.delivery.cursor.next_token == Token(1, 3) and len(desk.laggards) == 1


def test_who_resumes_in_the_cache_after_it_was_told_to_go_elsewhere_is_not_behind() -> None:
    desk = Desk()
    desk.send()
    behind, resume = elsewhere(desk, "s", Token(1, 2))
    desk.steps(resume, events.resume(None), events.resume(Token(1, 2, 1)))
    assert not behind.is_lagging and len(desk.laggards) == 0
    desk.steps(CallReply(4, None, 0.0, 0.0))
    assert desk.delivery.cursor.next_token == Token(1, 3)


def test_who_ends_before_it_was_elsewhere_is_nowhere() -> None:
    desk = Desk()
    desk.send()
    behind, resume = elsewhere(desk, "s", Token(1, 2))
    desk.steps(resume)
    desk.delivery.close()
    assert (
        not behind.is_lagging and len(desk.laggards) == 0 and desk.cache.find_acked() == Token(1, 3)
    )
    other = Desk()
    other.send()
    other.steps(events.resume(None))
    other.delivery.close()
    assert other.steps(events.given_up("skip")) == [] and other.cache.find_acked() == Token(1, 3)
    third = Desk()
    third.send()
    third.steps(events.resume(Token(1, 2)))
    third.delivery.close()
    assert third.delivery.cursor.is_drained and third.cache.find_acked() == Token(1, 3)


def test_one_whose_queue_gives_all_again_is_idle_and_has_failed_never() -> None:
    desk = Desk()
    assert desk.fail() == [WaitUntil] and desk.delivery.attempts == 1
    desk.delivery.let_go()
    assert state_of(desk.delivery) is DeliveryState.IDLE and desk.delivery.cursor.is_drained
    assert desk.cache.events == 0 and desk.delivery.attempts == 0
    arrive(desk, 4)
    assert desk.offered() == [Token(1, 4)]


# --- acknowledging by hand ------------------------------------------------------------------------


def by_hand() -> tuple[Desk, Delivery]:
    """Make a delivery that acknowledges by hand; its stream's share of the cache is minimal."""
    desk = Desk(is_manual=True)
    add(desk.cache, *(QueueMessage(A, Token(1, seq), [b"x"]) for seq in (4, 5, 6)))
    desk.cache.limits = CacheLimits(stream_events_max=1)
    return desk, desk.delivery


def test_what_is_not_acknowledged_stays_at_hand_with_what_failed_behind_it() -> None:
    for failures in (1, 2):
        desk, delivery = by_hand()
        desk.send()
        desk.steps(CallReply(4, None, 0.0, 0.0))
        for done in (2, 0)[:failures]:
            desk.send()
            desk.steps(CallReply(done, RAISED, 0.0, 0.0), events.tick(99.0))
        assert (delivery.cursor.ahead, delivery.attempts) == (6, failures)
        behind = desk.start_lagging()
        assert at_hand(behind) == [1, 2, 3, 4] and behind.position == Token(1, 1)
        assert desk.offered() == [Token(1, 4)]


def test_who_is_given_up_with_a_pause_falls_behind_with_nothing() -> None:
    desk = Desk(DeliveryOptions(retries=0))
    assert desk.fail() == [GiveUp]
    desk.steps(events.given_up("pause"))
    assert desk.delivery.attempts == 1
    assert at_hand(desk.start_lagging()) == []


def test_what_is_said_of_acknowledging_by_hand_is_nothing_to_others() -> None:
    desk = Desk()
    for event in (events.acked(Token(1, 3)), events.ack_due(9.0)):
        assert desk.steps(event) == []
    assert desk.send() == 4 and desk.delivery.cursor.index == 0


# --- events that may have crashed a silo ----------------------------------------------------------


def sizes(desk: Desk, calls: int) -> list[int]:
    """Make some calls that succeed; return the number of items in each."""
    found = []
    for _ in range(calls):
        found.append(desk.send())
        desk.steps(CallReply(found[-1], None, 0.0, 0.0))
    return found


def test_as_many_as_were_out_when_a_silo_was_lost_go_one_by_one_and_no_more() -> None:
    desk = Desk()
    desk.offered()
    desk.steps(events.sent(3, 0.0), Unreachable("gone", 0.0, 0.0, "silo"), events.tick(99.0))
    assert sizes(desk, 4) == [1, 1, 1, 3]


def test_as_many_as_were_out_when_a_silo_died_go_one_by_one_and_no_more() -> None:
    desk = Desk()
    assert desk.steps(Died(1, 2)) == []
    assert sizes(desk, 3) == [1, 1, 4]


def test_what_was_out_already_when_a_death_is_known_is_done_with_its_call() -> None:
    desk = Desk()
    desk.send()
    desk.steps(Died(1, 2), CallReply(4, None, 0.0, 0.0))
    assert sizes(desk, 1) == [2]


def test_a_death_that_is_known_before_a_call_is_made_is_not_that_of_its_second_event() -> None:
    desk = Desk()
    desk.offered()
    desk.steps(Died(1, 2), events.sent(4, 0.0))
    assert desk.steps(CallReply(1, RAISED, 1.0, 0.0)) == [WaitUntil]
    assert desk.delivery.cursor.token == Token(1, 1, 1) and desk.delivery.attempts == 1


def test_an_event_with_two_deaths_is_feared_and_one_with_one_is_not() -> None:
    for times, is_feared in ((1, False), (2, True)):
        desk = Desk()
        desk.steps(Died(times))
        assert desk.delivery.is_feared is is_feared
        sizes(desk, 1)
        assert not desk.delivery.is_feared


def test_before_its_last_try_it_waits_until_it_is_known_whether_the_silo_died() -> None:
    for failures, wait_s in ((0, 0.5), (1, 0.5), (2, FATE_WAIT_S)):
        desk = Desk()
        for _ in range(failures):
            desk.fail()
            desk.steps(events.tick(99.0))
        desk.send()
        (wait,) = desk.delivery.unreachable(Unreachable("gone", 100.0, 0.0, "silo"))
        assert isinstance(wait, WaitUntil) and wait.when_s == 100.0 + wait_s


def test_a_pause_takes_back_that_it_goes_on_after_the_failure_handler() -> None:
    desk = Desk(DeliveryOptions(retries=0))
    assert desk.fail() == [GiveUp]
    desk.steps(events.retry, events.pause, events.given_up("pause"))
    assert state_of(desk.delivery) is DeliveryState.FAULTED


@pytest.mark.parametrize(
    "event", [events.retry, events.resume(Token(1, 2, 1))], ids=["retried", "elsewhere"]
)
def test_who_goes_on_by_hand_has_no_trouble_any_more(event: Event) -> None:
    desk = Desk()
    desk.send()
    desk.steps(Unreachable("gone", 1.0, 0.0))
    assert desk.delivery.losses and desk.delivery.trouble == "gone"
    desk.steps(event)
    assert not desk.delivery.losses and desk.delivery.trouble == ""


# --- another delivery in its place ----------------------------------------------------------------


def test_one_that_leaves_gives_its_place_and_hears_nothing_more() -> None:
    desk = Desk()
    assert desk.send() == 4
    place = desk.delivery.leave()
    assert state_of(desk.delivery) is DeliveryState.CLOSED
    assert (
        desk.delivery.on_reply(CallReply(4, None, 1.0, 0.0)) == ()
        and desk.delivery.position is None
    )
    desk.delivery = Delivery(place, OPTIONS)
    assert desk.offered() == [Token(1, seq, at) for seq in (1, 2) for at in (0, 1)]


def test_one_that_leaves_while_it_is_to_go_elsewhere_goes_there_first() -> None:
    desk = Desk()
    desk.send()
    desk.steps(events.resume(Token(1, 2, 0)))
    desk.delivery = Delivery(desk.delivery.leave(), OPTIONS)
    assert desk.offered() == [Token(1, 2, 1), Token(1, 3, 0), Token(1, 3, 1)]


def test_one_that_is_behind_gives_that_place() -> None:
    desk = Desk()
    behind = desk.start_lagging()
    desk.delivery = Delivery(desk.delivery.leave(), OPTIONS)
    assert (
        desk.delivery.cursor.index is None
        and desk.delivery.cursor.next_token == behind.position == Token(1, 1)
    )
    desk.laggards.check()
