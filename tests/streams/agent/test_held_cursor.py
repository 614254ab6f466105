"""The two places of a subscription that acknowledges by hand: where it holds, where it sends."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.limits import CacheLimits
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.held_cursor import HeldCursor
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.agent.lagging.book import BehindBook
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

A = StreamId("n", "a")


def token(seq: int, index: int = 0) -> Token:
    return Token(0, seq, index)


def places(items: Iterable[Item]) -> list[tuple[int, int]]:
    return [(one.token.seq, one.token.index) for one in items]


def message(seq: int, count: int = 2) -> QueueMessage:
    return QueueMessage(A, token(seq), [b"x"] * count)


class Desk:
    """A cache with messages 1, 2, ... of two items each, and the cursor at the first."""

    def __init__(self, messages: int = 3, unacked_max: int = 100) -> None:
        self.cache = QueueCache(CacheLimits(events_max=40, stream_events_max=6))
        self.book = BehindBook(self.cache, is_used=True)
        self.last = 0
        for _ in range(messages):
            self.add()
        self.held = HeldCursor(self.cache.open_cursor(A, 0), unacked_max)

    def add(self) -> None:
        self.last += 1
        self.cache.unpin(self.cache.append(message(self.last)))

    def give(self, count: int, at_s: float = 0.0) -> list[tuple[int, int]]:
        items = self.held.peek(count, 1 << 20)
        self.held.advance(len(items))
        self.held.note(len(items), at_s)
        return places(items)

    def park(self, out: int = 0, *, has_chain: bool = True) -> None:
        inner = self.held.inner
        assert not isinstance(inner, BehindCursor)
        ahead = self.held.ahead
        self.held.moved_to(self.book.park((A, "s"), inner, out + ahead, has_chain=has_chain))

    def held_seqs(self) -> list[int]:
        self.cache.purge()
        return [slot.message.token.seq for slot in self.cache._slots.values()]


def test_what_is_given_stays_held_until_it_is_acknowledged() -> None:
    desk = Desk()
    assert desk.held.next_index == 0
    assert desk.give(3) == [(1, 0), (1, 1), (2, 0)]
    assert desk.held.ahead == 3 and desk.held.token == token(1)
    assert desk.held.next_token == token(2, 1) and desk.held.next_index == 1
    assert desk.held_seqs() == [1, 2, 3] and desk.held.index == 0
    desk.held.settle(token(1, 1))
    assert desk.held.ahead == 1 and desk.held.token == token(2) and desk.held.index == 1
    assert desk.held_seqs() == [2, 3] and desk.held.next_token == token(2, 1)
    assert desk.held.lag()[0] == 4


def test_what_was_not_given_is_not_acknowledged() -> None:
    desk = Desk()
    desk.give(1)
    desk.held.settle(token(3, 1))
    assert (desk.held.ahead, desk.held.token) == (0, token(1, 1))
    assert desk.give(2) == [(1, 1), (2, 0)]
    desk.held.settle(token(1))  # late
    desk.held.settle(None)
    assert desk.held.ahead == 2


def test_no_more_than_so_many_are_out() -> None:
    desk = Desk(unacked_max=3)
    assert desk.give(100) == [(1, 0), (1, 1), (2, 0)]
    assert not desk.held.can_send and desk.held.peek(1, 1) == () and not desk.held.is_away
    desk.held.settle(token(1))
    assert desk.held.can_send and desk.give(100) == [(2, 1)]


def test_it_is_drained_when_all_is_acknowledged_and_no_earlier() -> None:
    desk = Desk(1)
    assert desk.give(9) == [(1, 0), (1, 1)] and not desk.held.can_send
    assert not desk.held.is_drained and desk.held.next_token is None is desk.held.next_index
    desk.add()
    assert desk.held.can_send and desk.give(9) == [(2, 0), (2, 1)]
    desk.held.settle(token(2, 1))
    assert desk.held.is_drained and desk.held.ahead == 0 and desk.held_seqs() == []


def test_a_rewind_sends_again_from_where_it_holds() -> None:
    desk = Desk()
    desk.give(4)
    desk.held.settle(token(1))
    desk.held.rewind()
    assert desk.held.ahead == 0 and desk.held.given_s == math.inf
    assert desk.give(2) == [(1, 1), (2, 0)]


def test_the_time_of_the_oldest_that_is_not_acknowledged() -> None:
    desk = Desk()
    desk.held.note(0, 5.0)
    assert desk.held.given_s == math.inf
    desk.give(2, 1.0)
    desk.give(2, 2.0)
    assert desk.held.given_s == 1.0
    desk.held.settle(token(1))
    assert desk.held.given_s == 1.0
    desk.held.settle(token(2))
    assert desk.held.given_s == 2.0
    desk.held.settle(token(2, 1))
    assert desk.held.given_s == math.inf


def given_up() -> Desk:
    """(1, 1) was given up between (1, 0) and (2, 0)."""
    desk = Desk()
    desk.give(1, 1.0)
    (item,) = desk.held.peek(1, 1)
    desk.held.advance(1)
    desk.held.give_up(item.token)
    desk.held.settle(None)
    return desk


def test_what_is_given_up_is_done_once_all_before_it_are() -> None:
    desk = given_up()
    assert desk.held.ahead == 2 and desk.held.token == token(1)
    assert desk.give(1, 2.0) == [(2, 0)]
    desk.held.settle(token(1))
    assert desk.held.token == token(2) and desk.held.ahead == 1 and desk.held.given_s == 2.0


def test_what_is_given_up_first_is_done_at_once() -> None:
    desk = Desk()
    (item,) = desk.held.peek(1, 1)
    desk.held.advance(1)
    desk.held.give_up(item.token)
    desk.held.settle(None)
    assert desk.held.token == token(1, 1) and desk.held.ahead == 0


def test_what_is_given_up_does_not_come_again_after_a_rewind() -> None:
    desk = given_up()
    desk.give(2)
    desk.held.rewind()
    assert desk.give(9, 3.0) == [(1, 0)]
    assert desk.give(1, 4.0) == [(2, 0)]
    assert desk.give(9, 5.0) == [(2, 1), (3, 0), (3, 1)]
    assert desk.held.ahead == 6 and desk.held.given_s == 3.0
    desk.held.settle(token(1))
    assert desk.held.token == token(2) and desk.held.given_s == 4.0
    desk.held.settle(token(2))
    assert desk.held.given_s == 5.0
    desk.held.settle(token(3, 1))
    assert desk.held.is_drained and not desk.held._given_up


def test_what_was_sent_and_is_acknowledged_without_a_reply_is_passed_over() -> None:
    desk = Desk()
    assert not desk.held.pass_over(Token(0, 0))
    assert desk.held.pass_over(token(2)) and desk.held.token == token(2, 1)
    desk.give(1)
    assert not desk.held.pass_over(token(3)) and desk.held.token == token(2, 1)
    desk.held.settle(token(2, 1))
    assert desk.held.pass_over(token(3, 1)) and desk.held.is_drained


def test_what_was_given_up_is_passed_over_with_what_is_before_it_and_not_alone() -> None:
    desk = given_up()
    desk.held.rewind()
    assert not desk.held.pass_over(Token(0, 0)) and desk.held.token == token(1)
    assert desk.held.pass_over(token(1)) and desk.held.token == token(2)


def test_what_is_to_be_read_anew_is_passed_over_up_to_the_cache() -> None:
    desk = Desk()
    desk.park(has_chain=False)
    behind = desk.book.get((A, "s"))
    assert behind is not None
    behind.keeps = True
    desk.add()
    assert desk.held.pass_over(token(2)) and desk.held.token == token(2, 1)
    assert isinstance(desk.held.inner, BehindCursor) and desk.held.is_away
    assert desk.held.pass_over(token(4)) and desk.held.token == token(4, 1)
    assert isinstance(desk.held.inner, Cursor) and desk.give(9) == [(4, 1)]


@pytest.mark.parametrize("count", range(7))
def test_one_that_falls_behind_goes_on_where_it_sends_and_holds_what_it_gave(count: int) -> None:
    desk = Desk()
    every = [(seq, index) for seq in (1, 2, 3) for index in (0, 1)]
    desk.give(count)
    desk.park()
    assert desk.held.ahead == count and desk.held.token == token(1)
    assert desk.held.index is None and desk.held_seqs() == []
    behind = desk.book.get((A, "s"))
    assert behind is not None and behind.position == token(1)
    if count < 6:
        assert desk.held.next_token == token(*every[count])
    behind.keeps = True
    desk.add()  # what comes goes on in the cache
    assert desk.give(6 - count) == every[count:]
    assert desk.give(9) == [(4, 0), (4, 1)] and desk.held.next_index is None
    assert behind.position == token(1)
    desk.held.settle(token(4))
    assert not isinstance(desk.held.inner, BehindCursor)
    assert desk.held.token == token(4, 1) and desk.held_seqs() == [4] and desk.held.ahead == 1
    desk.add()
    assert desk.give(9) == [(5, 0), (5, 1)]


def test_one_that_is_behind_asks_for_more_while_there_is_room() -> None:
    desk = Desk()
    desk.give(2)
    desk.park(has_chain=False)
    behind = desk.book.get((A, "s"))
    assert behind is not None and desk.held.is_away and not desk.held.can_send
    behind.take([message(2), message(3), message(4)], token(9))
    assert desk.give(9) == [(2, 0), (2, 1), (3, 0), (3, 1)] and not desk.held.is_away
    for _ in range(3):
        desk.add()
    behind.let_go()
    assert behind.dropped == token(6) and desk.held.is_away
    behind.take([message(4), message(5)], token(6))
    assert behind.is_full and not desk.held.is_away and not desk.held.can_send
    desk.held.settle(token(2))
    assert not behind.is_full and desk.held.is_away
    behind.take([message(4), message(5)], token(6))
    assert desk.give(9) == [(4, 0), (4, 1)] and behind.is_full  # as one message has left
    desk.held.settle(token(3, 1))
    behind.take([message(5), message(6)], token(9))
    assert desk.give(9) == [(5, 0), (5, 1), (6, 0), (6, 1)]


def test_one_that_holds_nothing_is_read_anew_from_where_it_held() -> None:
    desk = Desk()
    desk.give(3)
    desk.held.settle(token(1))
    desk.park()
    desk.held.unload()
    behind = desk.book.get((A, "s"))
    assert behind is not None and behind.position == token(1, 1) and desk.held.ahead == 0
    assert desk.held.is_away
    behind.take([message(1), message(2), message(3)], token(9))
    assert desk.held.next_token == token(1, 1) and desk.held.next_index is None
    assert desk.give(9) == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_cursor_that_is_closed_holds_nothing() -> None:
    desk = Desk()
    desk.give(3)
    desk.held.close()
    desk.held.close()
    assert desk.held.is_drained and desk.held_seqs() == [] and desk.held.ahead == 0


def test_one_that_is_behind_asks_for_nothing_while_too_many_are_out() -> None:
    desk = Desk(unacked_max=2)
    desk.give(2)
    desk.park(has_chain=False)
    assert not desk.held.is_away
    desk.held.settle(token(1))
    assert desk.held.is_away
