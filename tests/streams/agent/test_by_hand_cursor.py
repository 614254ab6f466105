"""A cursor of a subscription that acknowledges by hand: its mark, and its next item to send."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from tests.streams.agent.cursors import SUBSCRIPTION, add, append, cursor_at, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.contracts.item import Item
from millstream.streams.ownership.record import ListedSubscription

A = StreamId("n", "a")


def token(seq: int, index: int = 0) -> Token:
    return Token(0, seq, index)


def places(items: Iterable[Item]) -> list[tuple[int, int]]:
    return [(one.token.seq, one.token.index) for one in items]


def message(seq: int, count: int = 2) -> QueueMessage:
    return QueueMessage(A, token(seq), [b"x"] * count)


class Desk:
    """A cache with messages 1, 2, ... of two items each, and a cursor at the first."""

    def __init__(self, messages: int = 3, unacked_max: int = 100) -> None:
        self.cache = QueueCache(CacheLimits(events_max=40, stream_events_max=6))
        self.laggards = LaggingCursors(self.cache, is_used=True)
        slot = append(self.cache, message(1))
        self.cursor = cursor_at(self.laggards, slot, unacked_max=unacked_max)
        self.cache.release(slot)
        self.last = 1
        for _ in range(messages - 1):
            self.add()

    def add(self) -> None:
        self.last += 1
        add(self.cache, message(self.last))
        self.check()

    def give(self, count: int, at_s: float = 0.0) -> list[tuple[int, int]]:
        items = self.cursor.peek(count, 1 << 20)
        if items:
            self.cursor.give(len(items), at_s)
        self.check()
        return places(items)

    def give_up(self) -> None:
        """Give up the next item."""
        (item,) = self.cursor.peek(1, 1)
        self.cursor.give_up(item.token)
        self.cursor.settle(None)

    def start_lagging(self, *, has_chain: bool = True) -> Cursor:
        self.cursor.start_lagging(self.cursor.ahead, has_chain=has_chain, may_repeat=False)
        self.check()
        assert self.laggards.get((A, SUBSCRIPTION)) is self.cursor
        return self.cursor

    def held_seqs(self) -> list[int]:
        return [slot.message.token.seq for slot in self.cache._slots.values()]

    def check(self) -> None:
        self.cache.check()
        self.laggards.check()
        self.cursor.check()


def test_what_is_given_stays_held_until_it_is_acknowledged() -> None:
    desk = Desk()
    assert desk.cursor.next_index == 0
    assert desk.give(3) == [(1, 0), (1, 1), (2, 0)]
    assert desk.cursor.ahead == 3 and desk.cursor.token == token(1)
    assert desk.cursor.next_token == token(2, 1) and desk.cursor.next_index == 1
    assert desk.held_seqs() == [1, 2, 3] and desk.cursor.index == 0
    desk.cursor.settle(token(1, 1))
    assert desk.cursor.ahead == 1 and desk.cursor.token == token(2) and desk.cursor.index == 1
    assert desk.held_seqs() == [2, 3] and desk.cursor.next_token == token(2, 1)
    assert desk.cursor.lag()[0] == 4


def test_what_was_not_given_is_not_acknowledged() -> None:
    desk = Desk()
    desk.give(1)
    desk.cursor.settle(token(3, 1))
    assert (desk.cursor.ahead, desk.cursor.token) == (0, token(1, 1))
    assert desk.give(2) == [(1, 1), (2, 0)]
    desk.cursor.settle(token(1))  # a late acknowledgement
    desk.cursor.settle(None)
    assert desk.cursor.ahead == 2


def test_no_more_than_so_many_are_out() -> None:
    desk = Desk(unacked_max=3)
    assert desk.give(100) == [(1, 0), (1, 1), (2, 0)]
    assert not desk.cursor.can_send and desk.cursor.peek(1, 1) == () and not desk.cursor.is_away
    desk.cursor.settle(token(1))
    assert desk.cursor.can_send and desk.give(100) == [(2, 1)]


def test_it_is_drained_when_all_is_acknowledged_and_no_earlier() -> None:
    desk = Desk(1)
    assert desk.give(9) == [(1, 0), (1, 1)] and not desk.cursor.can_send
    assert not desk.cursor.is_drained and desk.cursor.next_token is None is desk.cursor.next_index
    desk.add()
    assert desk.cursor.can_send and desk.give(9) == [(2, 0), (2, 1)]
    desk.cursor.settle(token(2, 1))
    assert desk.cursor.is_drained and desk.cursor.ahead == 0 and desk.held_seqs() == []


def test_a_rewind_sends_again_from_where_it_holds() -> None:
    desk = Desk()
    desk.give(4)
    desk.cursor.settle(token(1))
    desk.cursor.rewind()
    assert desk.cursor.ahead == 0 and desk.cursor.given_s == math.inf
    assert desk.give(2) == [(1, 1), (2, 0)]


def test_the_time_of_the_oldest_that_is_not_acknowledged() -> None:
    desk = Desk()
    assert desk.cursor.given_s == math.inf
    desk.give(2, 1.0)
    desk.give(2, 2.0)
    assert desk.cursor.given_s == 1.0
    desk.cursor.settle(token(1))
    assert desk.cursor.given_s == 1.0
    desk.cursor.settle(token(2))
    assert desk.cursor.given_s == 2.0
    desk.cursor.settle(token(2, 1))
    assert desk.cursor.given_s == math.inf


def given_up() -> Desk:
    """Item (1, 1) was given up between (1, 0) and (2, 0)."""
    desk = Desk()
    desk.give(1, 1.0)
    desk.give_up()
    return desk


def test_what_is_given_up_is_done_once_all_before_it_are() -> None:
    desk = given_up()
    assert desk.cursor.ahead == 2 and desk.cursor.token == token(1)
    assert desk.give(1, 2.0) == [(2, 0)]
    desk.cursor.settle(token(1))
    assert desk.cursor.token == token(2) and desk.cursor.ahead == 1 and desk.cursor.given_s == 2.0


def test_what_is_given_up_first_is_done_at_once() -> None:
    desk = Desk()
    desk.give_up()
    assert desk.cursor.token == token(1, 1) and desk.cursor.ahead == 0


def test_what_is_given_up_does_not_come_again_after_a_rewind() -> None:
    desk = given_up()
    desk.give(2)
    desk.cursor.rewind()
    assert desk.give(9, 3.0) == [(1, 0)]
    assert desk.give(1, 4.0) == [(2, 0)]
    assert desk.give(9, 5.0) == [(2, 1), (3, 0), (3, 1)]
    assert desk.cursor.ahead == 6 and desk.cursor.given_s == 3.0
    desk.cursor.settle(token(1))
    assert desk.cursor.token == token(2) and desk.cursor.given_s == 4.0
    desk.cursor.settle(token(2))
    assert desk.cursor.given_s == 5.0
    desk.cursor.settle(token(3, 1))
    assert desk.cursor.is_drained and not desk.cursor._given_up


def test_one_that_was_closed_sends_again_what_was_given_up() -> None:
    desk = given_up()
    slot = desk.cursor.slot
    assert slot is not None
    slot.holds += 1
    desk.cursor.close()
    desk.cursor.enter(slot)
    assert desk.give(3) == [(1, 0), (1, 1), (2, 0)]


def test_what_was_sent_and_is_acknowledged_without_a_reply_is_passed_over() -> None:
    desk = Desk()
    assert not desk.cursor.pass_over(Token(0, 0))
    assert desk.cursor.pass_over(token(2)) and desk.cursor.token == token(2, 1)
    desk.give(1)
    assert not desk.cursor.pass_over(token(3)) and desk.cursor.token == token(2, 1)
    desk.cursor.settle(token(2, 1))
    assert desk.cursor.pass_over(token(3, 1)) and desk.cursor.is_drained


def test_what_was_given_up_is_passed_over_with_what_is_before_it_and_not_alone() -> None:
    desk = given_up()
    desk.cursor.rewind()
    assert not desk.cursor.pass_over(Token(0, 0)) and desk.cursor.token == token(1)
    assert desk.cursor.pass_over(token(1)) and desk.cursor.token == token(2)


def test_what_is_to_be_read_anew_is_passed_over_up_to_the_cache() -> None:
    desk = Desk()
    desk.start_lagging(has_chain=False).keeps = True
    desk.add()
    assert desk.cursor.pass_over(token(2)) and desk.cursor.token == token(2, 1)
    assert desk.cursor.is_lagging and desk.cursor.is_away
    assert desk.cursor.pass_over(token(4)) and desk.cursor.token == token(4, 1)
    assert not desk.cursor.is_lagging and desk.give(9) == [(4, 1)]


@pytest.mark.parametrize("count", range(7))
def test_one_that_falls_behind_goes_on_where_it_sends_and_holds_what_it_gave(count: int) -> None:
    desk = Desk()
    every = [(seq, index) for seq in (1, 2, 3) for index in (0, 1)]
    desk.give(count)
    behind = desk.start_lagging()
    assert desk.cursor.ahead == count and desk.cursor.token == token(1)
    assert desk.cursor.index is None and desk.held_seqs() == []
    assert behind.position == token(1)
    if count < 6:
        assert desk.cursor.next_token == token(*every[count])
    behind.keeps = True
    desk.add()  # new messages go on in the cache
    assert desk.give(6 - count) == every[count:]
    assert desk.give(9) == [(4, 0), (4, 1)] and desk.cursor.next_index is None
    assert behind.position == token(1)
    desk.cursor.settle(token(4))
    assert not desk.cursor.is_lagging
    assert desk.cursor.token == token(4, 1) and desk.held_seqs() == [4] and desk.cursor.ahead == 1
    desk.add()
    assert desk.give(9) == [(5, 0), (5, 1)]


def test_one_that_is_behind_asks_for_more_while_there_is_room() -> None:
    desk = Desk()
    desk.give(2)
    behind = desk.start_lagging(has_chain=False)
    assert desk.cursor.is_away and not desk.cursor.can_send
    behind.take([message(2), message(3), message(4)], token(9))
    assert desk.give(9) == [(2, 0), (2, 1), (3, 0), (3, 1)] and not desk.cursor.is_away
    for _ in range(3):
        desk.add()
    behind.let_go()
    assert behind.dropped == token(6) and desk.cursor.is_away
    behind.take([message(4), message(5)], token(6))
    assert behind.is_full and not desk.cursor.is_away and not desk.cursor.can_send
    desk.cursor.settle(token(2))
    assert not behind.is_full and desk.cursor.is_away
    behind.take([message(4), message(5)], token(6))
    assert desk.give(9) == [(4, 0), (4, 1)] and behind.is_full  # because one message has left
    desk.cursor.settle(token(3, 1))
    behind.take([message(5), message(6)], token(9))
    assert desk.give(9) == [(5, 0), (5, 1), (6, 0), (6, 1)]


def test_one_that_holds_nothing_is_read_anew_from_where_it_held() -> None:
    desk = Desk()
    desk.give(3)
    desk.cursor.settle(token(1))
    behind = desk.start_lagging()
    desk.cursor.rewind()
    desk.cursor.unload()
    assert behind.position == token(1, 1) and desk.cursor.ahead == 0
    assert desk.cursor.is_away
    behind.take([message(1), message(2), message(3)], token(9))
    assert desk.cursor.next_token == token(1, 1) and desk.cursor.next_index is None
    assert desk.give(9) == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_cursor_that_is_closed_holds_nothing() -> None:
    desk = Desk()
    desk.give(3)
    desk.cursor.close()
    desk.cursor.close()
    assert desk.cursor.is_drained and desk.held_seqs() == [] and desk.cursor.ahead == 0


def test_one_that_is_behind_asks_for_nothing_while_too_many_are_out() -> None:
    desk = Desk(unacked_max=2)
    desk.give(2)
    desk.start_lagging(has_chain=False)
    assert not desk.cursor.is_away
    desk.cursor.settle(token(1))
    assert desk.cursor.is_away


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("out", [0, 1])
def test_items_given_from_the_cache_are_counted_when_the_cache_lets_them_go(
    is_lost: bool, out: int
) -> None:
    """`is_lost`: the provider has dropped the items, too. `out`: items whose reply comes later."""
    desk = Desk(messages=2)
    cursor = desk.start_lagging()
    cursor.keeps = True
    desk.add()
    assert len(desk.give(4)) == 4 and len(desk.give(2 - out)) == 2 - out
    cursor.let_go()
    cursor.give(out, 0.0)
    assert cursor.ahead == 6 and desk.give(9) == []
    if is_lost:
        assert cursor.lose(token(4)) == token(3) and cursor.ahead == 4
    desk.add()
    cursor.settle(token(2, 1))
    cursor.take([message(3), message(4)][is_lost:], token(5))
    assert desk.give(9) == [(4, 0), (4, 1)]
    assert cursor.ahead == 2 + 2 * (not is_lost)
    cursor.settle(token(4, 1))
    assert cursor.is_drained and cursor.given_s == math.inf


def test_a_cursor_after_the_last_item_of_a_message_reads_on_although_the_next_had_no_room() -> None:
    """The first message has room in any case, and may be done: then nothing is here."""
    cache = QueueCache(CacheLimits(events_max=40, stream_events_max=3))
    laggards = LaggingCursors(cache, is_used=True)
    past_message_1 = ListedSubscription("n", "a", SUBSCRIPTION, token(1, 2), None, False)
    cursor = restored(laggards, past_message_1, token(3))
    cursor.unacked_max = 100
    assert cursor.is_away
    cursor.take([message(1), message(2), message(3)], token(4))
    assert cursor.position == token(2) and not cursor.can_send
    assert cursor.is_away and not cursor.is_full
    cursor.take([message(2), message(3)], token(4))
    assert cursor.can_send and cursor.next_token == token(2)
    laggards.check()
    cache.check()
