"""The queue cache: single rules by hand, all together against a list that forgets nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from millstream.runtime.errors import ConfigError
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.limits import CacheLimits
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage, content_bytes
from millstream.streams.contracts.token import Token

A, B = StreamId("n", "a"), StreamId("n", "b")


def message_of(stream: StreamId, seq: int, *items: bytes) -> QueueMessage:
    return QueueMessage(stream, Token(0, seq), items)


def cache_with(*messages: QueueMessage, limits: CacheLimits | None = None) -> QueueCache:
    """A cache with these messages, none of them pinned any more."""
    cache = QueueCache(limits or CacheLimits())
    for message in messages:
        cache.unpin(cache.append(message))
    return cache


def tokens_of(items: Sequence[Item]) -> list[tuple[int, int]]:
    return [(item.token.seq, item.token.index) for item in items]


def test_cursor_gives_items_of_its_stream_in_order() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3", b"4"))
    cursor = cache.open_cursor(A, 0)
    assert [item.body for item in cursor.peek(10, 100)] == [b"1", b"3", b"4"]
    assert tokens_of(cursor.peek(10, 100)) == [(1, 0), (3, 0), (3, 1)]


def test_cursor_carries_headers_of_the_message() -> None:
    cache = QueueCache(CacheLimits())
    at = cache.append(QueueMessage(A, Token(0, 1), [b"x"], {"trace": "7"}, 12.5))
    (item,) = cache.open_cursor(A, at).peek(1, 1)
    assert item.headers == {"trace": "7"}


def test_peek_is_bounded_in_events_and_bytes_but_gives_one_item() -> None:
    cache = cache_with(message_of(A, 1, b"12345", b"12345", b"12345"))
    cursor = cache.open_cursor(A, 0)
    assert len(cursor.peek(2, 100)) == 2
    assert len(cursor.peek(9, 10)) == 2
    assert len(cursor.peek(9, 1)) == 1


def test_cursor_stops_inside_a_message() -> None:
    cache = cache_with(message_of(A, 1, b"1", b"2", b"3"), message_of(A, 2, b"4"))
    cursor = cache.open_cursor(A, 0)
    cursor.advance(2)
    assert tokens_of(cursor.peek(9, 99)) == [(1, 2), (2, 0)]
    assert cache.acked_upto() is None
    cursor.advance(1)
    assert cache.acked_upto() == Token(0, 1)


def test_cursor_sees_what_is_appended_behind_it() -> None:
    cache = cache_with(message_of(A, 1, b"1"))
    cursor = cache.open_cursor(A, 0)
    cache.append(message_of(A, 2, b"2"))
    cursor.advance(1)
    assert not cursor.is_drained
    assert tokens_of(cursor.peek(9, 99)) == [(2, 0)]


def test_drained_cursor_holds_nothing() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"))
    cursor = cache.open_cursor(A, 0)
    cursor.advance(1)
    assert cursor.is_drained and cursor.peek(9, 99) == []
    assert cache.acked_upto() == Token(0, 2)
    assert cache.events == cache.size_bytes == 0


def test_cursor_cannot_pass_the_end() -> None:
    cursor = cache_with(message_of(A, 1, b"1")).open_cursor(A, 0)
    with pytest.raises(AssertionError, match="past the end"):
        cursor.advance(2)


def test_append_pins_the_message_until_it_is_routed() -> None:
    cache = QueueCache(CacheLimits())
    at = cache.append(message_of(A, 1, b"1"))
    cache.unpin(cache.append(message_of(B, 2, b"2")))
    assert cache.acked_upto() is None
    cache.unpin(at)
    assert cache.acked_upto() == Token(0, 2)


def test_unpin_refuses_a_message_that_is_not_pinned() -> None:
    cache = cache_with(message_of(A, 1, b"1"))
    with pytest.raises(AssertionError, match="not pinned"):
        cache.unpin(0)


def test_ack_minimum_is_that_of_the_slowest_cursor() -> None:
    cache = cache_with(*(message_of(A, seq, b"x") for seq in range(1, 6)))
    fast, slow = cache.open_cursor(A, 0), cache.open_cursor(A, 0)
    fast.advance(5)
    slow.advance(2)
    assert cache.acked_upto() == Token(0, 2)
    slow.close()
    assert cache.acked_upto() == Token(0, 5)


def test_ack_minimum_waits_for_a_slow_stream_between_others() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3"))
    on_a, on_b = cache.open_cursor(A, 0), cache.open_cursor(B, 1)
    on_a.advance(2)
    assert cache.acked_upto() == Token(0, 1)
    on_b.advance(1)
    assert cache.acked_upto() == Token(0, 3)


def test_ack_minimum_begins_at_the_position_read_from() -> None:
    cache = QueueCache(CacheLimits(), after=Token(0, 7))
    assert cache.acked_upto() == Token(0, 7)


def test_what_is_done_leaves_whatever_its_neighbours_do() -> None:
    cache = QueueCache(CacheLimits(), notes="out_of_turn")
    for seq in range(1, 9):
        cache.unpin(cache.append(message_of((A, B)[seq % 2], seq, b"x" * 10)))
    on_a, on_b = cache.open_cursor(A, 1), cache.open_cursor(B, 0)
    on_a.advance(4)
    assert cache.acked_upto() is None and (cache.events, cache.size_bytes) == (4, 40)
    assert sorted(token.seq for token in cache.take_done()) == [2, 4, 6, 8]
    on_b.advance(3)
    assert cache.acked_upto() == Token(0, 6)
    on_b.advance(1)
    assert cache.acked_upto() == Token(0, 8) and cache.take_done() == []


def test_what_is_let_go_of_is_not_done() -> None:
    cache = QueueCache(CacheLimits(), notes="all")
    done, held = (cache.append(message_of(A, seq, b"1")) for seq in (1, 2))
    cache.unpin(done)
    cache.forget(lambda: cache.unpin(held))
    assert cache.take_done() == [Token(0, 1)]


def test_message_without_items_is_acknowledged_in_its_place() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(A, 2), message_of(A, 3, b"3"))
    assert cache.open_cursor(A, 1).is_drained
    cursor = cache.open_cursor(A, 0)
    assert tokens_of(cursor.peek(9, 99)) == [(1, 0), (3, 0)]
    cursor.advance(1)
    assert cache.acked_upto() == Token(0, 2)


def test_first_index_begins_behind_what_was_seen() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3", b"4"))
    assert cache.first_index(A, None) == 0
    assert cache.first_index(A, Token(0, 1)) == 2
    assert cache.first_index(A, Token(0, 3)) == 2
    assert cache.first_index(A, Token(0, 3, 1)) is None
    assert cache.first_index(StreamId("n", "c"), None) is None


def test_open_cursor_begins_behind_what_was_seen_inside_a_message() -> None:
    cache = cache_with(message_of(A, 3, b"3", b"4", b"5"))
    assert tokens_of(cache.open_cursor(A, 0, Token(0, 3, 1)).peek(9, 99)) == [(3, 2)]
    assert cache.open_cursor(A, 0, Token(0, 3, 2)).is_drained


def test_open_cursor_begins_behind_what_was_seen_however_many_messages_that_is() -> None:
    cache = cache_with(*(message_of(A, seq, b"1", b"2") for seq in range(1, 6)))
    assert tokens_of(cache.open_cursor(A, 0, Token(0, 4, 0)).peek(2, 99)) == [(4, 1), (5, 0)]
    assert cache.open_cursor(A, 0, Token(0, 5, 1)).is_drained


def test_room_is_nothing_when_one_limit_is_reached() -> None:
    cache = QueueCache(CacheLimits(events_max=2, bytes_max=100))
    cache.append(message_of(A, 1, b"1"))
    assert cache.room() == (1, 99)
    cache.append(message_of(A, 2, b"2"))
    assert cache.room() == (0, 0)


def test_empty_cache_takes_one_message_of_any_size() -> None:
    cache = QueueCache(CacheLimits(events_max=2, bytes_max=10))
    cache.unpin(cache.append(message_of(A, 1, b"x" * 50, b"", b"")))
    assert cache.room() == (0, 0)
    assert not cache.fits(message_of(A, 2, b""))
    cache.purge()
    assert cache.fits(message_of(A, 2, b"x" * 50))


def test_append_refuses_what_does_not_fit() -> None:
    cache = QueueCache(CacheLimits(events_max=1, bytes_max=10))
    cache.append(message_of(A, 1, b"1"))
    with pytest.raises(AssertionError, match="exceeds"):
        cache.append(message_of(A, 2, b"2"))


def test_message_bytes_counts_bodies_and_headers() -> None:
    assert content_bytes([b"123", b"4"], {"ab": "cde"}) == 9
    assert content_bytes([b"1"], {"\u00fc": "\u20ac"}) == 1 + 2 + 3


def test_streams_that_left_leave_nothing_behind() -> None:
    cache = QueueCache(CacheLimits())
    for seq in range(1_000):
        cache.unpin(cache.append(message_of(StreamId("n", str(seq)), seq, b"x")))
        cache.purge()
    assert not cache._lanes and not cache._slots


@pytest.mark.parametrize(("events_max", "bytes_max"), [(0, 1), (1, 0)])
def test_limits_refuse_what_cannot_work(events_max: int, bytes_max: int) -> None:
    with pytest.raises(ConfigError):
        CacheLimits(events_max, bytes_max)


STREAMS = [StreamId("n", name) for name in "abc"]
LIMITS = CacheLimits(events_max=12, bytes_max=60)


@dataclass
class Stored:
    """A message that was ever appended, as the model knows it."""

    message: QueueMessage
    pins: int = 1

    def tokens(self) -> list[Token]:
        era, seq, _ = self.message.token
        return [Token(era, seq, index) for index in range(len(self.message.items))]


@dataclass(eq=False)
class Reader:
    """A cursor beside what the model expects of it: the items that it must still give."""

    cursor: Cursor
    stream: StreamId
    due: list[tuple[Token, bytes]] = field(default_factory=list)


class CacheMachine(RuleBasedStateMachine):
    """The cache against the list of all messages, none ever dropped, all walked every time."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.make_cache()
        self.stored: list[Stored] = []
        self.gone: set[int] = set()  # indices of what has left
        self.done: list[Token] = []
        self.readers: list[Reader] = []

    def make_cache(self) -> QueueCache:
        return QueueCache(LIMITS, notes="out_of_turn")

    def check_fit(self, message: QueueMessage) -> None:
        events = self.events_held() + max(1, len(message.items))
        is_small = (
            events <= 12 and self.bytes_held() + content_bytes(message.items, message.headers) <= 60
        )
        assert self.cache.fits(message) == (not self.held() or is_small)

    def held(self) -> list[Stored]:
        return [one for index, one in enumerate(self.stored) if index not in self.gone]

    def base(self) -> int:
        held = (index for index in range(len(self.stored)) if index not in self.gone)
        return next(held, len(self.stored))

    def events_held(self) -> int:
        return sum(max(1, len(one.message.items)) for one in self.held())

    def bytes_held(self) -> int:
        return sum(content_bytes(one.message.items, one.message.headers) for one in self.held())

    def is_done(self, one: Stored) -> bool:
        due = {token for reader in self.readers for token, _ in reader.due}
        is_awaited = any(
            reader.stream == one.message.stream and token in due
            for reader in self.readers
            for token in one.tokens()
        )
        return one.pins == 0 and not is_awaited

    def purged(self) -> None:
        """Of each stream what is done at its beginning leaves, and each that has no items."""
        held_up: set[StreamId] = set()
        left: set[int] = set()
        for index, one in enumerate(self.stored):
            if index in self.gone:
                continue
            stream = one.message.stream
            if one.message.items and (stream in held_up or not self.is_done(one)):
                held_up.add(stream)
            elif not one.pins:
                left.add(index)
        self.gone |= left

    def items_after(self, stream: StreamId, after: Token | None) -> list[tuple[Token, bytes]]:
        return [
            (token, body)
            for one in self.held()
            if one.message.stream == stream
            for token, body in zip(one.tokens(), one.message.items, strict=True)
            if after is None or token > after
        ]

    @rule(
        stream=st.sampled_from(STREAMS),
        sizes=st.lists(st.integers(0, 12), max_size=4),
        is_routed=st.booleans(),
    )
    def append(self, stream: StreamId, sizes: list[int], is_routed: bool) -> None:
        items = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
        message = message_of(stream, len(self.stored) + 1, *items)
        self.check_fit(message)
        if not self.cache.fits(message):
            return
        assert self.cache.append(message) == len(self.stored)
        self.stored.append(Stored(message))
        for reader in self.readers:
            if reader.stream == stream and not reader.cursor.is_drained:
                reader.due += [(Token(0, len(self.stored), n), b) for n, b in enumerate(items)]
        if is_routed:
            self.unpin_index(len(self.stored) - 1)

    def unpin_index(self, index: int) -> None:
        self.stored[index].pins -= 1
        self.cache.unpin(index)

    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def open_cursor(self, data: st.DataObject, stream: StreamId) -> None:
        of_stream = [t for one in self.stored if one.message.stream == stream for t in one.tokens()]
        after = data.draw(st.sampled_from([None, *of_stream]))
        due = self.items_after(stream, after)
        at = self.cache.first_index(stream, after)
        assert at == (due[0][0].seq - 1 if due else None)
        oldest = self.cache.first_index(stream, None)
        if oldest is None:
            return
        begin = data.draw(st.sampled_from([oldest] if at is None else [oldest, at]))
        cursor = self.cache.open_cursor(stream, begin, after)
        assert cursor.is_drained == (not due)
        if due:
            self.readers.append(Reader(cursor, stream, due))

    @precondition(lambda self: any(one.pins for one in self.stored))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pinned = [index for index, one in enumerate(self.stored) if one.pins]
        self.unpin_index(data.draw(st.sampled_from(pinned)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), max_events=st.integers(1, 6), max_bytes=st.integers(1, 30))
    def deliver(self, data: st.DataObject, max_events: int, max_bytes: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        items = reader.cursor.peek(max_events, max_bytes)
        assert [(item.token, item.body) for item in items] == reader.due[: len(items)]
        assert len(items) >= 1
        total = sum(len(item.body) for item in items)
        assert len(items) <= max_events and (total <= max_bytes or len(items) == 1)
        if len(items) < min(max_events, len(reader.due)):
            assert total + len(reader.due[len(items)][1]) > max_bytes
        done = data.draw(st.integers(0, len(items)))
        reader.cursor.advance(done)
        del reader.due[:done]
        assert reader.cursor.is_drained == (not reader.due)
        if not reader.due:
            self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close_cursor(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.cursor.close()
        reader.cursor.close()

    @rule()
    def purge(self) -> None:
        self.purged()
        self.cache.purge()

    @rule()
    def acknowledge(self) -> None:
        self.purged()
        base = self.base()
        last = self.stored[base - 1].message.token if base else None
        assert self.cache.acked_upto() == last
        self.done += self.cache.take_done()
        tokens = [one.message.token for one in self.stored]
        above = {tokens[index] for index in self.gone if index > base}
        assert len(set(self.done)) == len(self.done) and above <= set(self.done)
        assert {tokens.index(token) for token in self.done} <= self.gone

    @invariant()
    def counts_are_those_of_the_list(self) -> None:
        self.cache.check()
        assert self.cache.base == self.base()
        assert self.cache.left == len(self.gone)
        self.check_counts()

    def check_counts(self) -> None:
        assert self.cache.events == self.events_held()
        assert self.cache.size_bytes == self.bytes_held()

    @invariant()
    def every_undelivered_item_is_still_there(self) -> None:
        for reader in self.readers:
            items = reader.cursor.peek(1_000, 10_000)
            assert [(item.token, item.body) for item in items] == reader.due[: len(items)]
            assert len(items) == len(reader.due)

    @invariant()
    def each_message_counts_the_cursors_that_stand_in_it(self) -> None:
        standing = [reader.cursor.index for reader in self.readers]
        for slot in self.cache._slots.values():
            assert slot.cursors == standing.count(slot.index)


CacheMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40)
test_cache_agrees_with_the_list_model = CacheMachine.TestCase


# --- chains ---------------------------------------------------------------------------------------


def test_a_lag_counts_what_is_left_and_tells_when_the_first_of_it_came() -> None:
    first, second = (
        QueueMessage(A, Token(0, seq), items, {}, float(seq))
        for seq, items in ((4, [b"1", b"2", b"3"]), (9, [b"4"]))
    )
    cache = cache_with()
    at = cache.append(first)
    cursor = cache.open_cursor(A, at, Token(0, 4, 0))
    assert cursor.lag() == (2, 4.0)
    cache.append(second)
    assert cursor.lag() == (3, 4.0)
    cursor.advance(2)
    assert cursor.lag() == (1, 9.0)
    cursor.advance(1)
    assert cursor.lag() == (0, 0.0)


@pytest.mark.parametrize(
    ("max_bytes", "count"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (8, 3), (9, 4), (99, 4)]
)
def test_the_room_of_a_peek_is_shared_by_the_messages_of_a_chain(
    max_bytes: int, count: int
) -> None:
    """Two items of two bytes, then one of two bytes and one of three."""
    cache = cache_with(
        message_of(A, 1, b"aa", b"bb"), message_of(B, 2, b"other"), message_of(A, 3, b"cc", b"ddd")
    )
    cursor = cache.open_cursor(A, 0)
    assert len(cursor.peek(10, max_bytes)) == count
    assert len(cursor.peek(1, max_bytes)) == 1
    assert len(cursor.peek(3, 99)) == 3


def test_headers_count_for_every_item_of_a_peek() -> None:
    cache = QueueCache(CacheLimits())
    at = cache.append(QueueMessage(A, Token(0, 1), [b"aa", b"bb"], {"x": "y"}))
    cache.append(QueueMessage(A, Token(0, 2), [b"cc"], {"x": "y"}))
    cursor = cache.open_cursor(A, at)
    for max_bytes, count in ((4, 1), (7, 1), (8, 2), (11, 2), (12, 3)):
        assert len(cursor.peek(9, max_bytes)) == count
    later = cache.open_cursor(A, at, Token(0, 1, 0))
    assert [len(later.peek(9, room)) for room in (7, 8)] == [1, 2]
