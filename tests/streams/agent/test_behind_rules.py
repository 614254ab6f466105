"""Single rules of lagging that the model test cannot tell apart from similar rules."""

from __future__ import annotations

import pytest
from tests.streams.agent.cursors import add, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.audience.handover_list import LISTED_MAX, Former
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import BEHIND_MAX, LaggingCursors
from millstream.streams.agent.cache.positions import LAST_INDEX, before, following, past
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.progress.tracker import ProgressTracker
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

A, B = StreamId("n", "a"), StreamId("n", "b")


def message(seq: int, stream: StreamId = A, items: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x"] * items)


class Everybody:
    """Some subscriptions with unfinished events."""

    def __init__(self, count: int) -> None:
        self.count = count

    def list_unfinished(self) -> tuple[ListedSubscription, ...]:
        return tuple(ListedSubscription(*A, str(n), Token(1, 1)) for n in range(self.count))


class Desk:
    """A queue that is done up to message 4, except for one subscription of A."""

    def __init__(self) -> None:
        self.cache = QueueCache(CacheLimits(), Token(1, 4), notes="out_of_turn")
        self.laggards = LaggingCursors(self.cache, is_used=True)
        entry = ListedSubscription(*A, "sub", Token(1, 1))
        self.cursor = restored(self.laggards, entry, Token(1, 4))

    def comes(self, message: QueueMessage) -> None:
        add(self.cache, message)

    def standing(self, listed: int = 0) -> ProgressTracker:
        return ProgressTracker(
            self.laggards,
            Everybody(listed),  # type: ignore[arg-type]
            Former(QueueProgress(), is_used=False),
            Wary(QueueProgress(), is_used=False),
            Losses(),
            stored=QueueProgress(),
            has_positions=True,
            is_sole=False,
        )


def state(behind: Cursor) -> tuple[int, int | None, bool]:
    dropped = None if behind.dropped is None else behind.dropped.seq
    return behind.following.seq, dropped, behind.tail is not None


def test_positions_just_before_and_behind_an_item_are_of_its_message_or_of_its_neighbours() -> None:
    first, last = Token(1, 5, 0), Token(1, 5, LAST_INDEX)
    assert (past(first), past(Token(1, 5, 6))) == (Token(1, 5, 1), Token(1, 5, 7))
    assert past(Token(1, 5, LAST_INDEX - 1)) == last and past(last) == Token(1, 6, 0)
    assert before(Token(1, 6, 0)) == last and before(Token(1, 5, 1)) == first
    assert all(before(past(one)) == one for one in (first, Token(1, 5, 6), last))
    assert following(first) == following(last) == Token(1, 6, 0)


def test_what_comes_is_kept_only_while_a_page_is_read() -> None:
    desk = Desk()
    desk.comes(message(5))
    assert state(desk.cursor) == (1, 5, False) and desk.cache.find_acked() == Token(1, 5)
    desk.cursor.keeps = True
    desk.comes(message(6))
    assert state(desk.cursor) == (1, 5, True) and desk.cache.find_acked() == Token(1, 5)
    desk.cursor.take([message(1), message(2)], Token(1, 3))  # page and cache do not meet
    assert state(desk.cursor) == (3, 6, False) and desk.cache.find_acked() == Token(1, 6)


def test_it_is_with_the_others_once_page_and_tail_meet_and_behind_until_its_page_is_done() -> None:
    desk = Desk()
    desk.cursor.keeps = True
    desk.comes(message(5))
    desk.cursor.take([message(seq) for seq in (1, 2, 3, 4, 5, 6)], Token(1, 7))
    assert state(desk.cursor) == (5, None, True)
    assert desk.cache.chained_events == 4, "what is above the tail comes by itself"
    assert len(desk.laggards) == 1 and desk.laggards.progress().listed[0].mark == Token(1, 1)
    desk.cursor.advance(4)
    assert desk.cursor.token == Token(1, 5) and len(desk.laggards) == 0


def test_nothing_is_acknowledged_that_the_stored_record_would_read_again() -> None:
    desk = Desk()
    assert desk.laggards.ackable() is None  # the record of the former owner is not known
    desk.cursor.take([message(seq) for seq in (1, 2, 3, 4)], Token(1, 5))
    desk.cursor.advance(2)
    progress = desk.laggards.progress()
    desk.cursor.advance(1)
    assert desk.laggards.ackable() is None
    desk.laggards.on_stored(progress)
    assert desk.laggards.ackable() == Token(1, 2) == progress.floor
    desk.cursor.advance(1)
    assert desk.cursor.is_drained
    assert desk.laggards.ackable() == Token(1, 2) and desk.laggards.matters
    desk.laggards.on_stored(QueueProgress(Token(1, 4)))
    assert desk.laggards.ackable() == Token(1, 4) and not desk.laggards.matters


@pytest.mark.parametrize("listed", [0, LISTED_MAX + 1])
def test_a_hand_off_holds_nothing_back_for_the_page_of_one_that_is_behind(listed: int) -> None:
    desk = Desk()
    desk.cursor.keeps = True
    desk.comes(message(5))
    desk.comes(message(6, B))
    handed = desk.standing(listed).handoff(is_known=True)
    assert handed is not None and handed.upto == Token(1, 6)


def test_no_more_than_so_many_are_behind() -> None:
    desk = Desk()
    for number in range(BEHIND_MAX - 2):
        desk.laggards.begin((B, str(number)), Token(1, 1))
    assert desk.laggards.has_place
    desk.laggards.begin((B, "last"), Token(1, 1))
    assert not desk.laggards.has_place


def by_hand() -> Cursor:
    cursor = Desk().cursor
    cursor.unacked_max = 9
    return cursor


def test_a_place_is_skipped_to_where_nothing_of_it_is_here() -> None:
    cursor = by_hand()
    assert cursor.token == cursor.position == Token(1, 1)
    assert not cursor.pass_over(before(Token(1, 1))), "it is behind that already"
    assert cursor.pass_over(Token(1, 1)) and cursor.token == Token(1, 1, 1)
    assert cursor.pass_over(Token(1, 2)) and cursor.token == Token(1, 2, 1)
    assert cursor.pass_over(Token(1, 3, 4)) and cursor.token == Token(1, 3, 5)
    assert not cursor.pass_over(Token(1, 3, 4)) and cursor.token == Token(1, 3, 5)


def test_a_place_is_not_skipped_to_while_a_message_is_here_or_when_it_does_not_lag() -> None:
    cursor = by_hand()
    cursor.take([message(1)], Token(1, 3))
    assert not cursor.pass_over(before(Token(1, 1))) and cursor.token == Token(1, 1)
    cursor.give(1, 0.0)
    assert not cursor.pass_over(Token(1, 3)) and cursor.token == Token(1, 1)
    over = by_hand()
    over.close()
    assert not over.pass_over(Token(1, 3))
