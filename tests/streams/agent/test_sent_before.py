"""What was delivered and comes again over a hand-over: told for each subscription, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.streams.agent.cursors import add

from millstream.streams import DeliveryOptions, StreamId, Token
from millstream.streams.agent.audience.newcomers import Newcomers
from millstream.streams.agent.audience.sent_before import SENT_MAX, SentBefore
from millstream.streams.agent.audience.stream_entry import StreamEntry
from millstream.streams.agent.cache.lagging import UNKNOWN, Laggards
from millstream.streams.agent.cache.limits import CacheLimits
from millstream.streams.agent.cache.positions import LAST_INDEX
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.subscriber import Subscriber, upto
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.ownership.record import (
    BehindAt,
    Handoff,
    Progress,
    QueueRecord,
    QueueState,
    SentAt,
    handed_over,
)

STREAM = StreamId("notes", "a")
FAR = Token(9, 9)


class Place:
    def __init__(self) -> None:
        self.cache = QueueCache(CacheLimits(), None)
        self.behind = Laggards(self.cache, is_used=True)
        self.entry = StreamEntry()

    def has(self, name: str, undone: Token | None, sent: Token | None) -> Subscriber:
        row = SubscriptionRow(name, "Reader", "r", "_on", False, "next")
        made = Newcomers(DeliveryOptions()).explicit(row, STREAM)
        delivery: Any = None if undone is None else SimpleNamespace(undone_token=undone)
        made.delivery, made.sent_upto = delivery, sent
        self.entry.subscribers[name] = made
        return made

    def told(
        self,
        *before: SentAt,
        frontier: Token | None = None,
        newest: Token | None = FAR,
    ) -> list[tuple[str, Token]] | None:
        found = SentBefore(before).told([self.entry], self.behind, frontier, newest)
        return None if found is None else [(one.subscription, one.upto) for one in found]


def test_what_a_former_owner_sent_and_this_one_has_not_read_is_told() -> None:
    """Seed 973 of suite `ledger`: a subscription took what it was told, and nothing was read."""
    place = Place()
    place.has("early", None, Token(1, 5, 2))
    assert place.told(newest=None) == [("early", Token(1, 5, 2))]
    assert place.told(newest=Token(1, 4)) == [("early", Token(1, 5, 2))]
    assert place.told(newest=Token(1, 5)) == []  # it was read, and is done


@pytest.mark.parametrize(
    ("sent", "told"), [(Token(1, 9, 2), True), (Token(1, 9), True), (Token(1, 8, 7), False)]
)
def test_to_one_that_is_behind_what_was_not_read_anew_comes_again(sent: Token, told: bool) -> None:
    """Seed 973 of suite `ledger`: the queue went on before it was read anew for it."""
    place = Place()
    place.behind.restore(BehindAt(*STREAM, "alone", Token(1, 9)), Token(1, 9), may_repeat=False)
    place.has("alone", None, sent)
    found = place.told(newest=Token(2, 0)) or []
    assert (("alone", sent) in found) is told


def test_what_was_sent_and_is_not_done_is_told_and_what_is_done_or_was_not_sent_is_not() -> None:
    place = Place()
    place.has("done", None, Token(1, 5))
    place.has("not sent", Token(1, 6), Token(1, 5))
    assert place.told() == []
    place.has("out", Token(1, 6), Token(1, 7))
    assert place.told() == [("out", Token(1, 7))]


def test_what_one_has_not_done_comes_again_to_all_that_are_not_behind() -> None:
    place = Place()
    place.has("slow", Token(1, 6, 2), Token(1, 6, 1))
    place.has("fast", None, Token(1, 9))
    place.has("alone", Token(1, 9), Token(1, 8))
    place.has("before", None, Token(1, 5))
    place.behind.restore(BehindAt(*STREAM, "alone", Token(1, 9)), Token(1, 9), may_repeat=False)
    assert place.told() == [("slow", Token(1, 6, 1)), ("fast", Token(1, 9))]


def test_what_nobody_has_taken_is_told_again_until_the_frontier_is_past_it() -> None:
    left = SentAt(*STREAM, "one", Token(1, 5))
    before = SentBefore([left])
    behind = Place().behind
    assert before.left(None, behind) == [left] == before.left(Token(1, 4), behind)
    assert before.left(Token(1, 5), behind) == []
    assert before.take((STREAM, "one")) == Token(1, 5)
    assert before.take((STREAM, "one")) is None and before.left(None, behind) == []
    assert Place().told(left, frontier=Token(1, 4)) == [("one", Token(1, 5))]


@pytest.mark.parametrize("who", ["one", UNKNOWN])
def test_what_nobody_has_taken_is_told_while_it_is_behind_the_frontier(who: str) -> None:
    place, left = Place(), SentAt(*STREAM, "one", Token(1, 5))
    place.behind.restore(BehindAt(*STREAM, who, Token(1, 5)), Token(1, 9), may_repeat=False)
    assert place.told(left, frontier=Token(1, 9)) == [("one", Token(1, 5))]
    place.behind.get((STREAM, who)).close()  # type: ignore[union-attr]
    assert place.told(left, frontier=Token(1, 9)) == []


def test_all_of_one_that_goes_back_may_have_been_delivered() -> None:
    place = Place()
    add(place.cache, QueueMessage(STREAM, Token(1, 9), [b"x"]))
    place.behind.begin((STREAM, "back"), Token(1, 2))
    assert place.told() == [("back", Token(1, 9, LAST_INDEX))]


@pytest.mark.parametrize("why", ["who hears is not known", "too many"])
def test_it_is_told_that_it_is_not_known(why: str) -> None:
    place = Place()
    if why == "too many":
        for number in range(SENT_MAX + 1):
            place.has(f"{number}", Token(1, 1), Token(1, 2))
    else:
        entry = BehindAt(*STREAM, UNKNOWN, Token(1, 1))
        place.behind.restore(entry, Token(1, 9), may_repeat=True)
    assert place.told() is None


def test_it_is_not_known_where_the_provider_was_not_told_what_is_done() -> None:
    freed = QueueRecord("", 3, QueueState.FREE, handoff=Handoff(clean=False, in_flight=1))
    assert freed.progress.sent is None
    for is_acked in (True, False):
        new = handed_over(freed, Progress(sent=()), is_acked=is_acked)
        assert new.progress.sent == (() if is_acked else None)


def test_a_call_holds_what_was_sent_before_or_what_was_not() -> None:
    one = Place().has("one", None, None)
    items = [Item(Token(1, 1, index), b"x", None) for index in range(4)]
    assert upto(items, Token(1, 1, 3)) == items
    one.note_sent(Token(1, 1, 1))
    one.note_sent(Token(1, 1, 0))
    one.note_sent(None)
    assert one.sent_upto == Token(1, 1, 1)
    assert upto(items, one.sent_upto) == items[:2] == upto(items[:2], one.sent_upto)


def test_one_that_may_have_been_sent_a_backlog_and_was_sent_less_of_it_here_is_told_once() -> None:
    """Seed 4 of suite `streams`: two hand-overs while a subscription lagged; the lower one won."""
    place = Place()
    place.cache.append(QueueMessage(STREAM, Token(1, 20), (b"x",)))
    behind = BehindAt(*STREAM, "slow", Token(1, 5))
    place.behind.restore(behind, Token(1, 20), may_repeat=True)
    place.has("slow", Token(1, 5), Token(1, 5, 2))
    upto = Token(1, 20, LAST_INDEX)
    assert place.told() == [("slow", upto)]
    twice = [SentAt(*STREAM, "slow", upto), SentAt(*STREAM, "slow", Token(1, 5, 2))]
    assert SentBefore(twice).take((STREAM, "slow")) == upto
