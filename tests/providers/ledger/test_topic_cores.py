"""The cores of a topic alone: its memory of producers, its limits, and its waiting appends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.ledger.worlds import World, in_a_world, marked

from millstream.providers.ledger import LedgerTopicOptions
from millstream.providers.ledger.inspection import EntryDamaged, EntryKind, TopicRecord, head_of
from millstream.providers.ledger.topic.appending import append_queue as appends_waiting
from millstream.providers.ledger.topic.appending.append_queue import AppendQueue
from millstream.providers.ledger.topic.appending.outbox import Append, Batch
from millstream.providers.ledger.topic.appending.producers import Producers
from millstream.providers.ledger.topic.form import (
    EntryHead,
    KnownProducer,
    TopicMessage,
    messages_of,
    pack,
    producers_of,
    size_of,
)
from millstream.providers.ledger.topic.reading import index
from millstream.providers.ledger.topic.reading.tail import TopicTail
from millstream.providers.ledger.topic.record import LedgerSpan
from millstream.runtime import QueueFull, QueueUnavailable

NAMES = st.sampled_from(["a", "b", "cc", "dddd", "ü", "ffffffff"])


@given(st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=40), st.integers(1, 4))
def test_producers_are_as_many_as_have_room_and_the_last_used(
    given_: list[tuple[str, int]], count_max: int
) -> None:
    producers, model = Producers(count_max, 85), dict[str, KnownProducer]()
    for number, (name, seq) in enumerate(given_):
        known = KnownProducer(name, seq, number)
        producers.accept(known)
        old = model.pop(name, None)
        model[name] = old if old is not None and old.seq >= seq else known
        while len(model) > count_max or sum(size_of(TopicMessage(b"", one)) for one in model) > 85:
            del model[next(iter(model))]
        assert producers.snapshot() == list(model.values()) and len(producers) == len(model)
        assert all(producers.find(one) == model[one] for one in model)


def test_a_snapshot_with_newer_ones_leaves_the_table_as_it_is() -> None:
    producers = Producers(2, 1000)
    for at, name in enumerate("ab"):
        producers.accept(KnownProducer(name, 1, at))
    newer = [KnownProducer("a", 5, 9), KnownProducer("c", 1, 10)]
    assert producers.snapshot(newer) == newer
    assert [one.producer for one in producers.snapshot()] == ["a", "b"]


def test_what_is_no_entry_of_a_topic_is_damaged() -> None:
    head = EntryHead(7, 1, 5, -1)
    whole = pack(head, [TopicMessage(b"x")])
    assert head_of(whole) == head and head_of(whole[:29]) == head and head.end == 8
    with pytest.raises(EntryDamaged, match="has 28 bytes; its header has 29"):
        head_of(whole[:28])
    with pytest.raises(EntryDamaged, match="message 7 has 1 messages, but its header says 2"):
        messages_of(pack(head._replace(messages=2), [TopicMessage(b"x")]))
    with pytest.raises(EntryDamaged, match="topic entry cannot be decoded"):
        messages_of(whole[:-1])
    snapshot = pack(head._replace(kind=EntryKind.SNAPSHOT), [KnownProducer("p", 1, 2)])
    assert messages_of(snapshot) == [] and producers_of(snapshot) == [KnownProducer("p", 1, 2)]


@given(st.text(max_size=9), st.binary(max_size=300), st.integers(-(2**63), 2**64 - 1))
@pytest.mark.spare
def test_no_message_takes_more_than_it_is_said_to(name: str, payload: bytes, seq: int) -> None:
    message = TopicMessage(payload, name, seq)
    alone = len(pack(EntryHead(1, 1, 0, -1), [message]))
    assert alone <= size_of(message) + len(pack(EntryHead(1, 0, 0, -1), []))


def append(size: int, deadline_s: float, *producers: str) -> Append:
    messages = [TopicMessage(b"", name, 1) for name in producers]
    done = asyncio.get_running_loop().create_future()
    return Append(messages, size, bool(producers), deadline_s, done)


async def test_room_for_who_waits_comes_back_when_it_is_taken() -> None:
    waiting = AppendQueue("t", LedgerTopicOptions(waiting_bytes_max=100))
    for _ in range(3):
        waiting.add(append(90, 1.0))
        with pytest.raises(QueueFull):
            waiting.refuse_flood(11)
        waiting.refuse_flood(10)
        assert waiting.take().size_bytes == 90 and not waiting.appends
        waiting.refuse_flood(1000)  # a lone append may be larger


async def test_who_is_given_up_takes_along_what_its_producers_gave_and_theirs() -> None:
    waiting = AppendQueue("t", LedgerTopicOptions(waiting_bytes_max=100))
    appends = [
        append(40, 1.0, "p"),
        append(10, 9.0, "p", "q"),
        append(10, 9.0, "r"),
        append(10, 9.0, "q"),
    ]
    for one in appends:
        waiting.add(one)
    waiting.expire(0.5, QueueFull("late"))
    assert not any(one.done.done() for one in appends)
    waiting.expire(1.0, QueueFull("late"))
    assert isinstance(appends[0].done.exception(), QueueFull)
    assert isinstance(appends[1].done.exception(), QueueUnavailable)
    assert isinstance(appends[3].done.exception(), QueueUnavailable)
    assert waiting.head is appends[2] and len(waiting.appends) == 1
    waiting.refuse_flood(90)
    waiting.expire(99.0, QueueFull("late"))  # the last append
    assert not waiting.appends


async def test_of_callers_that_leave_together_nobody_behind_is_looked_at_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_all, looks = appends_waiting.producers_of, 0

    def counted(appends: Sequence[Append]) -> set[str]:
        nonlocal looks
        looks += 1
        return of_all(appends)

    monkeypatch.setattr(appends_waiting, "producers_of", counted)
    waiting = AppendQueue("t", LedgerTopicOptions())
    appends = [append(1, 9.0, f"p{number}") for number in range(1_000)]
    behind = append(1, 9.0, "p7")
    for one in (*appends, behind):
        waiting.add(one)
    for one in appends[:900]:
        one.done.cancel()
    waiting.drop_given_up()
    assert isinstance(behind.done.exception(), QueueUnavailable)
    assert list(waiting.appends) == appends[900:] and waiting.head is appends[900]
    assert looks <= 1_000
    waiting.drop_given_up()
    assert len(waiting.appends) == 100
    for one in appends[900:]:
        room = LedgerTopicOptions().waiting_bytes_max - len(waiting.appends)
        waiting.refuse_flood(room)
        with pytest.raises(QueueFull, match="bytes would wait"):
            waiting.refuse_flood(room + 1)
        assert waiting.take() is one


def test_an_index_that_is_full_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "KNOWN_MAX", 4)
    made = index.EntryIndex()
    for entry in (10, 20, 30, 40, 50):  # entries in order, as a writer notes them, are all kept
        made.note(entry, entry * 2, entry * 3)
    assert len(made) == 5 and made.around_number(85, 99) == (40, 50)
    made.note(15, 30, 45)
    assert len(made) == 1
    assert made.around_number(31, 99) == (15, 99) and made.around_time(45, 99) == (-1, 15)


def batch(first: int, size: int) -> Batch:
    return Batch(first, 7, [TopicMessage(b"x" * size)], size, {})


def test_the_tail_lets_go_of_what_has_no_room() -> None:
    tail, oldest = TopicTail(100), batch(1, 60)
    before = sys.getrefcount(oldest)
    tail.add(oldest)
    tail.add(batch(2, 60))
    assert tail.first == 2 and sys.getrefcount(oldest) == before


def test_a_page_is_filled_to_its_last_byte() -> None:
    tail = TopicTail(100)
    for number in range(1, 6):
        tail.add(batch(number, 1))
    assert [len(tail.read(1, 9, size) or ()) for size in range(5)] == [1, 1, 2, 3, 4]
    assert [len(tail.read(1, count, 99) or ()) for count in (1, 3, 9)] == [1, 3, 5]


def test_snapshots_come_every_so_many_entries() -> None:
    async def main(world: World) -> None:
        topic = await world.open(options=LedgerTopicOptions(snapshot_entries=3))
        for seq in range(1, 9):
            await topic.append(marked("p", seq))
        stored = next(iter(world.bookies.ledgers.values()))
        heads = [head_of(entry) for entry in stored.entries]
        assert [head.kind for head in heads] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
        assert [head.snapshot for head in heads] == [-1, -1, -1, 3, 3, 3, 3, 7, 7, 7]
        assert producers_of(stored.entries[7]) == [KnownProducer("p", 6, 6)]

    in_a_world(main)


@pytest.mark.parametrize(
    ("mark", "backlog"),
    [(0, 13), (3, 10), (5, 8), (9, 8), (104, 8), (105, 8), (106, 7), (112, 1), (113, 0), (120, 0)],
)
def test_a_backlog_counts_no_numbers_that_were_left_out(mark: int, backlog: int) -> None:
    spans = (
        LedgerSpan(1, 1, True, 105, left_out=100),
        LedgerSpan(2, 106, True, 5),
        LedgerSpan(3, 111),
    )
    assert TopicRecord("t", spans=spans).backlog(mark, 114) == backlog
