"""Who is behind on a queue, what of it is stored, and what may be acknowledged meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.lagging.behind import BEGINNING, Behind, BehindCursor
from millstream.streams.agent.lagging.book import UNKNOWN, BehindBook
from millstream.streams.ownership.record import BehindAt, Progress

A, B = StreamId("n", "a"), StreamId("n", "b")
X, Y = (A, "x"), (A, "y")


def message(seq: int, stream: StreamId = A, items: int = 1, size: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x" * size] * items)


class Desk:
    """A queue that was done up to message 0, and what came since: A1 (3 items), B2, A3 (2), A4."""

    def __init__(self, limits: CacheLimits | None = None, *, is_used: bool = True) -> None:
        self.cache = QueueCache(limits or CacheLimits(), Token(1, 0), notes="out_of_turn")
        self.book = BehindBook(self.cache, is_used=is_used)

    def fill(self) -> None:
        for one in (message(1, items=3), message(2, B), message(3, items=2), message(4)):
            self.cache.append(one)

    def route(self) -> None:
        """Whoever wants something of it has a cursor."""
        for index in range(4):
            self.cache.unpin(index)

    def park(
        self, key: tuple[StreamId, str] = X, out: int = 0, *, has_chain: bool = False
    ) -> Behind:
        """A subscription with one item done falls behind."""
        cursor = self.cache.open_cursor(A, 0, Token(1, 1, 0))
        found = self.book.park(key, cursor, out, has_chain=has_chain)
        assert cursor.is_drained and isinstance(found, BehindCursor)
        behind = self.book.get(key)
        assert behind is not None
        self.check()
        return behind

    def check(self) -> None:
        self.cache.check()
        self.book.check()


def filled(limits: CacheLimits | None = None) -> Desk:
    desk = Desk(limits)
    desk.fill()
    return desk


def chain_of(behind: Behind) -> list[int]:
    """The messages at hand, by number."""
    return sorted({item.token.seq for item in behind.items(99, 1 << 20)})


def subscriptions(ones: Sequence[Behind]) -> list[str]:
    return [one.key[1] for one in ones]


# --- falling behind -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "at_hand"),
    [(0, []), (1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3]), (5, [1, 3, 4])],
)
def test_who_falls_behind_keeps_the_messages_of_what_is_out_and_no_others(
    out: int, at_hand: list[int]
) -> None:
    desk = filled()
    behind = desk.park(out=out)
    assert chain_of(behind) == at_hand and behind.position == Token(1, 1, 1)
    assert behind.has_all is (at_hand == [1, 3, 4])
    assert behind.following == (Token(1, at_hand[-1] + 1) if at_hand else Token(1, 1))
    assert behind.dropped == (None if behind.has_all else Token(1, 4))
    assert not behind.is_new, "nobody has to look at what the provider keeps"


@pytest.mark.parametrize(
    ("limits", "at_hand"),
    [
        (CacheLimits(), [1, 3, 4]),
        (CacheLimits(stream_events_max=5), [1, 3]),
        (CacheLimits(stream_events_max=4), [1]),
    ],
)
def test_who_falls_behind_with_its_chain_keeps_as_much_of_it_as_there_is_room_for(
    limits: CacheLimits, at_hand: list[int]
) -> None:
    assert chain_of(filled(limits).park(has_chain=True)) == at_hand


def test_the_frontier_passes_an_entry_in_the_record_that_names_it() -> None:
    desk = filled()
    desk.park(out=1)
    desk.route()
    assert desk.book.progress() == Progress(
        Token(1, 4), (BehindAt(*A, "x", Token(1, 1, 1)),), floor=Token(1, 0)
    )
    assert desk.cache.events == 0, "it holds nothing of the cache"


@pytest.mark.parametrize("may_repeat", [True, False])
def test_who_falls_behind_still_says_whether_it_may_be_delivered_again(may_repeat: bool) -> None:
    desk = filled()
    cursor = desk.cache.open_cursor(A, 0)
    parked = desk.book.park(X, cursor, 0, has_chain=False, may_repeat=may_repeat)
    assert desk.book.has_repeats is parked.may_repeat is may_repeat
    desk.book.park_unknown(B, 1, may_repeat=may_repeat)
    parked.close()
    assert desk.book.has_repeats is may_repeat


def test_to_fall_behind_and_to_be_back_are_worth_an_acknowledgement_each() -> None:
    desk = filled()
    begun = desk.cache.moved
    behind = desk.park()
    assert desk.cache.moved == begun + 1
    behind.end()
    assert desk.cache.moved == begun + 2
    behind.end()
    assert desk.cache.moved == begun + 2 and len(desk.book) == 0


def test_nobody_falls_behind_where_the_provider_cannot_be_read_again() -> None:
    book = Desk(is_used=False).book
    assert not book.has_place and not book.is_used
    assert Desk().book.has_place and Desk().book.is_used


# --- beginning elsewhere, and with a new owner ----------------------------------------------------


def test_who_begins_anew_is_behind_once_and_what_it_had_is_let_go_of() -> None:
    desk = filled()
    first = desk.park(has_chain=True)
    assert desk.cache.chained_events == 6
    second = desk.book.begin(X, Token(1, 3))
    assert first.is_over and desk.cache.chained_events == 0
    assert desk.book.get(X) is second and list(desk.book.of(A)) == [second]
    assert (second.position, second.dropped) == (Token(1, 3), Token(1, 4))
    assert second.is_new and second.may_repeat
    first.end()
    assert desk.book.get(X) is second and list(desk.book.of(A)) == [second]
    desk.check()


@pytest.mark.parametrize("is_rewound", [True, False])
@pytest.mark.parametrize("may_repeat", [True, False])
def test_a_new_owner_knows_of_an_entry_what_the_former_one_did(
    is_rewound: bool, may_repeat: bool
) -> None:
    desk = Desk()
    entry = BehindAt(*A, "x", Token(1, 2, 1), is_rewound)
    behind = desk.book.restore(entry, Token(1, 7), may_repeat=may_repeat)
    assert behind.entry() == entry and behind.may_repeat is may_repeat
    assert (behind.dropped, behind.is_new, desk.book.matters) == (Token(1, 7), False, True)


@pytest.mark.parametrize(
    ("position", "frontier", "is_new"),
    [
        (BEGINNING, Token(1, 7), True),  # the oldest that is kept, whichever that is
        (Token(1, 2), None, True),  # nothing is known that it could lack
        (Token(1, 8), Token(1, 7), True),
        (Token(1, 7), Token(1, 7), False),
    ],
)
def test_where_an_entry_begins_is_compared_with_what_is_kept_unless_it_lacks_something(
    position: Token, frontier: Token | None, is_new: bool
) -> None:
    behind = Desk().book.restore(BehindAt(*A, "x", position), frontier, may_repeat=False)
    assert behind.is_new is is_new


# --- a stream whose subscriptions are not known yet ----------------------------------------------


def test_a_stream_of_which_nobody_is_known_is_behind_as_a_whole() -> None:
    desk = filled()
    desk.book.park_unknown(A, 2, may_repeat=False)
    behind = desk.book.get((A, UNKNOWN))
    assert behind is not None and behind.position == Token(1, 3)
    assert (behind.dropped, behind.floor, behind.may_repeat) == (Token(1, 4), Token(1, 2), False)
    assert desk.book.streams() == [A] and not desk.book.has_repeats


def test_who_becomes_known_is_behind_from_where_its_stream_was() -> None:
    desk = filled()
    desk.book.park_unknown(A, 2, may_repeat=True)
    unknown = desk.book.get((A, UNKNOWN))
    assert unknown is not None
    unknown.is_new = True
    for _ in range(2):  # again is harmless
        desk.book.fork(A, "x")
    behind = desk.book.get(X)
    assert behind is not None and subscriptions(desk.book.of(A)) == [UNKNOWN, "x"]
    assert (behind.position, behind.dropped) == (Token(1, 3), Token(1, 4))
    assert behind.floor == Token(1, 2) and behind.may_repeat and behind.is_new
    desk.book.fork(B, "x")
    assert desk.book.of(B) == ()
    desk.check()


def test_once_all_are_known_nobody_else_is_behind() -> None:
    desk = filled()
    desk.book.park_unknown(A, 0, may_repeat=False)
    for name in ("x", "y"):
        desk.book.fork(A, name)
    desk.book.park_unknown(B, 1, may_repeat=False)
    desk.book.keep_only(A, {"y"})
    assert subscriptions(desk.book.of(A)) == ["y"] and len(desk.book) == 2
    desk.book.keep_only(A, ())
    assert desk.book.streams() == [B] and len(desk.book) == 1
    desk.check()


# --- what stays in the cache for them, and the room of their chains -------------------------------


def test_those_of_one_stream_let_go_of_the_cache_or_all_do() -> None:
    desk = Desk()
    for stream in (A, B):
        desk.book.restore(BehindAt(*stream, "x", Token(1, 0)), Token(1, 0), may_repeat=False)
    ones = [*desk.book.of(A), *desk.book.of(B)]
    for one in ones:
        one.keeps = True
    desk.fill()
    desk.route()
    assert all(one.tail is not None for one in ones)
    desk.book.let_go(B)
    assert [one.tail is not None for one in ones] == [True, False]
    desk.book.let_go()
    assert [one.tail is not None for one in ones] == [False, False]
    assert [one.dropped for one in ones] == [Token(1, 4), Token(1, 2)]


@pytest.mark.parametrize(
    ("limits", "message", "has_room"),
    [
        (CacheLimits(stream_events_max=7), message(9, items=2), True),  # 5 + 2
        (CacheLimits(stream_events_max=6), message(9, items=2), False),
        (CacheLimits(stream_bytes_max=14), message(9, size=9), True),  # 5 + 9
        (CacheLimits(stream_bytes_max=13), message(9, size=9), False),
        (CacheLimits(events_max=18), message(9), True),  # all: 5 + 3 + 1, half of the cache
        (CacheLimits(events_max=17), message(9), False),
        (CacheLimits(bytes_max=24), message(9, size=4), True),  # all: 5 + 3 + 4
        (CacheLimits(bytes_max=23), message(9, size=4), False),
    ],
)
def test_a_chain_has_its_share_and_all_chains_have_half_of_the_cache(
    limits: CacheLimits, message: QueueMessage, has_room: bool
) -> None:
    desk = filled(limits)
    first, second = desk.park(X, out=4), desk.book.begin(Y, Token(1, 1))
    assert desk.book.has_room(second, message), "one that is alone always may"
    second.link(QueueMessage(A, Token(1, 1), [b"x"] * 3))
    assert desk.book.has_room(first, message) is has_room
    assert (desk.cache.chained_events, desk.cache.chained_bytes) == (8, 8)
    second.end()
    assert (desk.cache.chained_events, desk.cache.chained_bytes) == (5, 5)


# --- what is done, and what may be acknowledged ---------------------------------------------------


def test_a_queue_of_which_nobody_is_behind_acknowledges_what_is_done() -> None:
    desk = filled()
    assert not desk.book.matters and desk.book.ackable() == Token(1, 0)
    desk.route()
    assert desk.book.ackable() == Token(1, 4)
    assert desk.book.progress() == Progress(Token(1, 4), (), floor=Token(1, 4))


def test_a_message_is_done_when_all_of_its_stream_that_are_behind_have_done_it() -> None:
    desk = filled()
    ones = [desk.park(key, out=99) for key in (X, Y)]
    desk.route()
    desk.cache.purge()
    assert [one.seq for one in desk.cache.take_done()] == [2]  # of B, which nobody wants
    moved = desk.cache.moved
    ones[0].advance(2)
    assert desk.cache.take_done() == [] and desk.cache.moved == moved + 1
    ones[1].advance(1)
    assert desk.cache.take_done() == []
    ones[1].advance(1)
    assert desk.cache.take_done() == [Token(1, 1)] and desk.cache.moved == moved + 2


def test_how_far_all_are_is_the_least_of_them_and_not_known_if_one_is_not() -> None:
    desk = filled()
    ones = [desk.park(key, out=99) for key in (X, Y)]
    desk.route()
    ones[0].advance(4)
    ones[1].advance(2)
    assert desk.book.progress().floor == desk.book.ackable() == Token(1, 1)
    ones[0].advance(1)
    ones[1].advance(3)
    for one in ones:
        assert one.rejoin() is None
    assert desk.book.progress().floor == desk.book.ackable() == Token(1, 4)
    desk.book.begin(X, Token(1, 2))
    assert desk.book.progress().floor is None and desk.book.ackable() is None


def test_where_nothing_was_done_yet_nothing_is_acknowledged_while_somebody_is_behind() -> None:
    desk = Desk()
    desk.cache = QueueCache(CacheLimits())
    desk.book = BehindBook(desk.cache, is_used=True)
    desk.fill()
    desk.park()
    assert desk.book.progress().floor is None and desk.book.ackable() is None


def test_what_the_record_says_bounds_what_is_acknowledged_until_it_names_nobody() -> None:
    desk = filled()
    behind = desk.park(out=99)
    desk.route()
    moved = desk.cache.moved
    desk.book.stored(desk.book.progress())
    assert desk.cache.moved == moved + 1 and desk.book.ackable() == Token(1, 0)
    behind.advance(5)
    assert behind.rejoin() is None
    assert desk.book.matters and desk.book.ackable() == Token(1, 0)
    desk.book.stored(desk.book.progress())
    assert not desk.book.matters and desk.book.ackable() == Token(1, 4)


def test_a_record_whose_floor_is_not_known_bounds_all() -> None:
    desk = filled()
    behind = desk.park(out=99)
    desk.book.stored(Progress(Token(1, 4), (behind.entry(),), floor=None))
    behind.advance(5)
    assert desk.book.ackable() is None
