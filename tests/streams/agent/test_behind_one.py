"""A lagging cursor: the messages that it must still get, and the end of its lag."""

from __future__ import annotations

import pytest
from tests.streams.agent.cursors import add, append, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.positions import BEGINNING, before, following
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.ownership.record import ListedSubscription

A, B = StreamId("n", "a"), StreamId("n", "b")
LAST = 2**32 - 1


def message(seq: int, stream: StreamId = A, items: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x"] * items, {}, float(seq))


class Desk:
    """A queue that was read up to message 5, and a cursor of A that lags from a position on."""

    def __init__(self, start: Token, *, limits: CacheLimits | None = None, read: int = 5) -> None:
        self.cache = QueueCache(limits or CacheLimits(), Token(1, read), notes="out_of_turn")
        self.laggards = LaggingCursors(self.cache, is_used=True)
        entry = ListedSubscription(*A, "x", start)
        self.cursor = restored(self.laggards, entry, Token(1, read))
        self.cursor.is_new = False

    def comes(self, *messages: QueueMessage) -> None:
        add(self.cache, *messages)
        self.check()

    def takes(self, *seqs: int, upto: int, items: int = 1) -> None:
        """Deliver a page: these messages of its stream, complete up to `upto`."""
        self.cursor.take([message(seq, items=items) for seq in seqs], Token(1, upto))
        self.check()

    def lacks(self) -> tuple[int, int] | None:
        """Return the first and last message that must be read again."""
        dropped = self.cursor.dropped
        return None if dropped is None else (self.cursor.following.seq, dropped.seq)

    def has(self) -> list[tuple[int, int]]:
        return [(one.token.seq, one.token.index) for one in self.cursor.peek(99, 1 << 20)]

    def check(self) -> None:
        self.cache.check()
        self.laggards.check()


def test_positions_have_neighbours_that_a_token_can_name() -> None:
    assert before(Token(1, 5, 2)) == Token(1, 5, 1) and before(Token(1, 5, 1)) == Token(1, 5, 0)
    assert before(Token(1, 5, 0)) == Token(1, 4, LAST)
    assert following(Token(1, 5, 7)) == Token(1, 6, 0)


# --- new messages ---------------------------------------------------------------------------------


def test_what_was_read_anew_already_is_not_lacking_when_it_comes() -> None:
    desk = Desk(Token(1, 4))
    desk.takes(4, 5, 6, 7, upto=8)
    # later messages come through the cache
    assert desk.lacks() is None and desk.has() == [(4, 0), (5, 0)]
    assert desk.cursor.slot and desk.cursor.slot.lane
    desk.cursor.slot.lane.end = Token(1, 7)
    desk.comes(message(6))
    assert desk.lacks() is None
    desk.comes(message(7))
    assert desk.lacks() == (7, 7)


def test_what_comes_again_while_more_is_lacking_changes_nothing() -> None:
    desk = Desk(Token(1, 3))
    desk.cursor.keeps = True
    desk.comes(message(5))  # a replaced receiver had read it before
    assert desk.lacks() == (3, 5) and desk.cursor.tail is None
    desk.comes(message(6))
    assert desk.cursor.tail is not None and desk.cursor.tail.message.token == Token(1, 6)
    desk.comes(message(7))
    assert desk.cursor.tail.message.token == Token(1, 6), "the tail begins where it began"


def test_a_queue_that_kept_nothing_is_read_from_what_comes_first() -> None:
    cache = QueueCache(CacheLimits())
    cursor = LaggingCursors(cache, is_used=True).begin((A, "x"), BEGINNING)
    add(cache, message(7))
    assert cursor.following == BEGINNING, "whether something is kept is not known"
    assert not cursor.begin_within(Token(1, 7), Token(1, 7), None)
    assert (cursor.position, cursor.dropped) == (Token(1, 7), Token(1, 7))
    cursor = begun(BEGINNING)
    cursor.begin_within(None, None, None)
    assert cursor.is_drained, "nothing is kept: it goes on with what comes"
    slot = append(cache, message(8))
    cursor.enter(slot, cursor.after)
    assert cursor.token == Token(1, 8)


def test_it_needs_what_it_has_not_done_and_all_of_a_message_that_it_has_begun() -> None:
    cursor = Desk(Token(1, 4, 1)).cursor
    assert [cursor.needs(Token(1, seq)) for seq in (3, 4, 5)] == [False, True, True]


def test_to_let_go_is_to_read_anew_all_that_has_come() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.keeps = True
    desk.comes(message(6), message(7), message(8, B))
    assert desk.lacks() == (5, 5) and desk.cache.find_acked() == Token(1, 5)
    desk.cursor.let_go()
    assert desk.lacks() == (5, 7) and desk.cursor.tail is None and not desk.cursor.keeps
    assert desk.cache.find_acked() == Token(1, 8)
    desk.cursor.let_go()
    assert desk.lacks() == (5, 7)


def test_to_let_go_after_all_was_read_anew_is_to_lack_what_is_kept_here() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.keeps = True
    desk.comes(message(6), message(7))
    desk.takes(5, upto=6)
    assert desk.lacks() is None
    desk.cursor.let_go()
    assert desk.lacks() == (6, 7)


# --- pages that are read again --------------------------------------------------------------------


def test_a_page_brings_what_is_lacking_and_nothing_else() -> None:
    desk = Desk(Token(1, 3, 1))
    assert desk.lacks() == (3, 5)
    page = [message(seq, items=2) for seq in (1, 2, 3)] + [QueueMessage(A, Token(1, 4), ())]
    desk.cursor.take([*page, message(5), message(6)], Token(1, 9))
    assert desk.has() == [(3, 1), (5, 0)] and desk.lacks() is None
    assert desk.cursor.following == Token(1, 6)
    desk.takes(6, upto=9)
    assert desk.has() == [(3, 1), (5, 0)], "it has all: what is above comes by itself"


def test_a_page_that_ends_early_leaves_the_rest_lacking() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, 3, upto=4)
    assert desk.lacks() == (4, 5) and desk.has() == [(2, 0), (3, 0)]
    desk.takes(upto=4)  # the stream had no message there
    assert desk.lacks() == (4, 5)
    desk.takes(3, upto=4)  # an older page
    assert desk.lacks() == (4, 5) and desk.has() == [(2, 0), (3, 0)]
    desk.takes(upto=6)
    assert desk.lacks() is None


def test_a_page_for_which_there_is_no_room_is_read_again_from_where_the_room_ended() -> None:
    desk = Desk(Token(1, 2), limits=CacheLimits(stream_events_max=3))
    desk.takes(2, 3, 4, 5, upto=6, items=2)
    assert desk.has() == [(2, 0), (2, 1)] and desk.lacks() == (3, 5)
    desk.cursor.advance(2)
    desk.takes(3, 4, 5, upto=6, items=2)
    assert desk.has() == [(3, 0), (3, 1)] and desk.lacks() == (4, 5)


def test_the_first_message_of_a_page_may_be_done_already() -> None:
    desk = Desk(Token(1, 2, 2))
    desk.takes(2, 3, upto=6, items=2)
    assert desk.has() == [(3, 0), (3, 1)] and desk.cursor.position == Token(1, 3)
    assert desk.cache.chained_events == 2


# --- lost messages --------------------------------------------------------------------------------


def test_what_is_gone_is_told_with_the_place_where_it_is_missed() -> None:
    desk = Desk(Token(1, 2, 1))
    assert desk.cursor.lose(Token(1, 2)) is None, "nothing that it lacks"
    assert desk.cursor.lose(Token(1, 4)) == Token(1, 2, 1)
    assert desk.lacks() == (4, 5) and desk.cursor.position == Token(1, 4)
    assert desk.cursor.lose(Token(1, 9)) == Token(1, 4), "what is above 5 comes by itself"
    assert desk.lacks() is None and desk.cursor.following == Token(1, 6)
    assert desk.cursor.is_drained and desk.cursor.after == Token(1, 5, LAST)
    assert desk.cursor.lose(Token(1, 99)) is None


def test_what_is_gone_behind_the_messages_at_hand_is_missed_there() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, upto=3)
    assert desk.cursor.lose(Token(1, 5)) == Token(1, 3)
    assert desk.lacks() == (5, 5) and desk.has() == [(2, 0)]
    desk.check()


# --- the start ------------------------------------------------------------------------------------


def begun(start: Token, read: int | None = None) -> Cursor:
    """A new cursor, on a queue of which messages up to `read` have been read."""
    cache = QueueCache(CacheLimits(), None if read is None else Token(1, read))
    return LaggingCursors(cache, is_used=True).begin((A, "x"), start)


def test_the_oldest_that_is_kept_is_where_the_beginning_is() -> None:
    cursor = begun(BEGINNING)
    assert not cursor.begin_within(Token(1, 3), Token(1, 8), None) and not cursor.is_new
    assert (cursor.position, cursor.dropped) == (Token(1, 3), Token(1, 8))
    cursor = begun(BEGINNING, read=9)  # all messages that were read are deleted
    assert not cursor.begin_within(None, None, Token(1, 9))
    assert cursor.has_all and cursor.position == Token(1, 10)
    cursor = begun(BEGINNING)  # and no message was read
    assert not cursor.begin_within(None, None, None)
    assert cursor.has_all and cursor.position == BEGINNING


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("read", [9, None])
def test_an_empty_queue_has_what_came_since_it_was_asked(read: int | None, keeps: bool) -> None:
    cache = QueueCache(CacheLimits(), None if read is None else Token(1, read))
    laggards = LaggingCursors(cache, is_used=True)
    cursor, newest = laggards.begin((A, "x"), BEGINNING), cache.newest
    cursor.keeps = keeps
    add(cache, message(10), message(11))
    assert not cursor.begin_within(None, None, newest)
    if keeps:  # it has them
        assert not cursor.is_lagging and cursor.token == Token(1, 10)
    else:  # they are read again
        begin = BEGINNING if read is None else Token(1, 10)
        assert (cursor.following, cursor.dropped) == (begin, Token(1, 11))
        cursor.lose(Token(1, 10))
        assert cursor.following == Token(1, 10)


def test_one_that_begins_with_the_oldest_misses_nothing_that_is_gone() -> None:
    cursor = begun(BEGINNING)
    cursor.begin_within(None, Token(1, 4), None)
    assert cursor.lose(Token(1, 3)) is None and cursor.following == Token(1, 3)
    assert cursor.lose(Token(1, 4)) == Token(1, 3)


def test_who_begins_within_what_is_kept_lacks_all_from_there_on() -> None:
    cursor = begun(Token(1, 5, 1), read=7)
    assert not cursor.begin_within(Token(1, 3), Token(1, 8), None)
    assert (cursor.position, cursor.dropped) == (Token(1, 5, 1), Token(1, 8))
    cursor = begun(Token(1, 5), read=9)  # the reader of the queue is ahead of the bounds
    assert not cursor.begin_within(Token(1, 3), Token(1, 8), None) and cursor.dropped == Token(1, 9)


def test_who_begins_behind_the_last_gets_what_comes_from_now_on() -> None:
    for known, read in ((Token(1, 8), 7), (Token(1, 7), 8), (Token(1, 8), None), (None, 8)):
        cursor = begun(Token(1, 9), read)
        assert not cursor.begin_within(known, known, None), "that is what comes next"
        assert cursor.has_all and cursor.position == Token(1, 9)
        for ahead in (Token(1, 9, 1), Token(1, 10), Token(2, 0)):
            cursor = begun(ahead, read)
            assert cursor.begin_within(known, known, None)
            assert cursor.has_all and cursor.position == Token(1, 9)


def test_what_is_skipped_is_not_lacking() -> None:
    desk = Desk(Token(1, 2))
    desk.cursor.skip_to(Token(1, 4, 1))
    assert desk.lacks() == (4, 5) and desk.cursor.position == Token(1, 4, 1)
    desk.cursor.skip_to(Token(1, 3))
    assert desk.lacks() == (4, 5) and desk.cursor.position == Token(1, 4, 1)
    desk.cursor.skip_to(Token(1, 6))
    assert desk.lacks() is None and desk.cursor.position == Token(1, 6)


# --- acknowledged messages ------------------------------------------------------------------------


def test_what_is_done_leaves_the_chain_message_by_message() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, 4, 5, upto=6, items=2)
    assert (desk.cache.chained_events, desk.cache.chained_bytes, desk.cursor.floor) == (6, 6, None)
    assert desk.cursor.lag() == (6, 3.0)
    desk.cursor.advance(1)
    assert (desk.cache.chained_events, desk.cursor.floor) == (6, None)
    assert desk.cursor.position == Token(1, 3, 1) and desk.cursor.lag() == (5, 3.0)
    desk.cursor.advance(3)
    desk.check()
    assert (desk.cache.chained_events, desk.cache.chained_bytes) == (2, 2)
    assert desk.cursor.floor == Token(1, 4) and desk.cursor.lag() == (2, 5.0)
    desk.cursor.advance(2)
    desk.check()
    assert desk.cache.chained_events == 0 and desk.cursor.lag() == (0, 0.0)
    assert desk.cursor.position == Token(1, 6) and desk.cursor.floor == Token(1, 5)


def test_what_came_while_it_stood_at_a_message_is_not_lacking_once_all_of_it_is_done() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, 3, upto=4)
    desk.takes(4, upto=5)
    desk.cursor.advance(3)
    assert desk.lacks() == (5, 5) and desk.has() == []


def test_more_than_is_here_cannot_be_done() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, upto=4)
    with pytest.raises(AssertionError, match="1 items of .* are not here"):
        desk.cursor.advance(2)


def test_a_consumer_has_heard_that_events_come_again_once_it_has_done_one() -> None:
    desk = Desk(Token(1, 3))
    desk.cursor.is_rewound = True
    desk.takes(3, upto=4)
    assert desk.cursor.entry() == ListedSubscription(*A, "x", Token(1, 3), is_rewound=True)
    desk.cursor.advance(1)
    assert desk.cursor.entry() == ListedSubscription(*A, "x", Token(1, 4))


def test_to_unload_is_to_hold_nothing_and_to_read_anew_all_that_is_not_done() -> None:
    desk = Desk(Token(1, 3))
    desk.cursor.unload()
    assert desk.lacks() == (3, 5)
    desk.cursor.keeps = True
    desk.comes(message(6))
    desk.takes(3, 4, 5, upto=6, items=2)
    assert desk.lacks() is None
    desk.cursor.advance(3)
    desk.cursor.unload()
    desk.check()
    assert desk.has() == [] and (desk.cache.chained_events, desk.cache.chained_events) == (0, 0)
    assert desk.lacks() == (4, 6) and desk.cursor.position == Token(1, 4, 1)
    assert desk.cursor.tail is None and not desk.cursor.keeps
    desk.takes(4, 5, upto=6, items=2)
    assert desk.has() == [(4, 1), (5, 0), (5, 1)] and desk.lacks() == (6, 6)


def test_who_has_all_at_hand_and_unloads_it_lacks_it_again() -> None:
    desk = Desk(Token(1, 3))
    desk.takes(3, 4, 5, upto=6)
    desk.cursor.advance(1)
    assert desk.lacks() is None
    desk.cursor.unload()
    assert desk.lacks() == (4, 5)


def test_to_unload_a_part_of_what_is_lacking_changes_nothing_of_the_rest() -> None:
    desk = Desk(Token(1, 2))
    desk.takes(2, 3, upto=4)
    desk.cursor.unload()
    assert desk.lacks() == (2, 5) and desk.cursor.position == Token(1, 2)


# --- the return to the cache ----------------------------------------------------------------------


def test_it_goes_on_in_the_cache_where_what_was_read_anew_ends() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.keeps = True
    desk.comes(message(6, B), message(7), message(8))
    desk.takes(5, upto=6)
    assert desk.cursor.is_lagging
    desk.cursor.advance(1)
    assert not desk.cursor.is_lagging and desk.cursor.token == Token(1, 7)
    assert len(desk.laggards) == 0
    desk.check()
    desk.cursor.advance(2)
    assert desk.cursor.is_drained and desk.cache.find_acked() == Token(1, 8)


def test_it_goes_on_in_the_cache_as_soon_as_nothing_is_lacking_and_nothing_is_at_hand() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.keeps = True
    desk.comes(message(6), message(7))
    desk.takes(upto=6)
    assert not desk.cursor.is_lagging and desk.cursor.token == Token(1, 6)
    assert desk.cache.find_acked() == Token(1, 5)
    desk.cursor.advance(2)
    assert desk.cache.find_acked() == Token(1, 7)


def test_what_another_one_has_read_anew_is_not_read_again_before_it_goes_on_in_the_cache() -> None:
    desk = Desk(Token(1, 4))
    other = desk.laggards.begin((A, "y"), Token(1, 4))
    other.is_new = False
    desk.takes(4, upto=5)
    for seq in (4, 5):
        other.take([message(seq)], Token(1, seq + 1))
    desk.cursor.keeps = True
    desk.comes(message(6))
    assert desk.has() == [(4, 0), (5, 0)] and desk.lacks() is None
    desk.cursor.advance(2)
    assert not desk.cursor.is_lagging and desk.cursor.token == Token(1, 6)


def test_it_goes_on_within_a_message_that_it_has_begun() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.close()
    desk.cursor.begin(Token(1, 6, 1), Token(1, 5), may_repeat=False, is_new=True)
    assert desk.lacks() is None
    desk.cursor.keeps = True
    desk.comes(message(6, items=3))
    assert not desk.cursor.begin_within(Token(1, 1), Token(1, 5), None)
    assert not desk.cursor.is_lagging and desk.cursor.token == Token(1, 6, 1)
    desk.check()


def test_who_has_done_all_and_for_whom_nothing_came_is_nowhere() -> None:
    desk = Desk(Token(1, 5))
    desk.takes(5, upto=6)
    desk.cursor.advance(1)
    assert desk.cursor.is_drained and not desk.cursor.is_lagging
    assert desk.cursor.token is None is desk.cursor.index and len(desk.laggards) == 0


def test_a_cursor_that_has_caught_up_can_be_used_on_and_can_lag_again() -> None:
    desk = Desk(Token(1, 5))
    desk.takes(5, upto=6)
    desk.cursor.advance(1)
    slot = append(desk.cache, message(6, items=2))
    desk.cursor.enter(slot, desk.cursor.after)
    desk.cache.release(slot)
    desk.cursor.advance(1)
    desk.cursor.start_lagging(0, has_chain=False, may_repeat=True)
    desk.check()
    assert desk.cursor.is_lagging and desk.lacks() == (6, 6)
    assert desk.cursor.entry() == ListedSubscription(*A, "x", Token(1, 6, 1))
    assert desk.cursor.floor == Token(1, 5) and desk.cache.find_acked() == Token(1, 6)


def test_a_cursor_that_lags_again_says_nothing_of_the_time_when_it_lagged_before() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.is_rewound = desk.cursor.is_full = True
    desk.cursor.sent = Token(1, 8)
    desk.cursor.skip_to(Token(1, 6))
    assert desk.cursor.is_drained
    slot = append(desk.cache, message(6))
    desk.cursor.enter(slot)
    desk.cache.release(slot)
    desk.cursor.start_lagging(0, has_chain=False, may_repeat=False)
    assert desk.cursor.is_lagging and not desk.cursor.is_full
    assert desk.cursor.entry() == ListedSubscription(*A, "x", Token(1, 6))


@pytest.mark.parametrize(
    ("messages", "is_new", "done"),
    [
        ([4, 5], False, 1),  # it has cached messages
        ([4], False, 1),  # it lacks a message
        ([4, 5], True, 2),  # its missing messages are not known
    ],
)
def test_it_lags_as_long_as_something_is_not_done(
    messages: list[int], is_new: bool, done: int
) -> None:
    desk = Desk(Token(1, 4))
    desk.takes(*messages, upto=messages[-1] + 1)
    desk.cursor.is_new = is_new
    desk.cursor.advance(done)
    desk.check()
    assert desk.cursor.is_lagging and not desk.cursor.is_drained and len(desk.laggards) == 1


def test_its_place_is_as_that_of_any_cursor() -> None:
    desk = Desk(Token(1, 4))
    cursor = desk.cursor
    assert cursor.is_away and cursor.index is None and list(cursor.peek(9, 99)) == []
    assert (cursor.token, cursor.after) == (Token(1, 4), Token(1, 3, LAST))
    assert cursor.next_token == Token(1, 4) and cursor.next_index is None
    desk.takes(4, 5, upto=6, items=2)
    assert not cursor.is_away and not cursor.is_drained and not cursor.may_repeat
    assert cursor.index is None, "its chain is not in the cache"
    assert [one.token for one in cursor.peek(3, 99)] == [Token(1, 4), Token(1, 4, 1), Token(1, 5)]
    assert cursor.lag() == (4, 4.0)
    cursor.unload()
    assert cursor.is_away and desk.cache.chained_events == 0
    cursor.close()
    cursor.close()
    assert cursor.is_drained and len(desk.laggards) == 0
    desk.check()


def test_who_ends_gives_back_its_room_and_its_place_in_the_cache() -> None:
    desk = Desk(Token(1, 4))
    desk.cursor.keeps = True
    desk.comes(message(6))
    desk.takes(4, 5, upto=6)
    assert desk.cache.find_acked() == Token(1, 5) and desk.cache.chained_events == 2
    desk.cursor.close()
    desk.check()
    assert desk.cache.find_acked() == Token(1, 6) and desk.cache.chained_events == 0


def test_who_has_no_room_for_more_asks_for_no_more_before_something_is_done() -> None:
    desk = Desk(Token(1, 2), limits=CacheLimits(stream_events_max=3))
    cursor = desk.cursor
    cursor.unacked_max = 9
    assert cursor.is_away
    desk.takes(2, 3, 4, 5, upto=6, items=2)
    cursor.give(2, 0.0)
    assert not cursor.is_away and cursor.is_full
    cursor.settle(Token(1, 1))
    assert not cursor.is_away, "nothing of it was done"
    cursor.settle(Token(1, 2))
    assert cursor.is_away and not cursor.is_full
    desk.takes(3, upto=4, items=2)
    assert not cursor.is_away and cursor.is_full
    cursor.rewind()
    cursor.unload()
    assert cursor.is_away and not cursor.is_full


def test_who_has_all_asks_for_no_more_unless_it_is_not_known_what_it_lacks() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.unacked_max = 9
    desk.takes(5, upto=6)
    desk.cursor.give(1, 0.0)
    assert not desk.cursor.is_away
    desk.cursor.is_new = True
    assert desk.cursor.is_away


def test_what_a_former_owner_has_delivered_is_said_to_the_next_one() -> None:
    desk = Desk(Token(1, 3))
    assert desk.cursor.entry() == ListedSubscription(*A, "x", Token(1, 3))
    entry = ListedSubscription(*A, "y", Token(1, 3), sent_upto=Token(1, 4))
    assert restored(desk.laggards, entry, Token(1, 5)).entry() == entry


def test_where_it_sends_goes_on_in_the_cache_once_it_has_all() -> None:
    desk = Desk(Token(1, 4))
    cursor = desk.cursor
    cursor.unacked_max = 9
    assert cursor.next_token is None
    cursor.keeps = True
    desk.comes(message(6))
    desk.takes(4, upto=5, items=2)
    cursor.give(1, 0.0)
    assert cursor.next_token == Token(1, 4, 1) and cursor.next_index is None
    cursor.give(1, 0.0)
    assert cursor.next_token is None, "message 5 is lacking"
    desk = Desk(Token(1, 4))
    cursor = desk.cursor
    cursor.unacked_max = 9
    cursor.keeps = True
    desk.takes(4, 5, upto=6)
    cursor.give(2, 0.0)
    assert cursor.next_token is None, "nothing has come"
    desk.comes(message(6, B), message(7))
    assert cursor.next_token == Token(1, 7) and cursor.next_index == 1
    assert cursor.is_lagging and cursor.token == Token(1, 4), "it stands where it did"


def test_where_it_sends_ends_with_the_first_message_of_the_cache_if_nothing_comes_behind() -> None:
    desk = Desk(Token(1, 5))
    desk.cursor.unacked_max = 9
    desk.cursor.keeps = True
    desk.takes(5, upto=6)
    desk.comes(message(6))
    desk.cursor.give(1, 0.0)
    assert desk.cursor.next_index == 0
    desk.cursor.give(1, 0.0)
    assert desk.cursor.next_token is None is desk.cursor.next_index


def test_it_sends_once_what_another_one_has_read_anew_and_it_has_in_the_cache_too() -> None:
    desk = Desk(Token(1, 5))
    other = desk.laggards.begin((A, "y"), Token(1, 5))
    other.is_new = False
    desk.cursor.unacked_max = 9
    desk.cursor.keeps = True
    desk.takes(5, upto=6)
    desk.comes(message(6), message(7))
    other.take([message(5), message(6), message(7)], Token(1, 8))
    desk.check()
    assert desk.has() == [(5, 0), (6, 0), (7, 0)]
    desk.cursor.give(3, 0.0)
    assert desk.cursor.next_token is None
    desk.comes(message(8))
    assert desk.cursor.next_token == Token(1, 8)


def test_what_is_read_anew_was_tried_as_often_as_its_queue_says() -> None:
    desk = Desk(Token(1, 4))
    assert desk.cursor.tried == 0
    desk.cursor.take([QueueMessage(A, Token(1, 4), [b"x"], attempt=3)], Token(1, 5))
    assert desk.cursor.tried == 2
