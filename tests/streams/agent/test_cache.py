"""The queue cache: single rules, and a random test against a list of all messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples
from tests.streams.agent.caches import cache_with, cursor_at, release, release_all
from tests.streams.agent.cursors import append, fits

from millstream.runtime import ConfigError
from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import Notes, QueueCache
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import content_bytes

A, B = StreamId("n", "a"), StreamId("n", "b")


def message_of(stream: StreamId, seq: int, *items: bytes) -> QueueMessage:
    return QueueMessage(stream, Token(0, seq), items)


def tokens_of(items: Sequence[Item]) -> list[tuple[int, int]]:
    return [(item.token.seq, item.token.index) for item in items]


def test_cursor_gives_items_of_its_stream_in_order() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3", b"4"))
    cursor = cursor_at(cache, 0)
    assert [item.body for item in cursor.peek(10, 100)] == [b"1", b"3", b"4"]
    assert tokens_of(cursor.peek(10, 100)) == [(1, 0), (3, 0), (3, 1)]


def test_cursor_carries_headers_of_the_message() -> None:
    cache = cache_with(QueueMessage(A, Token(0, 1), [b"x"], {"trace": "7"}, 12.5))
    (item,) = cursor_at(cache, 0).peek(1, 1)
    assert item.headers == {"trace": "7"}


def test_peek_is_bounded_in_events_and_bytes_but_gives_one_item() -> None:
    cursor = cursor_at(cache_with(message_of(A, 1, b"12345", b"12345", b"12345")), 0)
    assert len(cursor.peek(2, 100)) == 2
    assert len(cursor.peek(9, 10)) == 2
    assert len(cursor.peek(9, 1)) == 1


def test_cursor_stops_inside_a_message() -> None:
    cache = cache_with(message_of(A, 1, b"1", b"2", b"3"), message_of(A, 2, b"4"))
    cursor = cursor_at(cache, 0)
    release_all(cache)
    cursor.advance(2)
    assert tokens_of(cursor.peek(9, 99)) == [(1, 2), (2, 0)]
    assert cache.find_acked() is None
    cursor.advance(1)
    assert cache.find_acked() == Token(0, 1)


def test_cursor_sees_what_is_appended_behind_it() -> None:
    cache = cache_with(message_of(A, 1, b"1"))
    cursor = cursor_at(cache, 0)
    cache.append(message_of(A, 2, b"2"))
    cursor.advance(1)
    assert not cursor.is_drained
    assert tokens_of(cursor.peek(9, 99)) == [(2, 0)]


def test_drained_cursor_holds_nothing_and_goes_on_with_what_comes() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"))
    cursor = cursor_at(cache, 0)
    release_all(cache)
    cursor.advance(1)
    assert cursor.is_drained and list(cursor.peek(9, 99)) == []
    assert cache.find_acked() == Token(0, 2)
    assert cache.events == cache.size_bytes == 0
    slot = append(cache, message_of(A, 3, b"3"))
    cursor.enter(slot)
    cache.release(slot)
    assert tokens_of(cursor.peek(9, 99)) == [(3, 0)] and cache.events == 1
    cursor.advance(1)
    assert cursor.is_drained and cache.find_acked() == Token(0, 3)


def test_cursor_cannot_pass_the_end() -> None:
    cursor = cursor_at(cache_with(message_of(A, 1, b"1")), 0)
    with pytest.raises(AssertionError, match="past the end"):
        cursor.advance(2)


def test_append_holds_the_message_until_it_is_routed() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"))
    release(cache, 1)
    assert cache.find_acked() is None
    release(cache, 0)
    assert cache.find_acked() == Token(0, 2)


def test_release_refuses_a_message_that_is_not_held() -> None:
    cache = QueueCache(CacheLimits())
    slot = append(cache, message_of(A, 1, b"1"))
    cache.release(slot)
    with pytest.raises(AssertionError, match="message 0 is not held"):
        cache.release(slot)


def test_ack_minimum_is_that_of_the_slowest_cursor() -> None:
    cache = cache_with(*(message_of(A, seq, b"x") for seq in range(1, 6)))
    fast, slow = cursor_at(cache, 0), cursor_at(cache, 0)
    release_all(cache)
    fast.advance(5)
    slow.advance(2)
    assert cache.find_acked() == Token(0, 2)
    slow.close()
    assert cache.find_acked() == Token(0, 5)


def test_ack_minimum_waits_for_a_slow_stream_between_others() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3"))
    on_a, on_b = cursor_at(cache, 0), cursor_at(cache, 1)
    release_all(cache)
    on_a.advance(2)
    assert cache.find_acked() == Token(0, 1)
    on_b.advance(1)
    assert cache.find_acked() == Token(0, 3)


def test_ack_minimum_begins_at_the_position_read_from() -> None:
    cache = QueueCache(CacheLimits(), after=Token(0, 7))
    assert cache.find_acked() == Token(0, 7)


def test_what_is_done_leaves_whatever_its_neighbours_do() -> None:
    messages = (message_of((A, B)[seq % 2], seq, b"x" * 10) for seq in range(1, 9))
    cache = cache_with(*messages, notes="out_of_turn")
    on_a, on_b = cursor_at(cache, 1), cursor_at(cache, 0)
    release_all(cache)
    on_a.advance(4)
    assert cache.find_acked() is None and (cache.events, cache.size_bytes) == (4, 40)
    assert cache.take_done() == [Token(0, seq) for seq in (2, 4, 6, 8)]
    on_b.advance(3)
    assert cache.find_acked() == Token(0, 6)
    on_b.advance(1)
    assert cache.find_acked() == Token(0, 8) and cache.take_done() == []


def test_what_is_let_go_of_is_not_done() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(A, 2, b"1"), notes="all")
    release(cache, 0)
    cache.forget(lambda: release(cache, 1))
    assert cache.take_done() == [Token(0, 1)]


def test_message_without_items_is_acknowledged_in_its_place() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(A, 2), message_of(A, 3, b"3"))
    assert cursor_at(cache, 1).is_drained
    cursor = cursor_at(cache, 0)
    release_all(cache)
    assert tokens_of(cursor.peek(9, 99)) == [(1, 0), (3, 0)]
    cursor.advance(1)
    assert cache.find_acked() == Token(0, 2)


def test_first_slot_begins_behind_what_was_seen() -> None:
    cache = cache_with(message_of(A, 1, b"1"), message_of(B, 2, b"2"), message_of(A, 3, b"3", b"4"))

    def first_index(stream: StreamId, after: Token | None) -> int | None:
        slot = cache.first_slot(stream, after)
        return None if slot is None else slot.index

    assert first_index(A, None) == 0
    assert first_index(A, Token(0, 1)) == 2
    assert first_index(A, Token(0, 3)) == 2
    assert first_index(A, Token(0, 3, 1)) is None
    assert first_index(StreamId("n", "c"), None) is None


def test_cursor_enters_behind_what_was_seen_inside_a_message() -> None:
    cache = cache_with(message_of(A, 3, b"3", b"4", b"5"))
    assert tokens_of(cursor_at(cache, 0, Token(0, 3, 1)).peek(9, 99)) == [(3, 2)]
    assert cursor_at(cache, 0, Token(0, 3, 2)).is_drained


def test_cursor_enters_behind_what_was_seen_however_many_messages_that_is() -> None:
    cache = cache_with(*(message_of(A, seq, b"1", b"2") for seq in range(1, 6)))
    assert tokens_of(cursor_at(cache, 0, Token(0, 4, 0)).peek(2, 99)) == [(4, 1), (5, 0)]
    assert cursor_at(cache, 0, Token(0, 5, 1)).is_drained


def test_cursor_that_goes_elsewhere_keeps_what_it_alone_holds() -> None:
    cache = cache_with(*(message_of(A, seq, b"1", b"2") for seq in (1, 2, 3)))
    cursor = cursor_at(cache, 0)
    release_all(cache)
    cursor.advance(1)
    cursor.seek(None)
    assert tokens_of(cursor.peek(2, 99)) == [(1, 0), (1, 1)] and cache.events == 6
    cursor.seek(Token(0, 2, 0))
    assert tokens_of(cursor.peek(2, 99)) == [(2, 1), (3, 0)] and cache.events == 4
    cursor.seek(Token(0, 3, 1))
    assert cursor.is_drained and cache.find_acked() == Token(0, 3) and cache.events == 0
    cursor.seek(None)
    assert cursor.is_drained, "nothing is held"


def test_room_is_nothing_when_one_limit_is_reached() -> None:
    cache = QueueCache(CacheLimits(events_max=2, bytes_max=100))
    cache.append(message_of(A, 1, b"1"))
    assert cache.room() == (1, 99)
    cache.append(message_of(A, 2, b"2"))
    assert cache.room() == (0, 0)


def test_empty_cache_takes_one_message_of_any_size() -> None:
    large = message_of(A, 1, b"x" * 50, b"", b"")
    cache = cache_with(large, limits=CacheLimits(events_max=2, bytes_max=10))
    assert cache.room() == (0, 0)
    assert not fits(cache, message_of(A, 2, b""))
    release(cache, 0)
    assert fits(cache, message_of(A, 2, b"x" * 50))


def test_append_refuses_what_does_not_fit() -> None:
    cache = QueueCache(CacheLimits(events_max=1, bytes_max=10))
    append(cache, message_of(A, 1, b"1"))
    assert cache.append(message_of(A, 2, b"2")) is None
    assert cache.events == 1 and cache.newest == Token(0, 1)


def test_message_bytes_counts_bodies_and_headers() -> None:
    assert content_bytes([b"123", b"4"], {"ab": "cde"}) == 9
    assert content_bytes([b"1"], {"\u00fc": "\u20ac"}) == 1 + 2 + 3


def test_streams_that_left_leave_nothing_behind() -> None:
    cache = QueueCache(CacheLimits())
    for seq in range(1_000):
        cache.release(append(cache, message_of(StreamId("n", str(seq)), seq, b"x")))
    assert not cache._lanes and not cache._slots


@pytest.mark.parametrize(("events_max", "bytes_max"), [(0, 1), (1, 0)])
def test_limits_refuse_what_cannot_work(events_max: int, bytes_max: int) -> None:
    with pytest.raises(ConfigError):
        CacheLimits(events_max, bytes_max)


STREAMS = [StreamId("n", name) for name in "abc"]
LIMITS = CacheLimits(events_max=12, bytes_max=60)


@dataclass(eq=False)
class Stored:
    """A message in the model.

    `before`: the message that came before it; None: none, or the cache has forgotten it.
    """

    message: QueueMessage
    before: Token | None
    slot: Slot | None  # None: its stream has no subscription
    unrouted: int = 1
    is_gone: bool = False
    is_disowned: bool = False

    @property
    def index(self) -> int:
        assert self.slot is not None
        return self.slot.index

    def tokens(self) -> list[Token]:
        era, seq, _ = self.message.token
        return [Token(era, seq, index) for index in range(len(self.message.items))]

    def events(self) -> int:
        return max(1, len(self.message.items))

    def size_bytes(self) -> int:
        return content_bytes(self.message.items, self.message.headers)


@dataclass(eq=False)
class Reader:
    """A cursor, and the items that the model expects from it."""

    cursor: Cursor
    stream: StreamId
    due: list[tuple[Token, bytes]] = field(default_factory=list)


class CacheMachine(RuleBasedStateMachine):
    """Compares the cache with a complete list of all messages."""

    notes: Notes = "out_of_turn"

    def __init__(self) -> None:
        super().__init__()
        self.cache = QueueCache(LIMITS, notes=self.notes)
        self.laggards = LaggingCursors(self.cache, is_used=False)
        self.stored: list[Stored] = []
        self.newest: Token | None = None
        self.left_events = 0
        self.noted: list[Token] = []  # not taken yet
        self.readers: list[Reader] = []  # includes readers without due items

    # the model

    def held(self) -> list[Stored]:
        return [one for one in self.stored if not one.is_gone]

    def of(self, stream: StreamId) -> list[Stored]:
        return [one for one in self.held() if one.message.stream == stream and one.message.items]

    def events_held(self) -> int:
        return sum(one.events() for one in self.held())

    def bytes_held(self) -> int:
        return sum(one.size_bytes() for one in self.held())

    def is_done(self, one: Stored) -> bool:
        """Is the message routed, and delivered to all readers?"""
        of_it = set(one.tokens())
        return not one.unrouted and not any(
            token in of_it for reader in self.readers for token, _ in reader.due
        )

    def settled(self) -> list[Stored]:
        """Return the messages that leave now: done ones at the beginning of a stream, and empty
        ones."""
        left: list[Stored] = []
        held_up: set[StreamId] = set()
        for one in self.held():
            stream = one.message.stream
            if one.message.items and (stream in held_up or not self.is_done(one)):
                held_up.add(stream)
            elif not one.unrouted:
                left.append(one)
        return left

    def settle(self) -> None:
        for one in self.settled():
            is_oldest = self.held()[0] is one
            one.is_gone = True
            self.left_events += one.events()
            if one.is_disowned or self.notes == "none":
                continue
            if self.notes == "all" or not is_oldest:
                self.noted.append(one.message.token)

    def given_back(self, ones: Sequence[Stored]) -> None:
        """Remove messages that leave without being done."""
        tokens = {token for one in ones for token in one.tokens()}
        for reader in self.readers:
            reader.due = [one for one in reader.due if one[0] not in tokens]
        for one in ones:
            one.is_gone, one.unrouted = True, 0

    def ranges(self) -> list[tuple[Token, Token]]:
        """Return the ranges of unpinned messages that follow a pinned one."""
        held = self.held()
        lasts = [*(one.before for one in held[1:]), self.newest]
        found = []
        for one, last in zip(held, lasts, strict=False):
            if last is not None and last > one.message.token:
                found.append((Token(0, one.message.token.seq + 1), last))
        return found

    def items_after(self, stream: StreamId, after: Token | None) -> list[tuple[Token, bytes]]:
        return [
            (token, body)
            for one in self.of(stream)
            for token, body in zip(one.tokens(), one.message.items, strict=True)
            if after is None or token > after
        ]

    # events

    @rule(
        stream=st.sampled_from(STREAMS),
        sizes=st.lists(st.integers(0, 12), max_size=4),
        is_routed=st.booleans(),
    )
    def append(self, stream: StreamId, sizes: list[int], is_routed: bool) -> None:
        items = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
        message = message_of(stream, len(self.stored) + 1, *items)
        self.check_fit(message)
        if not fits(self.cache, message):
            return
        assert not self.cache.passes_by(message)
        one = Stored(message, self.newest, append(self.cache, message))
        assert one.slot is not None and one.slot.message is message
        self.stored.append(one)
        self.newest = message.token
        for reader in self.readers:
            if reader.stream == stream and reader.due:
                reader.due += zip(one.tokens(), items, strict=True)
        if is_routed:
            self.route(one)

    def check_fit(self, message: QueueMessage) -> None:
        events = self.events_held() + max(1, len(message.items))
        size_bytes = self.bytes_held() + content_bytes(message.items, message.headers)
        is_small = events <= LIMITS.events_max and size_bytes <= LIMITS.bytes_max
        assert fits(self.cache, message) == (not self.held() or is_small)

    @rule(stream=st.sampled_from(STREAMS), count=st.integers(0, 3))
    def pass_by(self, stream: StreamId, count: int) -> None:
        """Add a message of a stream without subscriptions."""
        message = message_of(stream, len(self.stored) + 1, *[b"x"] * count)
        self.cache.unheard[stream] = 0
        assert self.cache.passes_by(message)
        del self.cache.unheard[stream]
        one = Stored(message, self.newest, None, unrouted=0, is_gone=True)
        self.stored.append(one)
        self.left_events += one.events()
        self.newest = message.token
        if self.notes != "none":
            self.noted.append(message.token)

    def route(self, one: Stored) -> None:
        one.unrouted -= 1
        assert one.slot is not None
        self.cache.release(one.slot)
        self.settle()

    @precondition(lambda self: any(one.unrouted for one in self.stored))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.route(data.draw(st.sampled_from([one for one in self.stored if one.unrouted])))

    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def enter(self, data: st.DataObject, stream: StreamId) -> None:
        """Enter the cache with an idle cursor of that stream, or a new one."""
        of_stream = [t for one in self.stored if one.message.stream == stream for t in one.tokens()]
        after = data.draw(st.sampled_from([None, *of_stream]))
        due = self.items_after(stream, after)
        at = self.cache.first_slot(stream, after)
        assert (at is None) == (not due) and (at is None or at.message.token.seq == due[0][0].seq)
        oldest = self.cache.first_slot(stream, None)
        if oldest is None:
            return
        slot = data.draw(st.sampled_from([oldest] if at is None else [oldest, at]))
        idle = [one for one in self.readers if one.stream == stream and not one.due]
        reader = data.draw(st.sampled_from([None, *idle]))
        if reader is None:
            reader = Reader(Cursor(self.laggards, (stream, "sub")), stream)
            self.readers.append(reader)
        assert reader.cursor.is_drained
        reader.cursor.enter(slot, after)
        reader.due = due

    def busy(self) -> list[Reader]:
        return [one for one in self.readers if one.due]

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), max_events=st.integers(1, 6), max_bytes=st.integers(1, 30))
    def deliver(self, data: st.DataObject, max_events: int, max_bytes: int) -> None:
        reader = data.draw(st.sampled_from(self.busy()))
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
        self.settle()

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Let a cursor skip the rest of its message."""
        reader = data.draw(st.sampled_from(self.busy()))
        assert reader.cursor.message == reader.due[0][0]._replace(index=0)
        reader.cursor.leave()
        seq = reader.due[0][0].seq
        reader.due = [one for one in reader.due if one[0].seq != seq]
        self.settle()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        tokens = [t for one in self.of(reader.stream) for t in one.tokens()]
        after = data.draw(st.sampled_from([None, *tokens]))
        reader.due = self.items_after(reader.stream, after)
        reader.cursor.seek(after)
        self.settle()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), is_kept=st.booleans())
    def close(self, data: st.DataObject, is_kept: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.cursor.close()
        reader.cursor.close()
        reader.due = []
        if not is_kept:
            self.readers.remove(reader)
        self.settle()

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        """Let others have some pinned messages, or done ones that were not taken."""
        tokens = data.draw(st.sets(st.sampled_from([one.message.token for one in self.stored])))
        self.cache.disown(tokens)
        for one in self.held():
            one.is_disowned |= one.message.token in tokens
        self.noted = [token for token in self.noted if token not in tokens]

    @precondition(lambda self: self.held())
    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def cut(self, data: st.DataObject, stream: StreamId) -> None:
        """Release the messages of a stream after a message to the queue, with the pins on them."""
        upto = data.draw(st.sampled_from([-1, *(one.index for one in self.held())]))
        given = [one for one in self.of(stream) if one.index > upto]
        found = self.cache.cut(stream, upto, lambda: self.let_go(given))
        assert found == [one.message.token for one in given]
        self.given_back(given)
        self.settle()

    def let_go(self, ones: Sequence[Stored]) -> None:
        for one in ones:
            for _ in range(one.unrouted):
                assert one.slot is not None
                self.cache.release(one.slot)
        for reader in self.readers:
            if reader.cursor.index in {one.index for one in ones}:
                reader.cursor.close()

    @rule()
    def forget(self) -> None:
        """Release all messages; later messages have later tokens all the same."""
        held = self.held()
        self.cache.forget(lambda: self.let_go(held))
        self.given_back(held)
        self.newest = None

    @rule()
    def take_done(self) -> None:
        assert self.cache.take_done() == self.noted
        self.noted = []

    # invariants

    @invariant()
    def counts_are_those_of_the_list(self) -> None:
        self.cache.check()
        held, appended = self.held(), [one for one in self.stored if one.slot is not None]
        assert self.cache.next_index == len(appended)
        assert self.cache.base == (held[0].index if held else len(appended))
        assert self.cache.left == len(appended) - len(held)
        assert (self.cache.purged, self.cache.evicted) == (self.left_events, 0)
        events, size_bytes = self.events_held(), self.bytes_held()
        assert (self.cache.events, self.cache.size_bytes) == (events, size_bytes)
        left = (LIMITS.events_max - events, LIMITS.bytes_max - size_bytes)
        assert self.cache.room() == (left if min(left) > 0 else (0, 0))

    @invariant()
    def what_is_held_is_what_is_not_done(self) -> None:
        assert list(self.cache._slots) == [one.index for one in self.held()]
        assert not self.settled()
        for stream in STREAMS:
            tokens = [one.message.token for one in self.of(stream)]
            assert self.cache.newest_of(stream) == (tokens[-1] if tokens else None)

    @invariant()
    def what_is_acknowledged_is_done(self) -> None:
        held = self.held()
        assert self.cache.find_acked() == (held[0].before if held else self.newest)

    @invariant()
    def every_undelivered_item_is_still_there(self) -> None:
        for reader in self.readers:
            reader.cursor.check()
            assert reader.cursor.is_drained == (not reader.due)
            items = reader.cursor.peek(1_000, 10_000)
            assert [(item.token, item.body) for item in items] == reader.due

    @invariant()
    def each_message_counts_its_holds(self) -> None:
        standing = [reader.cursor.index for reader in self.readers]
        for one in self.held():
            assert one.slot is not None
            assert one.slot.holds == one.unrouted + standing.count(one.index)


class CacheMachineNotingAll(CacheMachine):
    notes = "all"


class CacheMachineNotingNothing(CacheMachine):
    notes = "none"


test_cache_agrees_with_the_list_model = CacheMachine.TestCase
test_cache_that_notes_all_agrees_with_the_list_model = CacheMachineNotingAll.TestCase
test_cache_that_notes_nothing_agrees_with_the_list_model = CacheMachineNotingNothing.TestCase
CacheMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40)
CacheMachineNotingAll.TestCase.settings = CacheMachineNotingNothing.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40
)


# --- chains ---------------------------------------------------------------------------------------


def test_a_lag_counts_what_is_left_and_tells_when_the_first_of_it_came() -> None:
    first, second = (
        QueueMessage(A, Token(0, seq), items, {}, float(seq))
        for seq, items in ((4, [b"1", b"2", b"3"]), (9, [b"4"]))
    )
    cache = cache_with(first)
    cursor = cursor_at(cache, 0, Token(0, 4, 0))
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
    cursor = cursor_at(cache, 0)
    assert len(cursor.peek(10, max_bytes)) == count
    assert len(cursor.peek(1, max_bytes)) == 1
    assert len(cursor.peek(3, 99)) == 3


def test_headers_count_for_every_item_of_a_peek() -> None:
    cache = cache_with(
        QueueMessage(A, Token(0, 1), [b"aa", b"bb"], {"x": "y"}),
        QueueMessage(A, Token(0, 2), [b"cc"], {"x": "y"}),
    )
    cursor = cursor_at(cache, 0)
    for max_bytes, count in ((4, 1), (7, 1), (8, 2), (11, 2), (12, 3)):
        assert len(cursor.peek(9, max_bytes)) == count
    later = cursor_at(cache, 0, Token(0, 1, 0))
    assert [len(later.peek(9, room)) for room in (7, 8)] == [1, 2]
