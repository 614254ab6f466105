"""Single rules of the cache: its room, the share of a stream, and its figures.

The model of `test_cache` does not test these rules, or cannot tell them apart from similar ones.
"""

from __future__ import annotations

import pytest
from tests.streams.agent import caches
from tests.streams.agent.caches import cursor_at, release, slot_at
from tests.streams.agent.cursors import append, fits

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.queue_cache import Notes, QueueCache

A, B, C = StreamId("n", "a"), StreamId("n", "b"), StreamId("n", "c")


def message_of(stream: StreamId, seq: int, *items: bytes) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), items, {}, float(seq))


def cache_with(limits: CacheLimits, *messages: QueueMessage) -> QueueCache:
    """Make a cache in which each of these messages is pinned."""
    return caches.cache_with(*messages, limits=limits, notes="all")


# --- room -----------------------------------------------------------------------------------------


def test_the_last_byte_is_room_and_none_is_left_behind_it() -> None:
    cache = cache_with(CacheLimits(events_max=9, bytes_max=6), message_of(A, 1, b"12345"))
    assert cache.room() == (8, 1) and fits(cache, message_of(A, 2, b"6"))
    assert not fits(cache, message_of(A, 2, b"67"))
    cache.append(message_of(A, 2, b"6"))
    assert cache.room() == (0, 0) and not fits(cache, message_of(A, 3, b"7"))


def test_the_last_event_is_room_and_none_is_left_behind_it() -> None:
    cache = cache_with(CacheLimits(events_max=3, bytes_max=99), message_of(A, 1, b"1", b"2"))
    assert cache.room() == (1, 97) and fits(cache, message_of(A, 2, b"3"))
    assert not fits(cache, message_of(A, 2, b"3", b"4"))
    cache.append(message_of(A, 2, b"3"))
    assert cache.room() == (0, 0)


def test_a_message_without_items_takes_the_room_of_one() -> None:
    cache = cache_with(CacheLimits(events_max=2, bytes_max=9), message_of(A, 1), message_of(A, 2))
    assert cache.events == 2 and not fits(cache, message_of(A, 3))


def test_what_those_hold_who_are_behind_is_taken_from_the_room() -> None:
    cache = cache_with(CacheLimits(events_max=9, bytes_max=90), message_of(A, 1, b"12345"))
    cache.chained_events, cache.chained_bytes = 3, 30
    assert cache.room() == (5, 55)
    assert fits(cache, message_of(A, 2, *[b"x" * 11] * 5))
    assert not fits(cache, message_of(A, 2, *[b"x"] * 6))
    assert not fits(cache, message_of(A, 2, b"x" * 56))
    cache.append(message_of(A, 2, *[b"x" * 11] * 5))
    assert cache.append(message_of(A, 3, b"")) is None and cache.events == 6


# --- the share of a stream ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "of_a", "of_b", "is_crowded"),
    [
        (CacheLimits(events_max=10, stream_events_max=3), 4, 1, True),
        (CacheLimits(events_max=10, stream_events_max=4), 4, 1, False),  # within its share
        (CacheLimits(events_max=11, stream_events_max=3), 4, 1, False),  # less than half full
        (CacheLimits(bytes_max=100, stream_bytes_max=39), 4, 1, True),
        (CacheLimits(bytes_max=100, stream_bytes_max=40), 4, 1, False),
        (CacheLimits(bytes_max=101, stream_bytes_max=39), 4, 1, False),
    ],
)
def test_a_stream_with_more_than_its_share_is_in_the_way_once_the_cache_is_half_full(
    limits: CacheLimits, of_a: int, of_b: int, is_crowded: bool
) -> None:
    ten = b"x" * 10
    cache = cache_with(limits, message_of(A, 1, *[ten] * of_a), message_of(B, 2, *[ten] * of_b))
    assert cache.is_crowded(A) is is_crowded
    assert not cache.is_crowded(B), "its neighbour has less than its share"
    assert not cache.is_crowded(C), "nothing of it is held"


@pytest.mark.parametrize(("chained_events", "chained_bytes"), [(3, 0), (0, 40)])
def test_what_those_hold_who_are_behind_fills_the_cache_for_all(
    chained_events: int, chained_bytes: int
) -> None:
    limits = CacheLimits(events_max=10, bytes_max=100, stream_events_max=1, stream_bytes_max=10)
    cache = cache_with(limits, message_of(A, 1, b"12345", b"12345"))
    assert not cache.is_half_full and not cache.is_crowded(A)
    cache.chained_events, cache.chained_bytes = chained_events - 1, chained_bytes - 1
    assert not cache.is_half_full
    cache.chained_events, cache.chained_bytes = chained_events, chained_bytes
    assert cache.is_half_full and cache.is_crowded(A)


def test_a_streams_share_is_free_again_with_what_has_left() -> None:
    limits = CacheLimits(events_max=10, stream_events_max=3)
    cache = cache_with(limits, message_of(A, 1, b"1", b"2"), message_of(A, 2, b"3", b"4"))
    cache.append(message_of(B, 3, b"5", b"6", b"7"))
    assert cache.is_crowded(A)
    release(cache, 0)
    assert cache.is_half_full and not cache.is_crowded(A)


# --- messages that the cache pins -----------------------------------------------------------------


def test_it_tells_what_it_holds_longest_and_how_much_came_since() -> None:
    cache = QueueCache(CacheLimits(), Token(1, 4))
    assert cache.oldest is None and cache.oldest_s is None and cache.span == 0
    assert cache.base == 0 and cache.newest == Token(1, 4)
    first, second = message_of(A, 7, b"1"), message_of(B, 8, b"2")
    cache.append(first)
    cache.append(second)
    assert cache.oldest is first and cache.oldest_s == 7.0
    assert cache.span == 2 and cache.newest == Token(1, 8)
    release(cache, 0)
    assert cache.oldest is second and cache.span == 1 and cache.base == 1
    release(cache, 1)
    assert cache.oldest is None and cache.span == 0 and cache.newest == Token(1, 8)


def test_it_tells_what_it_holds_of_one_stream() -> None:
    cache = cache_with(
        CacheLimits(), message_of(B, 1, b"1"), message_of(A, 2, b"2"), message_of(A, 3, b"3")
    )
    assert (cache.first_of(A), cache.newest_of(A)) == (1, Token(1, 3))
    assert (cache.first_of(C), cache.newest_of(C)) == (-1, None)
    release(cache, 1)
    assert (cache.first_of(A), cache.newest_of(A)) == (2, Token(1, 3))


def test_of_nothing_that_it_holds_it_is_said_that_a_former_owner_may_have_delivered_it() -> None:
    cache = QueueCache(CacheLimits())
    assert append(cache, message_of(A, 1, b"x")).index > cache.repeats_upto


# --- cursors --------------------------------------------------------------------------------------


def test_a_closed_cursor_is_nowhere_whoever_asks() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1", b"2", b"3"))
    cursor = cursor_at(cache, 0, Token(1, 1, 0))
    assert cursor.token == Token(1, 1, 1) and cursor.index == 0
    cursor.close()
    assert cursor.is_drained and cursor.token is None and cursor.index is None
    assert cursor.lag() == (0, 0.0) and list(cursor.peek(9, 99)) == []
    cursor.advance(0)
    assert cursor.is_drained


def test_what_is_in_the_cache_is_here_and_was_not_delivered_before_for_all_it_knows() -> None:
    cursor = cursor_at(cache_with(CacheLimits(), message_of(A, 1, b"1")), 0)
    assert not cursor.is_away and not cursor.may_repeat


def test_a_cursor_behind_all_of_a_message_is_in_the_next_one() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1", b"2"), message_of(A, 2, b"3", b"4"))
    for after in (Token(1, 1, 1), Token(1, 1, 2**32 - 1)):
        assert cursor_at(cache, 0, after).token == Token(1, 2, 0)
    assert cursor_at(cache, 0, Token(1, 0)).token == Token(1, 1, 0)
    for later in (Token(1, 3, 0), Token(2, 0, 0)):
        assert cursor_at(cache, 1, later).is_drained


# --- acknowledged messages ------------------------------------------------------------------------


def test_what_others_may_have_by_now_is_not_acknowledged_though_it_is_done() -> None:
    cache = cache_with(CacheLimits(), *(message_of(A, seq, b"x") for seq in range(1, 5)))
    release(cache, 0)
    # done, and not taken yet
    cache.disown({Token(1, 1), Token(1, 2), Token(9, 9)})
    release(cache, 1)
    release(cache, 2)
    assert cache.take_done() == [Token(1, 3)]
    release(cache, 3)
    assert cache.take_done() == [Token(1, 4)] and cache.find_acked() == Token(1, 4)


def test_what_was_lost_to_others_and_came_back_is_acknowledged_once_it_is_done_here() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"x"))
    cache.disown({Token(1, 1)})
    release(cache, 0)
    cache.release(append(cache, message_of(A, 1, b"x")))
    assert cache.take_done() == [Token(1, 1)]


def test_what_one_that_was_behind_has_done_is_acknowledged_unless_it_is_held_or_still_to_come() -> (
    None
):
    cache = QueueCache(CacheLimits(), notes="out_of_turn")
    cache.note_passed(message_of(A, 1, b"x"))
    assert cache.take_done() == [], "nothing was read: it comes"
    for seq in (1, 2, 3):
        cache.append(message_of(A, seq, b"x"))
    release(cache, 0)
    for seq in (1, 2, 3, 4):
        cache.note_passed(message_of(A, seq, b"x"))
    assert cache.take_done() == [Token(1, 1)], "2 and 3 are held for another, 4 comes"
    cache.note_passed(message_of(B, 3, b"x"))
    assert cache.take_done() == [Token(1, 3)], "the last that was read, and not held"
    cache.note_passed(message_of(B, 4, b"x"))
    assert cache.take_done() == []


def test_where_all_is_acknowledged_in_a_row_nothing_is_noted() -> None:
    cache = QueueCache(CacheLimits(), Token(1, 9))
    cache.note_passed(message_of(A, 1, b"x"))
    cache.release(append(cache, message_of(A, 10, b"x")))
    assert cache.take_done() == []


# --- released and retried messages ----------------------------------------------------------------


def tried(seq: int, attempt: int) -> QueueMessage:
    return QueueMessage(A, Token(1, seq), [b"x", b"y"], attempt=attempt)


def test_a_message_that_was_tried_before_is_given_by_itself() -> None:
    cache = cache_with(CacheLimits(), tried(1, 1), tried(2, 2), tried(3, 0))
    cursor = cursor_at(cache, 0, Token(1, 1, 0))
    assert [one.token.seq for one in cursor.peek(9, 99)] == [1] and cursor.tried == 0
    cursor.advance(1)
    assert [one.token.seq for one in cursor.peek(9, 99)] == [2, 2, 3, 3] and cursor.tried == 1
    cursor.advance(2)
    assert cursor.tried == 0
    cursor.advance(2)
    assert cursor.tried == 0


def test_messages_that_come_for_the_first_time_are_given_together() -> None:
    cursor = cursor_at(cache_with(CacheLimits(), tried(1, 1), tried(2, 1), tried(3, 0)), 0)
    assert [one.token.seq for one in cursor.peek(9, 99)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_cache_knows_whether_its_queue_takes_messages_back(gives_back: bool) -> None:
    assert QueueCache(CacheLimits(), gives_back=gives_back).gives_back is gives_back


def test_a_cache_knows_whether_a_message_was_tried_before() -> None:
    for attempt, has_tried in ((0, False), (1, False), (2, True)):
        cache = cache_with(CacheLimits(), tried(1, attempt), tried(2, 1))
        assert cache.has_tried is has_tried


def test_a_cursor_tells_whether_its_message_goes_back_when_its_handler_fails() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1"), message_of(A, 2, b"2"))
    cursor = cursor_at(cache, 0)
    assert not cursor.goes_back
    slot_at(cache, 1).goes_back = True
    cursor.advance(1)
    assert cursor.goes_back
    cursor.close()
    assert not cursor.goes_back


def test_a_cursor_leaves_the_rest_of_its_message() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1", b"2", b"3"), message_of(A, 2, b"4"))
    cursor = cursor_at(cache, 0, Token(1, 1, 0))
    cursor.leave()
    assert cursor.token == Token(1, 2) and not cursor.is_drained
    cursor.leave()
    assert cursor.is_drained


def test_a_cursor_tells_in_which_message_a_later_item_is() -> None:
    cache = cache_with(
        CacheLimits(), message_of(A, 1, b"1", b"2"), message_of(B, 2, b"3"), message_of(A, 3, b"4")
    )
    cursor = cursor_at(cache, 0)
    assert [cursor.index_at(count) for count in range(3)] == [0, 0, 2]
    cursor.advance(1)
    assert [cursor.index_at(count) for count in range(2)] == [0, 2]
    with pytest.raises(AssertionError, match="2 items are not here"):
        cursor.index_at(2)


def nobody() -> None:
    """Do nothing: no message that is removed is pinned."""


def test_what_is_cut_off_has_left_and_is_not_done() -> None:
    cache = cache_with(
        CacheLimits(), message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3")
    )
    cache.append(message_of(A, 4, b"4", b"5"))
    release(cache, 2, 3)
    assert cache.cut(A, 3, nobody) == [] and cache.cut(C, -1, nobody) == []
    assert cache.cut(A, 2, nobody) == [Token(1, 4)] and cache.newest_of(A) == Token(1, 3)
    cache.check()
    assert cache.cut(A, 0, nobody) == [Token(1, 3)]
    cache.check()
    assert (cache.events, cache.size_bytes) == (2, 2) and cache.newest_of(A) == Token(1, 1)
    assert cache.take_done() == []
    cursor = cursor_at(cache, 0)
    cache.release(append(cache, message_of(A, 3, b"3")))
    release(cache, 0)
    assert [one.body for one in cursor.peek(9, 99)] == [b"1", b"3"], "it came again"
    cursor.advance(2)
    cache.check()
    assert sorted(cache.take_done()) == [Token(1, 1), Token(1, 3)]


def test_a_stream_that_is_cut_off_as_a_whole_is_not_here() -> None:
    cache = cache_with(CacheLimits(), message_of(B, 1, b"1"), message_of(A, 2, b"2"))
    assert cache.cut(A, -1, lambda: release(cache, 1)) == [Token(1, 2)]
    cache.check()
    assert cache.first_of(A) == -1 and cache.first_of(B) == 0 and cache.take_done() == []


def test_what_is_cut_off_is_let_go_of_and_what_is_before_it_stays() -> None:
    cache = cache_with(CacheLimits(), *(message_of(A, seq, b"x") for seq in (1, 2, 3)))
    first, second = cursor_at(cache, 0), cursor_at(cache, 1)
    release(cache, 0, 1, 2)
    assert cache.cut(A, 0, second.close) == [Token(1, 2), Token(1, 3)]
    cache.check()
    assert [one.body for one in first.peek(9, 99)] == [b"x"] and cache.events == 1
    first.advance(1)
    assert first.is_drained and cache.take_done() == [Token(1, 1)]
    assert cache.find_acked() == Token(1, 3) and cache.purged == 1


def test_what_is_cut_off_and_still_held_is_an_error() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1"), message_of(A, 2, b"2"))
    with pytest.raises(AssertionError, match="is held"):
        cache.cut(A, 0, nobody)


# --- messages that left, and the reason -----------------------------------------------------------


class Behind:
    """A lagging cursor that needs the messages above a number."""

    def __init__(self, done: int) -> None:
        self.done = done

    def came(self, slot: object, /) -> None: ...

    def needs(self, token: Token, /) -> bool:
        return token.seq > self.done


@pytest.mark.parametrize("notes", ["none", "out_of_turn", "all"])
def test_what_leaves_is_purged_or_evicted_or_given_back(notes: Notes) -> None:
    cache = QueueCache(CacheLimits(), notes=notes)
    behind: dict[StreamId, list[Behind]] = {}
    cache.follow(behind)
    for seq, stream in enumerate([A, B, A, B, C, C], start=1):
        cache.append(message_of(stream, seq, b"1", b"2"))
    assert (cache.purged, cache.evicted) == (0, 0), "it is here"
    release(cache, 0)
    assert (cache.purged, cache.evicted) == (2, 0)
    behind[B] = [Behind(2), Behind(3)]
    release(cache, 1, 2, 3)
    assert (cache.purged, cache.evicted) == (6, 2), "message 4 is needed"
    del behind[B]
    cache.cut(C, 4, lambda: release(cache, 5))
    assert (cache.purged, cache.evicted) == (6, 2), "it is given back"
    cache.forget(lambda: release(cache, 4))
    assert (cache.purged, cache.evicted, cache.events) == (6, 2, 0), "so is this"
    cache.release(append(cache, message_of(A, 7)))
    cache.check()
    assert (cache.purged, cache.evicted) == (7, 2), "one without items counts as it does for room"


# --- a cache of ten buckets -----------------------------------------------------------------------


def test_a_cache_of_buckets_is_read_by_one_of_ten_until_all_are_begun() -> None:
    cache = QueueCache(CacheLimits(events_max=25, bytes_max=99, policy="buckets"))
    assert cache.room() == (2, 99), "a tenth"
    cache.append(message_of(A, 1, b"1"))
    for seq in range(2, 19):
        cache.release(append(cache, message_of(B, seq, b"x")))
    assert cache.span == 18 and cache.room() == (2, 98), "one message is held, and nine are begun"
    cache.append(message_of(B, 19, b"x"))
    assert cache.room() == (0, 0)
    release(cache, 0)
    assert cache.room() == (2, 98)


def test_a_bucket_has_no_more_room_than_its_cache() -> None:
    cache = QueueCache(CacheLimits(events_max=20, policy="buckets"))
    cache.append(message_of(A, 1, *[b"x"] * 19))
    assert cache.room()[0] == 1


def test_a_cache_that_fills_has_all_of_its_room() -> None:
    cache = QueueCache(CacheLimits(events_max=20, bytes_max=99))
    assert cache.room() == (20, 99)
    cache.append(message_of(A, 1, b"x"))
    assert cache.room() == (19, 98)


# --- a cursor -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "tried"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_a_cursor_tells_how_often_its_message_was_tried_before(attempt: int, tried: int) -> None:
    message = QueueMessage(A, Token(1, 1), [b"x"], attempt=attempt)
    cursor = cursor_at(cache_with(CacheLimits(), message), 0)
    assert cursor.tried == tried
    cursor.close()
    assert cursor.tried == 0


def test_a_cursor_tells_whether_its_queue_gives_out_its_message_no_more() -> None:
    last = QueueMessage(A, Token(1, 1), [b"x"], is_last=True)
    cursor = cursor_at(cache_with(CacheLimits(), last, message_of(A, 2, b"y")), 0)
    assert cursor.is_last
    cursor.advance(1)
    assert not cursor.is_last and not cursor.is_drained
    cursor.advance(1)
    assert not cursor.is_last


@pytest.mark.parametrize("kept", [None, 0, 1, 2])
def test_messages_go_back_if_each_of_them_does(kept: int | None) -> None:
    messages = [message_of(A, seq, b"x") for seq in (1, 2, 3)]
    cache = cache_with(CacheLimits(), *messages)
    for index in range(3):
        slot_at(cache, index).goes_back = index != kept
    tokens = [one.token for one in messages]
    assert cursor_at(cache, 0).going_back() == (tokens if kept is None else ())


def test_a_cursor_enters_no_messages_that_are_done() -> None:
    cache = cache_with(CacheLimits(), message_of(A, 1, b"1", b"2"), message_of(A, 2, b"3"))
    cursor = cursor_at(cache, 0)
    cursor.close()
    assert not cursor.enter(slot_at(cache, 0), Token(1, 2)) and cursor.is_drained
    assert cursor.enter(slot_at(cache, 0), Token(1, 1, 0)) and cursor.token == Token(1, 1, 1)


# --- streams without subscriptions ----------------------------------------------------------------


@pytest.mark.parametrize("notes", ["none", "out_of_turn", "all"])
def test_a_message_that_nobody_hears_is_done_and_takes_no_room(notes: Notes) -> None:
    cache = QueueCache(CacheLimits(events_max=1), Token(1, 0), notes=notes)
    cache.unheard[B] = 1
    before = cache.moved
    assert not cache.passes_by(message_of(A, 1, b"1"))
    cache.append(message_of(A, 1, b"1"))
    assert cache.passes_by(message_of(B, 2, b"2", b"3")) and cache.passes_by(message_of(B, 3))
    assert (cache.events, cache.newest, cache.find_acked()) == (1, Token(1, 3), Token(1, 0))
    assert (cache.unheard_count, cache.purged, cache.moved) == (2, 3, before + 2)
    assert cache.take_done() == ([] if notes == "none" else [Token(1, 2), Token(1, 3)])
    release(cache, 0)
    assert cache.find_acked() == Token(1, 3)
    cache.append(message_of(A, 4, b"4"))
    assert cache.find_acked() == Token(1, 3)
    cache.check()


def test_a_message_of_another_era_than_the_one_in_which_nobody_heard_its_stream_is_kept() -> None:
    cache = QueueCache(CacheLimits())
    cache.unheard[A] = 1
    assert not cache.passes_by(QueueMessage(A, Token(2, 1), (b"x",)))
