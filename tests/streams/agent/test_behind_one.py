"""One that is behind: what it must still get, and when it has it all."""

from __future__ import annotations

import pytest

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.lagging.behind import (
    BEGINNING,
    Behind,
    BehindCursor,
    before,
    following,
)
from millstream.streams.agent.lagging.book import BehindBook
from millstream.streams.ownership.record import BehindAt

A, B = StreamId("n", "a"), StreamId("n", "b")
LAST = 2**32 - 1


def message(seq: int, stream: StreamId = A, items: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x"] * items, {}, float(seq))


class Desk:
    """A queue that was read up to message 5, and one of A that is behind from a position on."""

    def __init__(self, start: Token, *, limits: CacheLimits | None = None, read: int = 5) -> None:
        self.cache = QueueCache(limits or CacheLimits(), Token(1, read), notes="out_of_turn")
        self.book = BehindBook(self.cache, is_used=True)
        entry = BehindAt(*A, "x", start)
        self.behind = self.book.restore(entry, Token(1, read), may_repeat=False)
        self.behind.is_new = False

    def comes(self, *messages: QueueMessage) -> None:
        for one in messages:
            self.cache.unpin(self.cache.append(one))
        self.check()

    def takes(self, *seqs: int, upto: int, items: int = 1) -> None:
        """A page: these messages of its stream, and all of it up to there."""
        self.behind.take([message(seq, items=items) for seq in seqs], Token(1, upto))
        self.check()

    def lacks(self) -> tuple[int, int] | None:
        """The first message that is to be read anew, and the last."""
        dropped = self.behind.dropped
        return None if dropped is None else (self.behind.following.seq, dropped.seq)

    def has(self) -> list[tuple[int, int]]:
        return [(one.token.seq, one.token.index) for one in self.behind.items(99, 1 << 20)]

    def check(self) -> None:
        self.cache.check()
        self.book.check()


def test_positions_have_neighbours_that_a_token_can_name() -> None:
    assert before(Token(1, 5, 2)) == Token(1, 5, 1) and before(Token(1, 5, 1)) == Token(1, 5, 0)
    assert before(Token(1, 5, 0)) == Token(1, 4, LAST)
    assert following(Token(1, 5, 7)) == Token(1, 6, 0)


# --- what comes -----------------------------------------------------------------------------------


def test_what_was_read_anew_already_is_not_lacking_when_it_comes() -> None:
    desk = Desk(Token(1, 4))
    desk.takes(4, 5, 6, 7, upto=8)
    assert desk.lacks() is None and desk.has() == [(4, 0), (5, 0)]  # the rest comes
    desk.behind.following = Token(1, 7)
    desk.comes(message(6))
    assert desk.lacks() is None
    desk.comes(message(7))
    assert desk.lacks() == (7, 7)


def test_what_comes_again_while_more_is_lacking_changes_nothing() -> None:
    desk = Desk(Token(1, 3))
    desk.behind.keeps = True
    desk.comes(message(5))  # it was read before, by a receiver that was replaced
    assert desk.lacks() == (3, 5) and desk.behind.tail is None
    desk.comes(message(6))
    assert desk.behind.tail is not None and desk.behind.tail.token == Token(1, 6)
    desk.comes(message(7))
    assert desk.behind.tail.token == Token(1, 6), "the tail begins where it began"


def test_a_queue_that_kept_nothing_is_read_from_what_comes_first() -> None:
    desk = Desk(BEGINNING)
    desk.behind.dropped = None
    desk.behind.is_new = True  # whether something is kept is not known
    desk.comes(message(7))
    assert desk.behind.following == BEGINNING
    desk.behind.dropped = None
    desk.behind.is_new = False
    desk.comes(message(8))
    assert desk.lacks() == (8, 8) and desk.behind.position == Token(1, 8)


def test_it_needs_what_it_has_not_done_and_all_of_a_message_that_it_has_begun() -> None:
    behind = Desk(Token(1, 4, 1)).behind
    assert [behind.needs(Token(1, seq)) for seq in (3, 4, 5)] == [False, True, True]


def test_to_let_go_is_to_read_anew_all_that_has_come() -> None:
    desk = Desk(Token(1, 5))
    desk.behind.keeps = True
    desk.comes(message(6), message(7), message(8, B))
    assert desk.lacks() == (5, 5) and desk.cache.acked_upto() == Token(1, 5)
    desk.behind.let_go()
    assert desk.lacks() == (5, 7) and desk.behind.tail is None and not desk.behind.keeps
    assert desk.cache.acked_upto() == Token(1, 8)
    desk.behind.let_go()
    assert desk.lacks() == (5, 7)


def test_to_let_go_after_all_was_read_anew_is_to_lack_what_is_kept_here() -> None:
    desk = Desk(Token(1, 5))
    desk.behind.keeps = True
    desk.comes(message(6), message(7))
    desk.takes(5, upto=6)
    assert desk.lacks() is None
    desk.behind.let_go()
    assert desk.lacks() == (6, 7)


# --- what is read anew ----------------------------------------------------------------------------


def test_a_page_brings_what_is_lacking_and_nothing_else() -> None:
    desk = Desk(Token(1, 3, 1))
    assert desk.lacks() == (3, 5)
    page = [message(seq, items=2) for seq in (1, 2, 3)] + [QueueMessage(A, Token(1, 4), ())]
    desk.behind.take([*page, message(5), message(6)], Token(1, 9))
    assert desk.has() == [(3, 1), (5, 0)] and desk.lacks() is None
    assert desk.behind.following == Token(1, 6)
    desk.takes(6, upto=9)
    assert desk.has() == [(3, 1), (5, 0)], "it has all: what is above comes by itself"


def test_a_page_that_ends_early_leaves_the_rest_lacking() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, 3, upto=4)
    assert desk.lacks() == (4, 5) and desk.has() == [(2, 0), (3, 0)]
    desk.takes(upto=4)  # of its stream nothing was there
    assert desk.lacks() == (4, 5)
    desk.takes(3, upto=4)  # an older page
    assert desk.lacks() == (4, 5) and desk.has() == [(2, 0), (3, 0)]
    desk.takes(upto=6)
    assert desk.lacks() is None


def test_a_page_for_which_there_is_no_room_is_read_again_from_where_the_room_ended() -> None:
    desk = Desk(Token(1, 2), limits=CacheLimits(stream_events_max=3))
    desk.takes(2, 3, 4, 5, upto=6, items=2)
    assert desk.has() == [(2, 0), (2, 1)] and desk.lacks() == (3, 5)
    desk.behind.advance(2)
    desk.takes(3, 4, 5, upto=6, items=2)
    assert desk.has() == [(3, 0), (3, 1)] and desk.lacks() == (4, 5)


def test_the_first_message_of_a_page_may_be_done_already() -> None:
    desk = Desk(Token(1, 2, 2))
    desk.takes(2, 3, upto=6, items=2)
    assert desk.has() == [(3, 0), (3, 1)] and desk.behind.position == Token(1, 3)
    assert desk.behind.events == 2


# --- what is gone ---------------------------------------------------------------------------------


def test_what_is_gone_is_told_with_the_place_where_it_is_missed() -> None:
    desk = Desk(Token(1, 2, 1))
    assert desk.behind.lose(Token(1, 2)) is None, "nothing that it lacks"
    assert desk.behind.lose(Token(1, 4)) == Token(1, 2, 1)
    assert desk.lacks() == (4, 5) and desk.behind.position == Token(1, 4)
    assert desk.behind.lose(Token(1, 9)) == Token(1, 4), "what is above 5 comes by itself"
    assert desk.lacks() is None and desk.behind.following == Token(1, 6)
    assert desk.behind.lose(Token(1, 99)) is None


# --- where it begins ------------------------------------------------------------------------------


def begun(start: Token, read: int | None = None) -> Behind:
    """One that begins, on a queue of which messages up to `read` have come."""
    cache = QueueCache(CacheLimits(), None if read is None else Token(1, read))
    return BehindBook(cache, is_used=True).begin((A, "x"), start)


def test_the_oldest_that_is_kept_is_where_the_beginning_is() -> None:
    behind = begun(BEGINNING)
    assert not behind.begin_within(Token(1, 3), Token(1, 8)) and not behind.is_new
    assert (behind.position, behind.dropped) == (Token(1, 3), Token(1, 8))
    behind = begun(BEGINNING, read=9)  # all that has come is gone
    assert not behind.begin_within(None, None)
    assert behind.has_all and behind.position == Token(1, 10)
    behind = begun(BEGINNING)  # and nothing has come
    assert not behind.begin_within(None, None)
    assert behind.has_all and behind.position == BEGINNING


def test_who_begins_within_what_is_kept_lacks_all_from_there_on() -> None:
    behind = begun(Token(1, 5, 1), read=7)
    assert not behind.begin_within(Token(1, 3), Token(1, 8))
    assert (behind.position, behind.dropped) == (Token(1, 5, 1), Token(1, 8))
    behind = begun(Token(1, 5), read=9)  # the reader of the queue is further than the bounds
    assert not behind.begin_within(Token(1, 3), Token(1, 8)) and behind.dropped == Token(1, 9)


def test_who_begins_behind_the_last_gets_what_comes_from_now_on() -> None:
    for known, read in ((Token(1, 8), 7), (Token(1, 7), 8), (Token(1, 8), None), (None, 8)):
        behind = begun(Token(1, 9), read)
        assert not behind.begin_within(known, known), "that is what comes next"
        assert behind.has_all and behind.position == Token(1, 9)
        for ahead in (Token(1, 9, 1), Token(1, 10), Token(2, 0)):
            behind = begun(ahead, read)
            assert behind.begin_within(known, known)
            assert behind.has_all and behind.position == Token(1, 9)


def test_what_is_skipped_is_not_lacking() -> None:
    desk = Desk(Token(1, 2))
    desk.behind.skip_to(Token(1, 4, 1))
    assert desk.lacks() == (4, 5) and desk.behind.position == Token(1, 4, 1)
    desk.behind.skip_to(Token(1, 3))
    assert desk.lacks() == (4, 5) and desk.behind.position == Token(1, 4, 1)
    desk.behind.skip_to(Token(1, 6))
    assert desk.lacks() is None and desk.behind.position == Token(1, 6)


# --- what is done ---------------------------------------------------------------------------------


def test_what_is_done_leaves_the_chain_message_by_message() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, 4, 5, upto=6, items=2)
    assert (desk.behind.events, desk.behind.size_bytes, desk.behind.floor) == (6, 6, None)
    assert desk.behind.lag() == (6, 3.0)
    desk.behind.advance(1)
    assert (desk.behind.events, desk.behind.floor) == (6, None)
    assert desk.behind.position == Token(1, 3, 1) and desk.behind.lag() == (5, 3.0)
    desk.behind.advance(3)
    desk.check()
    assert (desk.behind.events, desk.behind.size_bytes) == (2, 2)
    assert desk.behind.floor == Token(1, 4) and desk.behind.lag() == (2, 5.0)
    desk.behind.advance(2)
    desk.check()
    assert desk.behind.events == 0 and desk.behind.lag() == (0, 0.0)
    assert desk.behind.position == Token(1, 6) and desk.behind.floor == Token(1, 5)


def test_more_than_is_here_cannot_be_done() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, upto=4)
    with pytest.raises(AssertionError, match="past the end"):
        desk.behind.advance(2)


def test_a_consumer_has_heard_that_events_come_again_once_it_has_done_one() -> None:
    desk = Desk(Token(1, 3))
    desk.behind.is_rewound = True
    desk.takes(3, upto=4)
    desk.behind.advance(0)
    assert desk.behind.entry() == BehindAt(*A, "x", Token(1, 3), True)
    desk.behind.advance(1)
    assert desk.behind.entry() == BehindAt(*A, "x", Token(1, 4), False)
    desk.behind.advance(0)
    assert not desk.behind.is_rewound


def test_to_unload_is_to_hold_nothing_and_to_read_anew_all_that_is_not_done() -> None:
    desk = Desk(Token(1, 3))
    desk.behind.unload()
    assert desk.lacks() == (3, 5)
    desk.behind.keeps = True
    desk.comes(message(6))
    desk.takes(3, 4, 5, upto=6, items=2)
    assert desk.lacks() is None
    desk.behind.advance(3)
    desk.behind.unload()
    desk.check()
    assert desk.has() == [] and (desk.behind.events, desk.cache.chained_events) == (0, 0)
    assert desk.lacks() == (4, 6) and desk.behind.position == Token(1, 4, 1)
    assert desk.behind.tail is None and not desk.behind.keeps
    desk.takes(4, 5, upto=6, items=2)
    assert desk.has() == [(4, 1), (5, 0), (5, 1)] and desk.lacks() == (6, 6)


def test_who_has_all_at_hand_and_unloads_it_lacks_it_again() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, 4, 5, upto=6)
    desk.behind.advance(1)
    assert desk.lacks() is None
    desk.behind.unload()
    assert desk.lacks() == (4, 5)


def test_to_unload_a_part_of_what_is_lacking_changes_nothing_of_the_rest() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, 3, upto=4)
    desk.behind.unload()
    assert desk.lacks() == (2, 5) and desk.behind.position == Token(1, 2)


# --- with the others again ------------------------------------------------------------------------


def cursor_of(desk: Desk) -> BehindCursor:
    return BehindCursor(desk.behind)


def test_it_goes_on_in_the_cache_where_what_was_read_anew_ends() -> None:
    desk = Desk(Token(1, 5))
    desk.behind.keeps = True
    desk.comes(message(6, B), message(7), message(8))
    desk.takes(5, upto=6)
    cursor = cursor_of(desk).advance(1)
    assert isinstance(cursor, Cursor) and cursor.token == Token(1, 7)
    assert desk.behind.is_over and len(desk.book) == 0
    desk.check()
    assert cursor.advance(2) is None and desk.cache.acked_upto() == Token(1, 8)


def test_it_goes_on_within_a_message_that_it_has_begun() -> None:
    desk = Desk(Token(1, 6, 1))
    assert desk.lacks() is None
    desk.behind.keeps = True
    desk.comes(message(6, items=3))
    cursor = cursor_of(desk).advance(0)
    assert isinstance(cursor, Cursor) and cursor.token == Token(1, 6, 1)


def test_who_has_done_all_and_for_whom_nothing_came_is_nowhere() -> None:
    desk = Desk(Token(1, 5))
    desk.takes(5, upto=6)
    assert cursor_of(desk).advance(1) is None and desk.behind.is_over


@pytest.mark.parametrize(
    ("messages", "is_new", "done"),
    [
        ([4, 5], False, 1),  # something is at hand
        ([4], False, 1),  # something is lacking
        ([4, 5], True, 2),  # it is not known what it lacks
    ],
)
def test_it_is_behind_as_long_as_something_is_not_done(
    messages: list[int], is_new: bool, done: int
) -> None:
    desk = Desk(Token(1, 4))
    desk.takes(*messages, upto=messages[-1] + 1)
    desk.behind.is_new = is_new
    cursor = cursor_of(desk)
    assert cursor.advance(done) is cursor and not cursor.is_drained and len(desk.book) == 1


def test_its_place_is_as_a_cursors() -> None:
    desk = Desk(Token(1, 4))
    cursor = cursor_of(desk)
    assert cursor.is_away and cursor.index is None and list(cursor.peek(9, 99)) == []
    assert (cursor.token, cursor.after) == (Token(1, 4), Token(1, 3, LAST))
    desk.takes(4, 5, upto=6, items=2)
    assert not cursor.is_away and not cursor.is_drained and not cursor.may_repeat
    assert [one.token for one in cursor.peek(3, 99)] == [Token(1, 4), Token(1, 4, 1), Token(1, 5)]
    assert cursor.lag() == (4, 4.0)
    desk.behind.may_repeat = True
    assert cursor.may_repeat
    cursor.unload()
    assert cursor.is_away and desk.cache.chained_events == 0
    cursor.close()
    cursor.close()
    assert cursor.is_drained and len(desk.book) == 0
    desk.check()


def test_who_ends_gives_back_its_room_and_its_place_in_the_cache() -> None:
    desk = Desk(Token(1, 4))
    desk.behind.keeps = True
    desk.comes(message(6))
    desk.takes(4, 5, upto=6)
    assert desk.cache.acked_upto() == Token(1, 5) and desk.cache.chained_events == 2
    desk.behind.end()
    desk.check()
    assert desk.cache.acked_upto() == Token(1, 6) and desk.cache.chained_events == 0


def test_who_has_no_room_for_more_asks_for_no_more_before_something_is_done() -> None:
    desk = Desk(Token(1, 2), limits=CacheLimits(stream_events_max=3))
    cursor = cursor_of(desk)
    assert cursor.wants_more
    desk.takes(2, 3, 4, 5, upto=6, items=2)
    assert not cursor.wants_more and desk.behind.is_full
    desk.behind.advance(0)
    assert not cursor.wants_more
    desk.behind.advance(1)
    assert cursor.wants_more and not desk.behind.is_full
    desk.takes(3, upto=4, items=2)
    assert not cursor.wants_more
    cursor.unload()
    assert cursor.wants_more


def test_who_has_all_asks_for_no_more_unless_it_is_not_known_what_it_lacks() -> None:
    desk = Desk(Token(1, 6))
    assert not cursor_of(desk).wants_more
    desk.behind.is_new = True
    assert cursor_of(desk).wants_more


def test_what_a_former_owner_has_delivered_is_said_to_the_next_one() -> None:
    desk = Desk(Token(1, 3))
    assert desk.behind.entry() == BehindAt(*A, "x", Token(1, 3))
    entry = BehindAt(*A, "y", Token(1, 3), sent=Token(1, 4))
    assert desk.book.restore(entry, Token(1, 5), may_repeat=False).entry() == entry


def test_its_chain_goes_on_in_the_cache_once_it_has_all() -> None:
    desk = Desk(Token(1, 4))
    cursor = cursor_of(desk)
    assert cursor.place() is None
    desk.behind.keeps = True
    desk.comes(message(6))
    desk.takes(4, upto=5, items=2)
    desk.behind.advance(1)
    place = cursor.place()
    assert place is not None and (place[0].message.token, place[1]) == (Token(1, 4), 1)
    assert cursor.beyond(place[0]) is None, "message 5 is lacking"
    desk = Desk(Token(1, 4))
    cursor = cursor_of(desk)
    desk.behind.keeps = True
    desk.takes(4, 5, upto=6)
    place = cursor.place()
    assert place is not None and place[0].next is not None
    last = place[0].next
    assert cursor.beyond(last) is None, "nothing has come"
    desk.comes(message(6, B), message(7))
    beyond = cursor.beyond(last)
    assert beyond is not None and beyond.message.token == Token(1, 7)
    assert cursor.beyond(place[0]) is None, "it is not the last"


def test_what_is_read_anew_was_tried_as_often_as_its_queue_says() -> None:
    desk = Desk(Token(1, 4))
    assert cursor_of(desk).tried == 0
    desk.behind.take([QueueMessage(A, Token(1, 4), [b"x"], attempt=3)], Token(1, 5))
    assert cursor_of(desk).tried == 2
