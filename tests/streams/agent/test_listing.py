"""The subscriptions that a hand-over lists, with their positions and deliveries."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.agent.caches import release
from tests.streams.agent.cursors import add, append, restored

from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, StreamId, Token
from millstream.streams.agent.audience.handover_list import LISTED_MAX, Former, list_unfinished
from millstream.streams.agent.audience.newcomers import Newcomers
from millstream.streams.agent.audience.stream_entry import StreamEntry
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import UNKNOWN, LaggingCursors
from millstream.streams.agent.cache.positions import LAST_INDEX
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.subscriber import Subscriber, upto
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.progress.tracker import ProgressTracker
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.item import Item
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

STREAM, OTHER = StreamId("notes", "a"), StreamId("notes", "b")
NOBODY = Former(QueueProgress(), is_used=False)


def message(seq: int, stream: StreamId = STREAM, items: int = 1) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x"] * items)


class Place:
    """A queue that can be read again, with one stream."""

    def __init__(self) -> None:
        self.cache = QueueCache(CacheLimits(), None)
        self.laggards = LaggingCursors(self.cache, is_used=True)
        self.entry = StreamEntry()

    def has(self, name: str, undone: Token | None = None, sent: Token | None = None) -> Subscriber:
        row = SubscriptionRow(name, "Reader", "r", "_on", False, "next")
        made = Newcomers(DeliveryOptions()).explicit(row, STREAM)
        delivery: Any = SimpleNamespace(cursor=SimpleNamespace(token=undone))
        made.delivery, made.sent_upto = delivery, sent
        self.entry.subscribers[name] = made
        return made

    def listed(self, former: Former = NOBODY) -> list[tuple[str, Token, Token | None]]:
        found = list_unfinished({STREAM: self.entry}, self.laggards, former)
        return [(one.subscription, one.mark, one.sent_upto) for one in found]


def test_those_that_have_not_done_everything_are_listed_with_what_they_were_sent() -> None:
    place = Place()
    place.has("done", sent=Token(1, 5))
    place.has("not sent", Token(1, 6), Token(1, 5))
    place.has("out", Token(1, 6, 2), Token(1, 7))
    assert place.listed() == [
        ("not sent", Token(1, 6), None),
        ("out", Token(1, 6, 2), Token(1, 7)),
    ]


def test_one_that_lags_is_listed_where_it_is_read_anew_and_with_all_that_it_was_sent() -> None:
    place = Place()
    one = ListedSubscription(*STREAM, "slow", Token(1, 5), Token(1, 6))
    cursor = restored(place.laggards, one, Token(1, 9))
    assert place.listed() == [("slow", Token(1, 5), Token(1, 6))], "it is not known yet"
    place.has("slow", sent=Token(1, 7))
    assert place.listed() == [("slow", Token(1, 5), Token(1, 7))]
    cursor.skip_to(Token(1, 8))
    assert place.listed() == [("slow", Token(1, 8), None)]
    cursor.close()
    assert place.listed() == []


def test_all_of_one_that_goes_back_may_have_been_delivered() -> None:
    place = Place()
    add(place.cache, message(9))
    place.laggards.begin((STREAM, "back"), Token(1, 2))
    assert place.listed() == [("back", Token(1, 2), Token(1, 9, LAST_INDEX))]


def test_messages_that_wait_for_their_subscriptions_are_for_each_of_these() -> None:
    place = Place()
    slot = append(place.cache, message(3))
    place.entry.cold = [slot]
    place.has("known", sent=Token(1, 4))  # delivered by a former owner
    place.has("behind", Token(1, 2))
    assert place.listed() == [
        (UNKNOWN, Token(1, 3), None),
        ("known", Token(1, 3), Token(1, 4)),
        ("behind", Token(1, 2), None),
    ]


def test_messages_that_are_being_given_to_very_many_subscriptions_are_for_each_of_these() -> None:
    place = Place()
    place.entry.spread = deque([append(place.cache, message(3))])
    place.has("known")
    place.has("sent", sent=Token(1, 3))
    assert place.listed() == [("known", Token(1, 3), None), ("sent", Token(1, 3), Token(1, 3))]


def test_what_a_former_owner_has_listed_stays_listed_until_it_is_read() -> None:
    """Seed 973 of suite `ledger`: a subscription got a position, and no message was read."""
    ones = (
        ListedSubscription(*STREAM, "early", Token(1, 5), Token(1, 5, 2)),
        ListedSubscription(*OTHER, UNKNOWN, Token(1, 2)),
    )
    former = Former(QueueProgress(Token(1, 9), ones), is_used=True)
    place = Place()
    place.has("early", sent=Token(1, 5, 2))
    expected = [("early", Token(1, 5), Token(1, 5, 2)), (UNKNOWN, Token(1, 2), None)]
    assert place.listed(former) == expected
    add(place.cache, message(6))
    assert place.listed(former) == [("early", Token(1, 7), None), (UNKNOWN, Token(1, 7), None)]
    add(place.cache, message(9))
    assert place.listed(former) == []


def test_a_subscription_begins_where_the_former_owner_has_left_it() -> None:
    ones = (
        ListedSubscription(*STREAM, "slow", Token(1, 5, 1), Token(1, 6)),
        ListedSubscription(*OTHER, UNKNOWN, Token(1, 2)),
    )
    former = Former(QueueProgress(Token(1, 9), ones, Token(1, 1)), is_used=True)
    place = Place()
    slow, fast = place.has("slow"), place.has("fast")
    one_of_other = place.has("any")
    one_of_other.key = (OTHER, "any")
    for one in (slow, fast, one_of_other):
        former.place(one)
    assert (slow.position, slow.sent_upto) == (Token(1, 5, 0), Token(1, 6))
    assert (fast.position, fast.sent_upto) == (Token(1, 9, LAST_INDEX), None)
    assert one_of_other.position == Token(1, 1, LAST_INDEX)
    untouched = place.has("untouched")
    NOBODY.place(untouched)
    assert untouched.position is None


@pytest.mark.parametrize("count", [LISTED_MAX, LISTED_MAX + 1])
def test_with_too_many_to_list_the_next_owner_begins_where_everything_is_done(count: int) -> None:
    place = Place()
    append(place.cache, message(1))
    everyone = tuple(ListedSubscription(*STREAM, str(n), Token(1, 1)) for n in range(count))
    standing = ProgressTracker(
        place.laggards,
        SimpleNamespace(list_unfinished=lambda: everyone),  # type: ignore[arg-type]
        NOBODY,
        Wary(QueueProgress(), is_used=False),
        Losses(),
        stored=QueueProgress(),
        has_positions=True,
        is_sole=True,
    )
    handed = standing.handoff(is_known=True)
    if count > LISTED_MAX:
        assert handed == QueueProgress(None)
    else:
        assert handed == QueueProgress(Token(1, 1), everyone, is_told=True)
        assert standing.handoff(is_known=False) == QueueProgress(Token(1, 1), everyone)


OWNERS = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.booleans(), max_size=24), st.booleans()), max_size=4
)
LEFT = (12, [True] * 99, False)


@given(owners=OWNERS, keys=st.lists(st.sampled_from([STREAM, OTHER]), min_size=12, max_size=12))
def test_each_event_is_handled_once_by_each_subscription_over_any_number_of_owners(
    owners: list[tuple[int, list[bool], bool]], keys: list[StreamId]
) -> None:
    """A queue that cannot be read again: each owner reads some messages, and each subscription
    handles some of them. Then the owner hands over, or crashes right after the record was written.
    """
    log = [message(seq, key, 2) for seq, key in enumerate(keys, 1)]
    handled: dict[str, list[Token]] = defaultdict(list)
    progress = QueueProgress()
    for reads, does, is_crash in [*owners, LEFT]:
        cache = QueueCache(CacheLimits(), progress.floor)
        laggards, former = LaggingCursors(cache, is_used=False), Former(progress, is_used=True)
        entries: dict[StreamId, Any] = {}
        turns = iter(does)
        for one in [m for m in log if not progress.floor or m.token > progress.floor][:reads]:
            entry = entries.setdefault(one.stream, _entry(one.stream, laggards, former))
            slot = append(cache, one)
            for sub in entry.subscribers.values():
                cursor = sub.delivery.cursor
                if cursor.is_drained:
                    cursor.enter(slot, sub.position)
                while not cursor.is_drained and next(turns, False):
                    handled[f"{one.stream.key}/{sub.key[1]}"].append(cursor.token)
                    sub.position = cursor.token
                    cursor.advance(1)
            release(cache, slot.index)
        standing = ProgressTracker(
            laggards,
            SimpleNamespace(
                list_unfinished=lambda a=entries, b=laggards, c=former: list_unfinished(a, b, c)
            ),  # type: ignore[arg-type]
            former,
            Wary(QueueProgress(), is_used=False),
            Losses(),
            stored=progress,
            has_positions=True,
            is_sole=True,
        )
        new = standing.progress() if is_crash else standing.handoff(is_known=True)
        assert new is not None
        progress = new
    for key in (STREAM, OTHER):
        items = [m.token._replace(index=at) for m in log if m.stream == key for at in range(2)]
        for name in ("x", "y") if items else ():
            got = handled[f"{key.key}/{name}"]
            assert sorted(set(got)) == items
            if not any(is_crash for *_, is_crash in owners):
                assert got == items


def _entry(stream: StreamId, laggards: LaggingCursors, former: Former) -> Any:
    subscribers: dict[str, Any] = {}
    for name in ("x", "y"):
        sub: Any = SimpleNamespace(key=(stream, name), sent_upto=None, position=None)
        sub.note_sent = lambda upto: None
        former.place(sub)
        sub.delivery = SimpleNamespace(cursor=Cursor(laggards, sub.key))
        subscribers[name] = sub
    return SimpleNamespace(first_waiting=None, cold=None, subscribers=subscribers)


def test_a_call_holds_what_was_sent_before_or_what_was_not() -> None:
    one = Place().has("one")
    items = [Item(Token(1, 1, index), b"x", None) for index in range(4)]
    assert upto(items, Token(1, 1, 3)) == items
    one.note_sent(Token(1, 1, 1))
    one.note_sent(Token(1, 1, 0))
    one.note_sent(None)
    assert one.sent_upto == Token(1, 1, 1)
    assert upto(items, one.sent_upto) == items[:2] == upto(items[:2], one.sent_upto)
