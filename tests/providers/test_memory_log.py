"""One in-memory queue without a cluster: compared with a model, and rule by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.providers.memory import MemoryOptions, queue_log
from millstream.providers.memory.queue_log import QueueLog
from millstream.runtime import (
    ConfigError,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
)
from millstream.runtime.testing import Simulation, run
from millstream.streams import OutMessage, ProducerMark, QueueMessage, StreamId, Token

T = TypeVar("T")
STREAM = StreamId("n", "k")
CAPACITY = 12


def now(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that must not wait."""
    try:
        call.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    call.close()
    raise AssertionError("it waits")


def out(text: str, items: int = 1, mark: ProducerMark | None = None) -> OutMessage:
    return OutMessage(STREAM, [text.encode()] * items, {}, mark)


def log_of(**options: Any) -> QueueLog:
    return QueueLog("p/q", MemoryOptions(enqueue_wait_s=0.0, **options), 1)


def texts(messages: list[QueueMessage | None]) -> list[str | None]:
    return [None if one is None else one.items[0].decode() for one in messages]


def read(log: QueueLog, after: int = 0, events: int = 1000, size_bytes: int = 10**6) -> Any:
    return now(log.read(log.epoch, 1, after, events, size_bytes, 0.0))


def seqs(tokens: list[Token | None] | None) -> list[int | None]:
    return [None if one is None else one.seq for one in tokens or ()]


# --- compared with a model ------------------------------------------------------------------------


class Model:
    """The queue as plain lists: the accepted messages by number, and the processed ones."""

    def __init__(self) -> None:
        self.log = log_of(capacity_events=CAPACITY)
        # text and number of events, starting with number 1
        self.accepted: list[tuple[str, int]] = []
        self.done: set[int] = set()
        self.upto = 0
        self.known: dict[str, int] = {}
        self.after = 0
        self.reached = 0  # the reader has passed this number since it began

    def events_held(self, after: int = 0) -> int:
        return sum(
            events
            for number, (_, events) in enumerate(self.accepted, 1)
            if number > max(self.upto, after) and number not in self.done
        )

    def append(self, parts: list[tuple[str, int, int]]) -> None:
        """Append messages given as (producer or "", sequence, events)."""
        messages: list[OutMessage] = []
        wanted, known = list[int | None](), dict(self.known)
        fresh: list[tuple[str, int]] = []
        asked = 0
        for producer, seq, events in parts:
            mark = ProducerMark(producer, seq) if producer else None
            text = f"{len(self.accepted)}-{len(messages)}"
            messages.append(out(text, events, mark))
            if mark is None or seq > self.known.get(producer, -1):
                asked += events
            if mark is not None and seq <= known.get(producer, -1):
                wanted.append(None)
                continue
            if mark is not None:
                known[producer] = seq
            fresh.append((text, events))
            wanted.append(len(self.accepted) + len(fresh))
        try:
            tokens = self.log.append_now(messages, 5.0)
        except StreamError:
            assert asked > CAPACITY
            return
        if tokens is None:
            assert self.events_held() + asked > CAPACITY
            return
        assert self.events_held() + asked <= CAPACITY or not asked
        assert seqs(tokens) == wanted
        self.accepted += fresh
        self.known = known

    def acknowledge(self, upto: int, also: list[int]) -> None:
        self.log.acknowledge(self.log.epoch, 1, upto, also)
        self.upto = max(self.upto, min(upto, len(self.accepted)))
        self.done |= {one for one in also if one <= len(self.accepted)}

    def read(self, events: int) -> None:
        start, found = read(self.log, self.after, events)
        assert start >= max(self.after, self.upto)
        for number, message in enumerate(found, start + 1):
            is_done = number in self.done or number <= self.upto
            assert (message is None) is is_done
            assert message is None or message.token == Token(1, number)
            assert message is None or message.items[0].decode() == self.accepted[number - 1][0]
        skipped = range(max(self.after, self.upto) + 1, start + 1)
        assert self.done.issuperset(skipped)
        assert found or start == len(self.accepted) or start > self.after
        self.after = start + len(found)
        self.reached = max(self.reached, self.after)

    def begin(self, after: int) -> None:
        """Begin the next reader after the position of its record."""
        self.reached = self.log.begin(self.log.epoch + 1)
        self.after = max(self.reached, min(after, len(self.accepted)))

    def move(self) -> None:
        """Move the content to another activation, and begin a new reader."""
        old = self.log
        content = old.content(old.done, old.depth) if old.depth else []
        self.log = QueueLog(
            "p/q",
            MemoryOptions(enqueue_wait_s=0.0, capacity_events=CAPACITY),
            1,
            epoch=old.epoch,
            start=old.done,
            producers=old.producers,
        )
        self.log.load(content)
        self.after = self.reached = self.log.begin(old.epoch + 1)

    def check(self) -> None:
        self.log.check()
        assert (self.log.done, self.log.end) == (self.upto, len(self.accepted))
        assert self.log.room.events_taken == self.events_held()
        assert self.log.backlog == self.events_held(self.reached)
        assert self.log.producers == self.known


PARTS = st.lists(
    st.tuples(st.sampled_from(["", "p", "r"]), st.integers(0, 9), st.integers(1, 5)), max_size=4
)
STEPS = st.one_of(
    st.tuples(st.just("append"), PARTS),
    st.tuples(st.just("read"), st.integers(1, 8)),
    st.tuples(st.just("acknowledge"), st.integers(0, 20), st.lists(st.integers(1, 25), max_size=4)),
    st.tuples(st.just("begin"), st.integers(0, 20)),
    st.tuples(st.just("move")),
)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=30))
def test_a_log_is_as_its_model(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.check()


# --- rule by rule ---------------------------------------------------------------------------------


def test_what_is_read_counts_once_against_the_backlog() -> None:
    log = log_of()
    log.append_now([out("a", 2), out("b", 3)], 0.0)
    assert log.backlog == 5
    assert read(log, events=2)[1] and log.backlog == 3
    read(log, events=2)
    assert log.backlog == 3  # the same messages are read again
    read(log)
    assert log.backlog == 0
    log.acknowledge(0, 1, 1, [])
    assert log.backlog == 0
    log.begin(1)
    assert log.backlog == 3  # the next reader has read nothing


def test_what_a_reader_goes_on_behind_is_not_in_its_backlog() -> None:
    log = log_of()
    log.append_now([out("a", 2), out("b", 3), out("c", 1)], 0.0)
    log.begin(1)
    assert texts(read(log, after=2)[1]) == ["c"] and log.backlog == 0
    log.acknowledge(1, 1, 1, [])
    assert log.backlog == 0
    log.begin(2)
    assert read(log, after=3)[1] == [] and log.backlog == 0  # there are no new messages


def test_what_is_done_before_the_reader_comes_to_it_leaves_the_rest_counted() -> None:
    log = log_of()
    log.append_now([out("a", 2), out("b", 3), out("c", 1)], 0.0)
    log.begin(1)
    assert read(log, events=2)[1] and log.backlog == 4
    log.acknowledge(1, 1, 0, [2])
    assert log.backlog == 1


def test_what_is_done_at_the_place_that_the_reader_has_reached_leaves_the_rest_counted() -> None:
    log = log_of()
    log.append_now([out("a", 2), out("b", 3), out("c", 1)], 0.0)
    log.begin(1)
    assert len(read(log, events=5)[1]) == 2 and log.backlog == 1
    log.acknowledge(1, 1, 0, [2])
    assert log.backlog == 1
    log.check()


async def test_a_long_search_lets_others_run_and_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_log, "LOOKED_AT_MAX", 4)
    log = log_of()
    log.append_now([out(str(number)) for number in range(20)], 3.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    running, loop = asyncio.ensure_future(others()), asyncio.get_running_loop()
    began_s = loop.time()
    assert await log.seek(4.0) == 0
    assert turns >= 4 and loop.time() - began_s < 0.5
    running.cancel()


def test_a_read_is_within_both_limits_but_has_one_message() -> None:
    log = log_of()
    log.append_now([out("aaaa", 3), out("b"), out("c")], 0.0)
    assert texts(read(log, events=1)[1]) == ["aaaa"]
    assert texts(read(log, events=3)[1]) == ["aaaa"]
    assert texts(read(log, events=4)[1]) == ["aaaa", "b"]
    assert texts(read(log, size_bytes=1)[1]) == ["aaaa"]
    assert texts(read(log, size_bytes=14 + 3)[1]) == ["aaaa", "b"]  # 12 + 2 bytes of names, 1 + 2
    assert texts(read(log, size_bytes=14 + 2)[1]) == ["aaaa"]


def test_a_size_counts_items_names_and_headers_in_bytes() -> None:
    log = log_of()
    stream = StreamId("ü", "key")
    log.append_now([OutMessage(stream, [b"ab", b"c"], {"x": "é"})], 0.0)
    assert log.room.bytes_taken == 3 + 2 + 3 + 1 + 2
    log.acknowledge(0, 1, 1, [])
    assert log.room.bytes_taken == 0


def test_what_is_too_large_is_refused_and_what_has_no_room_now_is_not() -> None:
    log = log_of(capacity_events=3, capacity_bytes=100)
    with pytest.raises(StreamError, match="one batch has 4 events"):
        log.append_now([out("a", 4)], 0.0)
    with pytest.raises(StreamError, match="and 103 bytes"):
        log.append_now([out("a" * 101)], 0.0)
    assert seqs(log.append_now([out("a", 3)], 0.0)) == [1]
    assert log.append_now([out("b")], 0.0) is None
    assert log.append_now([out("c" * 98)], 0.0) is None
    with pytest.raises(QueueFull, match=r"full for 0 s: 3 of 3 events"):
        asyncio.run(log.append([out("b")], 0.0))
    log.acknowledge(0, 1, 0, [1])
    assert seqs(log.append_now([out("b")], 0.0)) == [2]


def test_a_span_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "SPAN_MAX", 3)
    log = log_of()
    for number in range(3):
        log.append_now([out("a")], 0.0)
        log.acknowledge(0, 1, 0, [number + 1] if number else [])
    with pytest.raises(QueueFull, match="oldest message is not acknowledged, and 3 messages were"):
        log.append_now([out("b")], 0.0)
    log.acknowledge(0, 1, 1, [])
    assert seqs(log.append_now([out("b")], 0.0)) == [4]


async def test_who_waits_for_room_has_it_when_some_is_given_back_and_not_after_the_end() -> None:
    log = QueueLog("p/q", MemoryOptions(capacity_events=1, enqueue_wait_s=30.0), 1)
    log.append_now([out("a")], 0.0)
    first, second = (asyncio.ensure_future(log.append([out(text)], 0.0)) for text in "bc")
    await asyncio.sleep(0)
    assert log.append_now([out("d")], 0.0) is None  # an append does not overtake a waiting one
    log.acknowledge(0, 1, 1, [])
    assert seqs(await first) == [2] and not second.done()
    log.close("it moves")
    with pytest.raises(QueueUnavailable, match="p/q: it moves"):
        await second
    with pytest.raises(QueueUnavailable, match="it moves"):
        log.append_now([out("e")], 0.0)


async def test_a_repeat_that_was_stored_while_it_waited_gives_its_room_back() -> None:
    log = QueueLog("p/q", MemoryOptions(capacity_events=2, enqueue_wait_s=30.0), 1)
    log.append_now([out("a", 2)], 0.0)
    mark = ProducerMark("p", 7)
    tries = [asyncio.ensure_future(log.append([out("b", 2, mark)], 0.0)) for _ in range(2)]
    await asyncio.sleep(0)
    log.acknowledge(0, 1, 1, [])
    assert seqs(await tries[0]) == [2]
    log.acknowledge(0, 1, 2, [])
    assert seqs(await tries[1]) == [None]
    assert (log.room.events_taken, log.room.bytes_taken) == (0, 0)
    log.check()


async def test_a_reader_that_waits_is_woken_by_what_comes_and_by_its_own_end() -> None:
    log = log_of()
    log.begin(2)
    waiting = asyncio.ensure_future(log.read(2, 1, 0, 10, 100, 60.0))
    await asyncio.sleep(0)
    log.wake(1)  # the call of an older reader
    await asyncio.sleep(0)
    assert not waiting.done()
    log.append_now([out("a")], 0.0)
    assert texts((await waiting)[1]) == ["a"]
    waiting = asyncio.ensure_future(log.read(2, 1, 1, 10, 100, 60.0))
    await asyncio.sleep(0)
    log.wake(2)
    assert (await waiting)[1] == []
    waiting = asyncio.ensure_future(log.read(2, 1, 1, 10, 100, 60.0))
    await asyncio.sleep(0)
    log.begin(3)
    log.append_now([out("b")], 0.0)
    with pytest.raises(QueueFenced, match="epoch 2 is older than 3"):
        await waiting
    log.stop_waits()
    assert (await log.read(3, 1, 2, 10, 100, 60.0))[1] == []


def test_an_older_reader_can_do_nothing() -> None:
    log = log_of()
    log.append_now([out("a")], 0.0)
    log.begin(2)
    for act in (lambda: log.begin(1), lambda: log.acknowledge(1, 1, 1, [])):
        with pytest.raises(QueueFenced):
            act()
    with pytest.raises(QueueFenced):
        now(log.read(1, 1, 0, 10, 100, 0.0))
    assert (log.done, log.epoch) == (0, 2)


def test_another_era_means_the_beginning_and_acknowledges_nothing() -> None:
    log = log_of()
    log.append_now([out("a"), out("b")], 0.0)
    assert texts(now(log.read(0, 9, 2, 10, 100, 0.0))[1]) == ["a", "b"]
    log.acknowledge(0, 9, 2, [1])
    assert log.done == 0 and texts(read(log)[1]) == ["a", "b"]


def test_what_is_done_is_passed_over_and_looked_at_as_nothing() -> None:
    log = log_of()
    log.append_now([out(text) for text in "abcdef"], 3.0)
    log.acknowledge(0, 1, 1, [2, 3, 5, 99])
    assert read(log) == (3, read(log, 3)[1])
    assert texts(read(log)[1]) == ["d", None, "f"]
    assert log.look(1, 100, 1000)[0] == 1
    assert texts(log.look(2, 100, 1000)[1]) == [None, None, "d", None, "f"]
    assert texts(log.look(4, 1, 1000)[1]) == ["d"]
    assert log.look(99, 10, 10) == (6, [])


def test_a_long_run_of_done_messages_is_passed_in_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "LOOKED_AT_MAX", 4)
    log = log_of()
    log.append_now([out(str(number)) for number in range(20)], 0.0)
    log.acknowledge(0, 1, 0, list(range(2, 19)))
    at, seen = 1, list[str | None]()
    for _ in range(10):
        start, found = read(log, at)
        seen += [text for text in texts(found) if text is not None]
        at = start + len(found)
    assert seen == ["18", "19"] and at == 20


def test_a_message_that_repeats_needs_no_room() -> None:
    log = log_of(capacity_events=1)
    mark = ProducerMark("p", 1)
    assert seqs(log.append_now([out("a", mark=mark)], 0.0)) == [1]
    assert log.append_now([out("b")], 0.0) is None
    assert log.append_now([out("a", mark=mark)], 0.0) == [None]
    assert log.append_now([out("a", mark=mark), out("a", mark=mark)], 0.0) == [None, None]


@pytest.mark.parametrize("wait_s", [0.0, 0.2, 1.0])
def test_a_reader_waits_as_long_as_it_says(wait_s: float) -> None:
    async def go(_: Simulation) -> float:
        log, loop = log_of(), asyncio.get_running_loop()
        began_s = loop.time()
        assert await log.read(log.epoch, 1, 0, 9, 10**6, wait_s) == (0, [])
        return loop.time() - began_s

    assert run(go, 1).result == pytest.approx(wait_s)


def test_whole_segments_of_done_messages_are_left_out_of_a_look() -> None:
    log, size = log_of(), queue_log.SEGMENTS.segment_size
    log.append_now([out(str(number)) for number in range(10 * size)], 0.0)
    log.acknowledge(0, 1, 0, list(range(2, 10 * size)))  # all but the first and the last
    start, found = log.look(2, 10, 1000)
    assert (start, texts(found)) == (1, [None] * 10)
    start, found = log.look(size + 1, 2 * size, 100_000)
    assert start == 9 * size and texts(found) == [None] * (size - 1) + [str(10 * size - 1)]


def test_seeking_finds_the_first_that_is_not_done_at_or_after_a_time() -> None:
    log = log_of()
    for second in range(5):
        log.append_now([out(str(second))], float(second))
    log.acknowledge(0, 1, 0, [3])
    for when_s, number in ((-1.0, 1), (1.0, 2), (1.5, 4), (4.0, 5), (4.1, 0)):
        assert asyncio.run(log.seek(when_s)) == number


def test_the_producer_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "PRODUCERS_MAX", 2)
    log = log_of()
    for producer, seq in (("a", 0), ("b", 0), ("a", 1), ("c", 0)):
        log.append_now([out("x", mark=ProducerMark(producer, seq))], 0.0)
    assert log.producers == {"a": 1, "c": 0}


def test_content_that_is_more_than_the_capacity_has_room_until_it_is_done() -> None:
    log = log_of(capacity_events=2)
    content = [QueueMessage(STREAM, Token(1, n), [b"a", b"b"]) for n in (1, 2, 3)]
    log.load([content[0], None, content[2]])
    assert (log.end, log.room.events_taken, log.backlog) == (3, 4, 4)
    assert log.append_now([out("c")], 0.0) is None
    log.acknowledge(0, 1, 3, [])
    assert seqs(log.append_now([out("c")], 0.0)) == [4]


def test_what_a_caller_keeps_of_a_message_does_not_change_what_is_held() -> None:
    log = log_of()
    items, headers = [b"a"], {"x": "1"}
    log.append_now([OutMessage(STREAM, items, headers)], 0.0)
    items.append(b"b")
    headers["x"] = "2"
    (held,) = read(log)[1]
    assert (held.items, dict(held.headers)) == ([b"a"], {"x": "1"})


async def test_the_end_of_a_log_wakes_its_readers() -> None:
    log = log_of()
    waiting = asyncio.ensure_future(log.read(0, 1, 0, 10, 100, 60.0))
    await asyncio.sleep(0)
    log.close("it moves")
    assert (await waiting)[1] == []


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="capacity_events is 0"):
        MemoryOptions(capacity_events=0)


def test_what_is_done_is_let_go_of() -> None:
    log = log_of()
    log.append_now([out("a"), out("b")], 0.0)
    log.acknowledge(0, 1, 2, [])
    assert log._partition.first == 2


# --- sealing --------------------------------------------------------------------------------------


def test_a_seal_gives_the_last_message_before_it_and_refuses_older_epochs() -> None:
    log = log_of()
    assert QueueLog("p/q", MemoryOptions(), 1).seal(2, 2) is None
    mark = ProducerMark("p", 3)
    log.append_now([out("a", mark=mark)], 0.0)
    assert log.seal(2, 2) == Token(1, 1) == log.seal(2, 2)
    with pytest.raises(StaleMapper, match="mapper epoch 2"):
        asyncio.run(log.append([out("b")], 0.0, 1))
    assert asyncio.run(log.append([out("a", mark=mark)], 0.0, 1)) == [None]
    with pytest.raises(StaleMapper):
        asyncio.run(log.append([out("a", mark=mark), out("b")], 0.0, 1))
    assert asyncio.run(log.append([out("c")], 0.0, 2)) == [Token(2, 2)]


async def test_who_waits_for_room_when_the_queue_is_sealed_is_refused_and_takes_none() -> None:
    log = QueueLog("p/q", MemoryOptions(capacity_events=2, enqueue_wait_s=30.0), 1)
    log.append_now([out("a", 2)], 0.0)
    old, new = (asyncio.ensure_future(log.append([out("b")], 0.0, n)) for n in (1, 2))
    await asyncio.sleep(0)
    log.seal(2, 2)
    log.acknowledge(0, 1, 1, [])
    with pytest.raises(StaleMapper):
        await old
    assert await new == [Token(2, 2)]
    assert log.room.events_taken == 1
    log.check()
