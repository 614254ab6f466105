"""Messages that were read again: shared by the lagging cursors of a stream, and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.agent.cursors import append, cursor_at, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.ownership.record import ListedSubscription

A, B = StreamId("n", "a"), StreamId("n", "b")


def message(seq: int, stream: StreamId = A, items: int = 1, size: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x" * size] * items)


class Desk:
    """A queue that was read up to message 20, and subscriptions that lag."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.cache = QueueCache(limits or CacheLimits(), Token(1, 20), notes="out_of_turn")
        self.laggards = LaggingCursors(self.cache, is_used=True)

    def lags(self, name: str, start: int, stream: StreamId = A) -> Cursor:
        one = ListedSubscription(*stream, name, Token(1, start))
        return restored(self.laggards, one, Token(1, 20))

    def page(
        self, cursors: Sequence[Cursor], first: int, upto: int, items: int = 1, size: int = 1
    ) -> None:
        """Deliver all messages of A from `first` up to `upto`."""
        messages = [message(seq, A, items, size) for seq in range(first, upto)]
        for cursor in sorted(cursors, key=lambda one: one.following):
            cursor.take(messages, Token(1, upto))
        self.laggards.check()

    def read_held(self) -> int:
        return self.cache.chained_events


def here(cursor: Cursor) -> list[int]:
    return [item.token.seq for item in cursor.peek(99, 1 << 20)]


def test_cursors_of_a_stream_share_what_is_read_again_wherever_each_stands() -> None:
    desk = Desk()
    first, second, third = desk.lags("x", 3), desk.lags("y", 3), desk.lags("z", 5)
    desk.page([third, second, first], 3, 8)
    assert here(first) == here(second) == [3, 4, 5, 6, 7] and here(third) == [5, 6, 7]
    assert desk.read_held() == 5
    first.advance(5)
    third.advance(2)
    assert desk.read_held() == 5 and first.is_away
    second.advance(3)
    assert desk.read_held() == 2, "message 6 is held by the second, and the one behind it"
    second.close()
    assert desk.read_held() == 1 and here(third) == [7]
    desk.laggards.check()


def test_one_that_comes_to_messages_that_others_have_here_need_not_read_them() -> None:
    desk = Desk()
    slow, quick = desk.lags("x", 1), desk.lags("y", 1)
    desk.page([slow, quick], 1, 4)
    quick.advance(3)
    desk.page([quick], 4, 7)
    assert here(slow) == [1, 2, 3, 4, 5, 6] and here(quick) == [4, 5, 6] and desk.read_held() == 6
    late = desk.lags("z", 2)
    late.take((), late.following)
    assert here(late) == [2, 3, 4, 5, 6] and desk.read_held() == 6
    desk.laggards.check()


def test_one_for_which_others_have_read_the_last_message_has_nothing_to_read() -> None:
    desk = Desk(CacheLimits(stream_events_max=6))
    slow, quick = desk.lags("x", 15), desk.lags("y", 15)
    desk.page([slow, quick], 15, 18)
    quick.advance(3)
    desk.page([quick], 18, 21)
    assert here(slow) == [15, 16, 17, 18, 19, 20] and here(quick) == [18, 19, 20]
    slow.advance(6)
    slow.take((), slow.following)
    assert slow.is_drained and desk.read_held() == 3
    desk.laggards.check()


def test_one_that_needs_messages_that_have_left_reads_them_again() -> None:
    desk = Desk()
    first = desk.lags("x", 1)
    desk.page([first], 1, 6)
    first.advance(3)
    late = desk.lags("y", 2)
    late.take((), late.following)
    assert late.is_away and late.following == Token(1, 2), "messages 2 and 3 are not here"
    desk.page([late], 2, 6)
    assert here(late) == [2, 3, 4, 5] and here(first) == [4, 5]


def test_messages_that_are_out_are_kept_however_full_the_cache_is() -> None:
    desk = Desk(CacheLimits(events_max=6, stream_events_max=1))
    slots = [append(desk.cache, message(seq)) for seq in (21, 22, 23, 24)]
    cursor = cursor_at(desk.laggards, slots[0])
    cursor.start_lagging(3, has_chain=True, may_repeat=False)
    assert here(cursor) == [21, 22, 23] and cursor.following == Token(1, 24)
    desk.laggards.check()


def test_the_check_sees_a_cursor_and_a_lane_that_are_wrong() -> None:
    for wrong in ("cursor", "lane"):
        desk = Desk()
        cursor = desk.lags("x", 1)
        desk.page([cursor], 1, 3)
        if wrong == "cursor":
            cursor._item = 9
        else:
            desk.laggards.reread.lanes()[0].events += 1
        with pytest.raises(AssertionError):
            desk.laggards.check()


def test_a_slow_one_that_has_its_share_holds_up_no_quicker_one() -> None:
    desk = Desk(CacheLimits(events_max=100, stream_events_max=3))
    slow, quick = desk.lags("x", 1), desk.lags("y", 1)
    desk.page([slow, quick], 1, 9)
    assert here(slow) == here(quick) == [1, 2, 3] and quick.following == Token(1, 4)
    quick.advance(3)
    desk.page([quick], 4, 9)
    assert here(quick) == [4, 5, 6] and here(slow) == [1, 2, 3] and desk.read_held() == 6
    slow.advance(3)
    slow.take((), slow.following)
    assert here(slow) == [4, 5, 6] and desk.read_held() == 3
    desk.laggards.check()


@pytest.mark.parametrize(
    ("limits", "made", "count"),
    [
        (CacheLimits(stream_events_max=7), {"items": 2}, 3),
        (CacheLimits(stream_events_max=5), {"items": 2}, 2),
        (CacheLimits(stream_bytes_max=14), {"size": 7}, 2),
        (CacheLimits(stream_bytes_max=13), {"size": 7}, 1),
        (CacheLimits(events_max=12), {"items": 2}, 3),  # half of the cache
        (CacheLimits(events_max=11), {"items": 2}, 2),
        (CacheLimits(bytes_max=42), {"size": 7}, 3),
        (CacheLimits(bytes_max=41), {"size": 7}, 2),
        (CacheLimits(stream_events_max=1), {"items": 4}, 1),  # the first message is always taken
        (CacheLimits(stream_bytes_max=1), {"size": 9}, 1),
    ],
)
def test_a_stream_has_its_share_and_all_streams_have_half_of_the_cache(
    limits: CacheLimits, made: dict[str, int], count: int
) -> None:
    desk = Desk(limits)
    cursor = desk.lags("x", 1)
    desk.page([cursor], 1, 9, **made)
    assert sorted(set(here(cursor))) == list(range(1, count + 1))
    assert cursor.following == Token(1, count + 1) and cursor.dropped == Token(1, 20)


def test_each_stream_has_one_message_however_full_the_cache_is() -> None:
    desk = Desk(CacheLimits(events_max=4))
    cursor, other = desk.lags("x", 1), desk.lags("y", 1, B)
    desk.page([cursor], 1, 9)
    other.take([message(seq, B) for seq in (2, 4)], Token(1, 9))
    assert here(cursor) == [1, 2] and here(other) == [2] and desk.read_held() == 3
    desk.laggards.check()


class Place:
    """A cursor, and the model of its messages."""

    def __init__(self, cursor: Cursor, start: int) -> None:
        self.cursor, self.next = cursor, start
        self.got: list[int] = []


MOVES = st.lists(
    st.tuples(st.sampled_from(["page", "done", "close"]), st.integers(0, 5), st.integers(1, 7)),
    max_size=60,
)


@given(
    starts=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    moves=MOVES,
    share=st.integers(1, 6),
    events_max=st.integers(8, 40),
)
def test_each_gets_every_message_of_its_stream_once_in_any_history(
    starts: list[int], moves: list[tuple[str, int, int]], share: int, events_max: int
) -> None:
    desk = Desk(CacheLimits(events_max=events_max, stream_events_max=share))
    places = [Place(desk.lags(f"{n}", start), start) for n, start in enumerate(starts)]
    for _ in range(80):  # finally without faults
        moves = [*moves, ("page", 0, 7), *(("done", n, 9) for n in range(len(places)))]
    for kind, number, count in moves:
        place = places[number % len(places)]
        if kind == "page":
            waiting = [one.cursor for one in places if one.cursor.is_away]
            if waiting:
                first = min(one.following.seq for one in waiting)
                desk.page(waiting, first, min(21, first + count))
        elif kind == "done":
            seqs = here(place.cursor)[:count]
            place.got += seqs
            place.cursor.advance(len(seqs))
        elif len(places) > 1:
            place.cursor.close()
            places.remove(place)
        desk.laggards.check()
    for place in places:
        assert place.got == list(range(place.next, 21)) and place.cursor.is_drained
    assert desk.read_held() == 0 and desk.laggards.reread.lanes() == []
