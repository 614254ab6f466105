"""The lagging subscriptions of a queue, their stored entries, and the limit of acknowledging."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.streams.agent.cursors import append, at_hand, cursor_at, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import UNKNOWN, LaggingCursors
from millstream.streams.agent.cache.positions import BEGINNING
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

A, B = StreamId("n", "a"), StreamId("n", "b")
X, Y = (A, "x"), (A, "y")


def message(seq: int, stream: StreamId = A, items: int = 1, size: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x" * size] * items)


class Desk:
    """A queue that is done up to message 0, with new messages: A1 (3 items), B2, A3 (2), A4."""

    def __init__(self, limits: CacheLimits | None = None, *, is_used: bool = True) -> None:
        self.cache = QueueCache(limits or CacheLimits(), Token(1, 0), notes="out_of_turn")
        self.laggards = LaggingCursors(self.cache, is_used=is_used)

    def fill(self) -> None:
        messages = (message(1, items=3), message(2, B), message(3, items=2), message(4))
        self.slots = [append(self.cache, one) for one in messages]

    def route(self) -> None:
        """Route all messages: each interested subscription has a cursor."""
        for slot in self.slots:
            self.cache.release(slot)

    def park(
        self, key: tuple[StreamId, str] = X, out: int = 0, *, has_chain: bool = False
    ) -> Cursor:
        """Let a subscription with one acknowledged item lag."""
        cursor = cursor_at(self.laggards, self.slots[0], Token(1, 1, 0), subscription=key[1])
        cursor.start_lagging(out, has_chain=has_chain, may_repeat=False)
        assert self.laggards.get(key) is cursor and cursor.index is None
        self.check()
        return cursor

    def check(self) -> None:
        self.cache.check()
        self.laggards.check()


def filled(limits: CacheLimits | None = None) -> Desk:
    desk = Desk(limits)
    desk.fill()
    return desk


def subscriptions(ones: Sequence[Cursor]) -> list[str]:
    return [one.key[1] for one in ones]


# --- beginning to lag -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "kept"),
    [(0, []), (1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3]), (5, [1, 3, 4])],
)
def test_who_falls_behind_keeps_the_messages_of_what_is_out_and_no_others(
    out: int, kept: list[int]
) -> None:
    desk = filled()
    behind = desk.park(out=out)
    assert at_hand(behind) == kept and behind.position == Token(1, 1, 1)
    assert behind.has_all is (kept == [1, 3, 4])
    assert behind.following == (Token(1, kept[-1] + 1) if kept else Token(1, 1))
    assert behind.dropped == (None if behind.has_all else Token(1, 4))
    assert not behind.is_new, "nobody has to look at what the provider keeps"


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (CacheLimits(), [1, 3, 4]),
        (CacheLimits(stream_events_max=5), [1, 3]),
        (CacheLimits(stream_events_max=4), [1]),
    ],
)
def test_who_falls_behind_with_its_chain_keeps_as_much_of_it_as_there_is_room_for(
    limits: CacheLimits, kept: list[int]
) -> None:
    assert at_hand(filled(limits).park(has_chain=True)) == kept


def test_the_frontier_passes_an_entry_in_the_record_that_names_it() -> None:
    desk = filled()
    desk.park(out=1)
    desk.route()
    assert desk.laggards.progress() == QueueProgress(
        Token(1, 4), (ListedSubscription(*A, "x", Token(1, 1, 1)),), floor=Token(1, 0)
    )
    assert desk.cache.events == 0, "it holds nothing of the cache"


@pytest.mark.parametrize("may_repeat", [True, False])
def test_who_falls_behind_still_says_whether_it_may_be_delivered_again(may_repeat: bool) -> None:
    desk = filled()
    cursor = cursor_at(desk.laggards, desk.slots[0])
    cursor.start_lagging(0, has_chain=False, may_repeat=may_repeat)
    desk.laggards.park_unknown(B, desk.slots[1], may_repeat=may_repeat)
    assert [one.may_repeat for one in desk.laggards.cursors()] == [may_repeat, may_repeat]


def test_to_fall_behind_and_to_be_back_are_worth_an_acknowledgement_each() -> None:
    desk = filled()
    begun = desk.cache.moved
    behind = desk.park()
    assert desk.cache.moved == begun + 1
    behind.close()
    assert desk.cache.moved == begun + 2
    behind.close()
    assert desk.cache.moved == begun + 2 and len(desk.laggards) == 0


def test_nobody_falls_behind_where_the_provider_cannot_be_read_again() -> None:
    laggards = Desk(is_used=False).laggards
    assert not laggards.has_place and not laggards.is_used
    assert Desk().laggards.has_place and Desk().laggards.is_used


# --- starting elsewhere, and with a new owner -----------------------------------------------------


def test_who_begins_anew_is_behind_once_and_what_it_had_is_let_go_of() -> None:
    desk = filled()
    first = desk.park(has_chain=True)
    assert desk.cache.chained_events == 6
    second = desk.laggards.begin(X, Token(1, 3))
    assert not first.is_lagging and desk.cache.chained_events == 0
    assert desk.laggards.get(X) is second and list(desk.laggards.of(A)) == [second]
    assert (second.position, second.dropped) == (Token(1, 3), Token(1, 4))
    assert second.is_new and second.may_repeat
    first.close()
    assert desk.laggards.get(X) is second and list(desk.laggards.of(A)) == [second]
    desk.check()


@pytest.mark.parametrize("is_rewound", [True, False])
@pytest.mark.parametrize("may_repeat", [True, False])
def test_a_new_owner_knows_of_an_entry_what_the_former_one_did(
    is_rewound: bool, may_repeat: bool
) -> None:
    desk = Desk()
    entry = ListedSubscription(*A, "x", Token(1, 2, 1), is_rewound=is_rewound)
    behind = restored(desk.laggards, entry, Token(1, 7), may_repeat=may_repeat)
    assert behind.entry() == entry and behind.may_repeat is may_repeat
    assert (behind.dropped, behind.is_new, desk.laggards.matters) == (Token(1, 7), False, True)


@pytest.mark.parametrize(
    ("position", "frontier", "is_new"),
    [
        (BEGINNING, Token(1, 7), True),  # the oldest kept message
        (Token(1, 2), None, True),  # no message is known that it could lack
        (Token(1, 8), Token(1, 7), True),
        (Token(1, 7), Token(1, 7), False),
    ],
)
def test_where_an_entry_begins_is_compared_with_what_is_kept_unless_it_lacks_something(
    position: Token, frontier: Token | None, is_new: bool
) -> None:
    behind = restored(Desk().laggards, ListedSubscription(*A, "x", position), frontier)
    assert behind.is_new is is_new


# --- a stream whose subscriptions are not known yet ----------------------------------------------


def test_a_stream_of_which_nobody_is_known_is_behind_as_a_whole() -> None:
    desk = filled()
    desk.laggards.park_unknown(A, desk.slots[2], may_repeat=False)
    behind = desk.laggards.get((A, UNKNOWN))
    assert behind is not None and behind.position == Token(1, 3)
    assert (behind.dropped, behind.floor, behind.may_repeat) == (Token(1, 4), Token(1, 2), False)
    assert desk.laggards.streams() == [A]


def test_who_becomes_known_is_behind_from_where_its_stream_was() -> None:
    desk = filled()
    desk.laggards.park_unknown(A, desk.slots[2], may_repeat=True)
    unknown = desk.laggards.get((A, UNKNOWN))
    assert unknown is not None
    unknown.is_new = True
    for _ in range(2):  # a repeated call is harmless
        desk.laggards.fork(A, "x")
    behind = desk.laggards.get(X)
    assert behind is not None and subscriptions(desk.laggards.of(A)) == [UNKNOWN, "x"]
    assert (behind.position, behind.dropped) == (Token(1, 3), Token(1, 4))
    assert behind.floor == Token(1, 2) and behind.may_repeat and behind.is_new
    desk.laggards.fork(B, "x")
    assert desk.laggards.of(B) == ()
    desk.check()


def test_once_all_are_known_nobody_else_is_behind() -> None:
    desk = filled()
    desk.laggards.park_unknown(A, desk.slots[0], may_repeat=False)
    for name in ("x", "y"):
        desk.laggards.fork(A, name)
    desk.laggards.park_unknown(B, desk.slots[1], may_repeat=False)
    desk.laggards.keep_only(A, {"y"})
    assert subscriptions(desk.laggards.of(A)) == ["y"] and len(desk.laggards) == 2
    desk.laggards.keep_only(A, ())
    assert desk.laggards.streams() == [B] and len(desk.laggards) == 1
    desk.check()


# --- messages that the cache keeps for lagging cursors --------------------------------------------


def test_those_of_one_stream_let_go_of_the_cache_or_all_do() -> None:
    desk = Desk()
    for stream in (A, B):
        restored(desk.laggards, ListedSubscription(*stream, "x", Token(1, 0)), Token(1, 0))
    ones = [*desk.laggards.of(A), *desk.laggards.of(B)]
    for one in ones:
        one.keeps = True
    desk.fill()
    desk.route()
    assert all(one.tail is not None for one in ones)
    desk.laggards.let_go(B)
    assert [one.tail is not None for one in ones] == [True, False]
    desk.laggards.let_go()
    assert [one.tail is not None for one in ones] == [False, False]
    assert [one.dropped for one in ones] == [Token(1, 4), Token(1, 2)]


# --- messages that are done, and the limit of acknowledging ---------------------------------------


def test_a_queue_of_which_nobody_is_behind_acknowledges_what_is_done() -> None:
    desk = filled()
    assert not desk.laggards.matters and desk.laggards.ackable() == Token(1, 0)
    desk.route()
    assert desk.laggards.ackable() == Token(1, 4)
    assert desk.laggards.progress() == QueueProgress(Token(1, 4), (), floor=Token(1, 4))


def test_a_message_is_done_when_all_of_its_stream_that_are_behind_have_done_it() -> None:
    desk = filled()
    ones = [desk.park(key, out=99) for key in (X, Y)]
    desk.route()
    assert [one.seq for one in desk.cache.take_done()] == [2]  # of B, which has no subscription
    moved = desk.cache.moved
    ones[0].advance(2)
    assert desk.cache.take_done() == []
    ones[1].advance(1)
    assert desk.cache.take_done() == [] and desk.cache.moved == moved
    ones[1].advance(1)
    assert desk.cache.take_done() == [Token(1, 1)] and desk.cache.moved == moved + 1


def test_how_far_all_are_is_the_least_of_them_and_not_known_if_one_is_not() -> None:
    desk = filled()
    ones = [desk.park(key, out=99) for key in (X, Y)]
    desk.route()
    ones[0].advance(4)
    ones[1].advance(2)
    assert desk.laggards.progress().floor == desk.laggards.ackable() == Token(1, 1)
    ones[0].advance(1)
    ones[1].advance(3)
    assert all(one.is_drained for one in ones)
    assert desk.laggards.progress().floor == desk.laggards.ackable() == Token(1, 4)
    desk.laggards.begin(X, Token(1, 2))
    assert desk.laggards.progress().floor is None and desk.laggards.ackable() is None


def test_where_nothing_was_done_yet_nothing_is_acknowledged_while_somebody_is_behind() -> None:
    desk = Desk()
    desk.cache = QueueCache(CacheLimits())
    desk.laggards = LaggingCursors(desk.cache, is_used=True)
    desk.fill()
    desk.park()
    assert desk.laggards.progress().floor is None and desk.laggards.ackable() is None


def test_what_the_record_says_bounds_what_is_acknowledged_until_it_names_nobody() -> None:
    desk = filled()
    behind = desk.park(out=99)
    desk.route()
    moved = desk.cache.moved
    desk.laggards.on_stored(desk.laggards.progress())
    assert desk.cache.moved == moved + 1 and desk.laggards.ackable() == Token(1, 0)
    behind.advance(5)
    assert behind.is_drained
    assert desk.laggards.matters and desk.laggards.ackable() == Token(1, 0)
    desk.laggards.on_stored(desk.laggards.progress())
    assert not desk.laggards.matters and desk.laggards.ackable() == Token(1, 4)


def test_a_record_whose_floor_is_not_known_bounds_all() -> None:
    desk = filled()
    behind = desk.park(out=99)
    desk.laggards.on_stored(QueueProgress(Token(1, 4), (behind.entry(),), floor=None))
    behind.advance(5)
    assert desk.laggards.ackable() is None
