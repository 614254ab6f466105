"""Single rules of a delivery that acknowledges by hand."""

from __future__ import annotations

import pytest
from tests.streams.agent import events
from tests.streams.agent.cursors import SUBSCRIPTION, add, append, delivery_at
from tests.streams.agent.events import Event
from tests.streams.agent.stepping import RAISED, A, offer, send, state_of, steps, tokens

from millstream.runtime.extending import Backoff
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.positions import before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    AckBy,
    Action,
    CallReply,
    DeliveryState,
    Fetch,
    GiveUp,
    Unreachable,
    WaitUntil,
)

State = DeliveryState


def token(seq: int) -> Token:
    return Token(0, seq)


class Desk:
    """Messages of one event each, and a delivery from the first on."""

    def __init__(self, count: int = 4, unacked_max: int = 3) -> None:
        self.cache = QueueCache(CacheLimits())
        self.laggards = LaggingCursors(self.cache, is_used=True)
        options = DeliveryOptions(
            retries=1,
            backoff=Backoff(first_s=1, factor=2, ceiling_s=8),
            max_unacked=unacked_max,
            ack_timeout_s=60.0,
        )
        self.last = 1
        slot = append(self.cache, QueueMessage(A, token(1), [b"x"]))
        self.delivery = delivery_at(self.laggards, slot, options, is_manual=True)
        self.cache.release(slot)
        for _ in range(count - 1):
            self.add()

    def add(self) -> None:
        self.last += 1
        add(self.cache, QueueMessage(A, token(self.last), [b"x"]))

    def arrive(self) -> list[Action]:
        """Append a message, and tell the delivery as the driver does."""
        self.last += 1
        slot = append(self.cache, QueueMessage(A, token(self.last), [b"x"]))
        actions = self.step(events.arrived(slot))
        self.cache.release(slot)
        return actions

    def start_lagging(self) -> Cursor:
        self.delivery.start_lagging(may_repeat=False)
        self.delivery.check()
        cursor = self.laggards.get((A, SUBSCRIPTION))
        assert cursor is not None
        return cursor

    def step(self, *happened: Event) -> list[Action]:
        actions: list[Action] = []
        for event in happened:
            actions += steps(self.delivery, event)
        return actions

    def send(self, count: int | None = None) -> list[int]:
        return [one.seq for one in tokens(send(self.delivery, count))]

    def done(self, count: int, at_s: float = 0.0, acked: int | None = None) -> list[Action]:
        upto = None if acked is None else token(acked)
        return self.step(CallReply(count, None, at_s, 0.0, acked=upto))

    def state(self) -> DeliveryState:
        return self.delivery.state


def out(count: int = 4, given: int = 3) -> Desk:
    """Some events were handled at 10 s, and none is acknowledged."""
    desk = Desk(count)
    desk.send(given)
    assert desk.done(given, 10.0) == [AckBy(70.0)]
    return desk


def test_it_sends_on_without_acknowledgements_until_too_many_are_out() -> None:
    desk = Desk()
    assert desk.send(2) == [1, 2]
    assert desk.done(2, 10.0) == [AckBy(70.0)] and desk.state() is State.READY
    assert desk.delivery.cursor.ahead == 2 and desk.delivery.cursor.token == token(1)
    assert desk.send() == [3]
    assert desk.done(1, 11.0) == [] and desk.state() is State.UNACKED
    assert desk.step(events.wake) == [] and desk.state() is State.UNACKED
    assert desk.arrive() == [] and desk.state() is State.UNACKED


def test_nothing_is_unacknowledged_before_something_is_delivered() -> None:
    desk = Desk()
    assert desk.delivery.cursor.ahead == 0
    desk.send(1)
    assert desk.done(1, 0.0, acked=1) == [] and desk.delivery.cursor.ahead == 0


def test_an_acknowledgement_makes_room_and_with_the_last_one_it_is_idle() -> None:
    desk = out()
    assert desk.state() is State.UNACKED
    assert desk.step(events.acked(token(1))) == [] and desk.state() is State.READY
    assert desk.send() == [4]
    desk.done(1, 11.0)
    assert desk.step(events.acked(token(3))) == [] and desk.state() is State.UNACKED
    assert desk.step(events.acked(token(2))) == []  # a late acknowledgement
    assert desk.step(events.acked(token(4))) == [] and desk.state() is State.IDLE
    assert desk.delivery.position == token(4)
    assert (
        desk.step(events.acked(token(4)), events.ack_due(99.0)) == [] and desk.state() is State.IDLE
    )


def test_a_message_that_arrives_while_all_is_out_is_sent() -> None:
    desk = out(2, 2)
    assert desk.state() is State.UNACKED
    assert desk.arrive() == [] and desk.state() is State.READY and desk.send() == [3]


def test_an_idle_one_awaits_one_due_time_though_it_wakes_before_that() -> None:
    desk = out(1, 1)
    desk.step(events.acked(token(1)))
    assert desk.state() is State.IDLE and desk.delivery.cursor.ahead == 0
    assert desk.arrive() == [] and desk.state() is State.READY and desk.send() == [2]
    assert desk.done(1, 20.0) == [], "the first time has not come"
    assert desk.step(events.ack_due(70.0)) == [AckBy(80.0)] and desk.delivery.cursor.ahead == 1
    assert desk.step(events.ack_due(80.0)) == [] and desk.send() == [2]


def test_an_idle_one_whose_due_time_has_come_awaits_the_next() -> None:
    desk = out(1, 1)
    desk.step(events.acked(token(1)), events.ack_due(70.0))
    assert desk.state() is State.IDLE
    desk.arrive()
    desk.send()
    assert desk.done(1, 90.0) == [AckBy(150.0)]


def test_what_was_acknowledged_ahead_is_not_done_when_an_idle_one_wakes() -> None:
    desk = out(1, 1)
    desk.step(events.acked(token(9)))
    assert desk.state() is State.IDLE and desk.delivery.position == token(1)
    desk.step(events.acked(token(9)))
    desk.arrive()
    assert desk.send() == [2]
    desk.done(1, 20.0)
    assert desk.delivery.cursor.ahead == 1


def test_what_is_not_acknowledged_in_time_is_sent_again() -> None:
    desk = out()
    assert desk.step(events.ack_due(69.9)) == [AckBy(70.0)]
    assert desk.step(events.ack_due(70.0)) == [] and desk.state() is State.READY
    assert desk.delivery.cursor.ahead == 0 and desk.send() == [1, 2, 3]
    assert desk.done(3, 80.0) == [AckBy(140.0)]


def test_the_time_is_that_of_the_oldest_event() -> None:
    desk = Desk()
    desk.send(1)
    desk.done(1, 10.0)
    desk.send(1)
    desk.done(1, 20.0)
    desk.step(events.acked(token(1)))
    assert desk.step(events.ack_due(70.0)) == [AckBy(80.0)]
    desk.step(events.acked(token(2)))
    assert desk.step(events.ack_due(80.0)) == []
    assert desk.send(1) == [3] and desk.done(1, 90.0) == [AckBy(150.0)]


def test_nothing_comes_again_while_a_call_is_out() -> None:
    desk = out(4, 2)
    assert desk.send() == [3]
    assert desk.step(events.ack_due(70.0)) == [] and desk.state() is State.IN_FLIGHT
    assert desk.done(1, 75.0) == [] and desk.send() == [1, 2, 3]


def test_nothing_comes_again_while_an_event_fails() -> None:
    desk = out(4, 2)
    desk.send(1)
    (wait,) = desk.step(CallReply(0, RAISED, 20.0, 0.0))
    assert isinstance(wait, WaitUntil)
    assert desk.step(events.ack_due(70.0)) == [] and desk.state() is State.BACKOFF
    desk.step(events.tick(wait.when_s))
    assert desk.send() == [3]
    (give_up,) = desk.step(CallReply(0, RAISED, 75.0, 0.0))
    assert isinstance(give_up, GiveUp) and give_up.item.token == token(3)
    assert desk.step(events.given_up("skip")) == [] and desk.send() == [1, 2]


def test_nothing_comes_again_while_calls_are_lost() -> None:
    desk = out(4, 2)
    desk.send()
    (wait,) = desk.step(Unreachable("gone", 60.0, 0.0))
    assert isinstance(wait, WaitUntil)
    assert desk.step(events.ack_due(70.0)) == [] and desk.state() is State.BACKOFF
    desk.step(events.tick(wait.when_s))
    assert desk.send() == [3]


def test_an_event_that_is_given_up_is_done_when_those_before_it_are() -> None:
    desk = out(4, 1)
    desk.send(1)
    (wait,) = desk.step(CallReply(0, RAISED, 11.0, 0.0))
    assert isinstance(wait, WaitUntil)
    desk.step(events.tick(wait.when_s))
    desk.send()
    desk.step(CallReply(0, RAISED, 14.0, 0.0), events.given_up("dead_letter"))
    assert desk.delivery.cursor.ahead == 2 and desk.delivery.cursor.next_token == token(3)
    desk.step(events.acked(token(1)))
    assert desk.delivery.cursor.ahead == 0 and desk.delivery.cursor.index == 2


def test_an_event_that_is_given_up_with_none_before_it_is_done_at_once() -> None:
    desk = Desk()
    for at_s in (1.0, 9.0):
        desk.send(1)
        desk.step(CallReply(0, RAISED, at_s, 0.0), events.tick(99.0))
    assert desk.state() is State.GIVING_UP
    assert desk.step(events.given_up("skip")) == []
    assert desk.delivery.cursor.ahead == 0 and desk.delivery.cursor.token == token(2)


def test_what_is_acknowledged_while_it_is_out_counts_with_its_reply() -> None:
    desk = Desk()
    desk.send(3)
    assert desk.step(events.acked(token(2))) == [] and desk.state() is State.IN_FLIGHT
    assert desk.delivery.cursor.ahead == 0
    assert desk.done(3, 10.0) == [AckBy(70.0)] and desk.delivery.cursor.ahead == 1
    assert desk.delivery.cursor.token == token(3)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_acknowledged_and_whose_reply_is_lost_is_done(is_first: bool) -> None:
    desk = Desk()
    desk.send(2)
    lost = Unreachable("reply lost", 5.0, 0.0)
    acked = events.acked(token(1))
    desk.step(*((acked, lost) if is_first else (lost, acked)))
    assert desk.state() is State.READY and desk.delivery.cursor.next_token == token(2)
    assert desk.send(1) == [2]
    desk.done(1, 6.0)
    assert desk.delivery.cursor.ahead == 1 and desk.delivery.cursor.token == token(2)


def test_what_was_not_sent_is_not_acknowledged() -> None:
    desk = Desk()
    desk.send(1)
    desk.step(Unreachable("gone", 5.0, 0.0), events.acked(token(3)))
    assert desk.delivery.cursor.next_token == token(2)
    desk.step(events.acked(token(4)))
    assert desk.delivery.cursor.next_token == token(2)


def test_an_acknowledgement_ends_the_attempts_at_its_event() -> None:
    desk = Desk()
    desk.send(1)
    desk.step(CallReply(0, RAISED, 1.0, 0.0))
    assert desk.delivery.attempts == 1
    assert desk.step(events.acked(token(1))) == [] and desk.state() is State.READY
    assert desk.delivery.attempts == 0 and desk.delivery.cursor.next_token == token(2)


def test_another_activation_is_given_first_what_is_not_acknowledged() -> None:
    desk = out(4, 2)
    assert desk.send() == [3]
    assert desk.step(CallReply(0, None, 12.0, 0.0, is_anew=True)) == []
    assert desk.state() is State.READY and desk.send() == [1, 2, 3]
    desk.done(3, 13.0)
    assert desk.delivery.cursor.ahead == 3


def test_an_activation_that_takes_nothing_though_nothing_was_before_is_tried_again() -> None:
    desk = Desk()
    desk.send()
    (wait,) = desk.step(CallReply(0, None, 12.0, 0.0, is_anew=True))
    assert isinstance(wait, WaitUntil)


def test_a_pause_keeps_what_is_out_and_hears_acknowledgements() -> None:
    desk = out(4, 2)
    assert desk.step(events.pause) == [] and desk.state() is State.FAULTED
    desk.step(events.acked(token(1)))
    assert desk.state() is State.FAULTED
    assert desk.delivery.cursor.ahead == 1 and desk.delivery.cursor.token == token(2)
    desk.step(events.ack_due(99.0))
    assert desk.state() is State.FAULTED and desk.delivery.cursor.ahead == 0
    desk.step(events.retry)
    assert desk.send() == [2, 3, 4]


def test_one_that_is_paused_is_idle_when_all_is_acknowledged() -> None:
    desk = out(2, 2)
    desk.step(events.pause)
    assert desk.step(events.acked(token(2))) == [] and desk.state() is State.IDLE


def test_one_that_goes_elsewhere_forgets_what_was_out_and_acknowledged() -> None:
    desk = out(4, 3)
    desk.step(events.acked(token(2)))
    assert desk.step(events.resume(token(2))) == []
    assert desk.delivery.cursor.ahead == 0 and desk.send() == [3, 4]
    desk.done(2, 20.0)
    assert desk.delivery.cursor.ahead == 2


def test_one_that_goes_back_is_sent_again_what_it_has_acknowledged() -> None:
    desk = out(4, 3)
    desk.step(events.acked(token(3)))
    behind = desk.laggards.begin((A, SUBSCRIPTION), token(1))
    behind.is_new = False
    desk.step(events.resume(before(token(1)), behind))
    assert desk.step(events.wake) == [Fetch()]
    behind.take([QueueMessage(A, token(seq), [b"x"]) for seq in (1, 2, 3, 4)], token(5))
    desk.step(events.fetched)
    assert desk.send() == [1, 2, 3]


def test_one_that_falls_behind_keeps_what_is_out_at_hand() -> None:
    desk = out(4, 3)
    behind = desk.start_lagging()
    assert behind.position == token(1) and desk.cache.chained_events == 4
    assert desk.delivery.cursor.ahead == 3 and desk.delivery.cursor.index is None
    desk.step(events.acked(token(2)))
    assert behind.position == token(3) and desk.send() == [4]


def test_one_that_is_paused_and_behind_holds_nothing_and_gets_all_again() -> None:
    desk = out(4, 3)
    desk.step(events.pause)
    behind = desk.start_lagging()
    assert desk.cache.chained_events == 0 and desk.delivery.cursor.ahead == 0
    assert behind.position == token(1)


def test_one_that_is_behind_and_paused_then_lets_go_of_what_it_has() -> None:
    desk = out(4, 3)
    desk.start_lagging()
    desk.step(events.pause)
    desk.start_lagging()
    assert desk.cache.chained_events == 0 and desk.delivery.cursor.ahead == 0


def test_all_that_was_sent_may_be_acknowledged_before_a_reply() -> None:
    desk = Desk()
    desk.send(2)
    desk.step(events.acked(token(2)), Unreachable("reply lost", 5.0, 0.0))
    assert desk.delivery.cursor.next_token == token(3) and desk.delivery.cursor.ahead == 0


def test_an_answer_of_another_activation_to_one_that_goes_elsewhere_is_left_aside() -> None:
    desk = out(4, 2)
    desk.send()
    desk.step(events.resume(token(3)), CallReply(0, None, 12.0, 0.0, is_anew=True))
    assert desk.send() == [4]


def test_what_another_activation_gets_is_tried_as_if_it_were_new() -> None:
    desk = out(4, 2)
    for outcome in (CallReply(0, RAISED, 20.0, 0.0), Unreachable("gone", 30.0, 0.0)):
        desk.send(1)
        (wait,) = desk.step(outcome)
        assert isinstance(wait, WaitUntil)
        desk.step(events.tick(wait.when_s))
    assert desk.delivery.trouble
    desk.send(1)
    desk.step(CallReply(0, None, 40.0, 0.0, is_anew=True))
    assert desk.delivery.trouble == "" and desk.delivery.attempts == 0
    action = offer(desk.delivery)
    assert action.attempt == 1 and len(action.items) == 3


def test_a_pause_that_comes_while_a_call_is_out_holds_when_that_has_ended() -> None:
    desk = Desk()
    desk.send(1)
    desk.step(events.pause)
    desk.done(1, 10.0)
    assert desk.state() is State.FAULTED and desk.delivery.cursor.ahead == 1


def test_an_old_acknowledgement_ends_no_back_off() -> None:
    desk = Desk()
    desk.send(1)
    desk.step(Unreachable("gone", 5.0, 0.0), events.acked(Token(0, 0)))
    assert desk.state() is State.BACKOFF


def test_one_that_was_given_up_with_a_pause_stays_paused_though_it_is_acknowledged() -> None:
    desk = Desk()
    desk.send(1)
    (wait,) = desk.step(CallReply(0, RAISED, 1.0, 0.0))
    assert isinstance(wait, WaitUntil)
    desk.step(events.tick(wait.when_s))
    desk.send(1)
    desk.step(CallReply(0, RAISED, 4.0, 0.0), events.given_up("pause"), events.acked(token(1)))
    assert desk.state() is State.FAULTED and desk.delivery.cursor.next_token == token(2)


def test_one_that_finds_nothing_where_it_begins_has_done_what_is_before() -> None:
    desk = Desk()
    cursor = desk.laggards.begin((A, SUBSCRIPTION), token(9))
    delivery = Delivery(cursor, DeliveryOptions(), after=token(1), is_manual=True)
    assert delivery.wake() == (Fetch(),) and state_of(delivery) is State.LAGGING
    cursor.begin_within(token(1), token(8), None)
    assert not cursor.is_lagging
    assert list(delivery.on_fetched()) == [] and state_of(delivery) is State.IDLE
    assert delivery.position == before(token(9)) and delivery.on_fetched() == ()


def test_one_that_waits_for_nothing_to_be_read_takes_no_notice_of_what_is() -> None:
    desk = out(4, 3)
    assert desk.step(events.fetched) == [] and desk.delivery.position == token(3)


def test_one_whose_message_is_read_anew_while_it_backs_off_stays_where_it_is() -> None:
    desk = out(4, 2)
    desk.start_lagging()
    assert desk.send(1) == [3]
    desk.step(Unreachable("gone", 20.0, 0.0))
    assert desk.state() is State.BACKOFF
    assert desk.step(events.fetched) == [] and desk.delivery.position == token(2)


def test_one_that_leaves_gives_the_place_of_what_is_not_acknowledged() -> None:
    desk = out(4, 3)
    desk.step(events.acked(token(1)))
    place = desk.delivery.leave()
    assert place.next_token == token(2) and desk.state() is State.CLOSED
    assert desk.delivery.cursor.ahead == 0
    assert not desk.delivery.on_acked(token(3)) and not desk.delivery.ack_due(99.0)
    following = Delivery(place, DeliveryOptions())
    assert tokens(offer(following)) == [token(seq) for seq in (2, 3, 4)]


def test_one_that_has_left_moves_nothing_of_the_one_in_its_place() -> None:
    desk = out(4, 2)
    former = desk.delivery
    desk.delivery = Delivery(former.leave(), DeliveryOptions(), is_manual=True)
    assert desk.send() == [1, 2, 3, 4]
    desk.done(4, 10.0)
    assert former.on_acked(token(1)) == () and former.ack_due(99.0) == ()
    assert desk.delivery.cursor.ahead == 4 and former.state is State.CLOSED
