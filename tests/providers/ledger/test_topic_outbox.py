"""The sent messages of a topic's owner, and the confirmed ones among them: the core alone."""

from __future__ import annotations

import asyncio

from millstream.providers.ledger.topic.appending.outbox import Append, Batch, Numbers, Outbox
from millstream.providers.ledger.topic.appending.producers import Producers, cost_of
from millstream.providers.ledger.topic.form import (
    FRAME_BYTES,
    KnownProducer,
    TopicMessage,
    size_of,
)

SIZE = size_of(TopicMessage(b"x"))


def new(entry_messages: int = 1000, **more: int) -> Outbox:
    """Make an outbox whose entries have space for `entry_messages` messages of a byte."""
    limit = entry_messages * SIZE + FRAME_BYTES
    return Outbox(Producers(9, 1000), more.get("first", 1), more.get("last_ms", 0), limit, 100)


def append(*payloads: bytes, producer: str = "", seq: int = 0) -> Append:
    messages = [
        TopicMessage(payload, producer, seq + at if producer else 0)
        for at, payload in enumerate(payloads)
    ]
    done: asyncio.Future[Numbers] = asyncio.get_running_loop().create_future()
    size = sum(map(size_of, messages))
    return Append(messages, size, bool(producer), 9.0, done)


def shape(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(one.first, len(one.messages)) for one in batches]


async def test_a_new_one_has_sent_and_confirmed_nothing() -> None:
    outbox = new(first=7, last_ms=5)
    assert (outbox.entries, outbox.ledger_bytes, outbox.confirmed_entry) == (0, 0, -1)
    assert (outbox.next_number, outbox.confirmed, outbox.confirmed_ms) == (7, 6, 5)
    assert not outbox.sent and outbox.sent_bytes == 0
    batch = Batch(7, 5, [], 0, {})
    assert (batch.entry, batch.payload_bytes, batch.end) == (-1, 0, 7)


async def test_an_append_of_nothing_is_done_at_once() -> None:
    outbox, nothing = new(), append()
    assert outbox.admit(nothing, 0) == [] and nothing.done.result() == []


async def test_an_entry_is_filled_to_its_last_byte() -> None:
    outbox = new(entry_messages=2)
    batches = outbox.admit(append(*[b"x"] * 5), 0)
    assert shape(batches) == [(1, 2), (3, 2), (5, 1)]
    assert [one.size_bytes for one in batches] == [2 * SIZE, 2 * SIZE, SIZE]
    assert outbox.sent_bytes == 5 * SIZE
    for batch in batches:
        outbox.stamp(batch)
        outbox.confirm(batch)
    assert outbox.sent_bytes == 0 and outbox.confirmed == 5


async def test_times_never_go_back() -> None:
    outbox = new(last_ms=50)
    times = [outbox.admit(append(b"x"), wall_ms)[0].time_ms for wall_ms in (40, 100, 60, 101)]
    assert times == [50, 100, 100, 101]


async def test_entries_of_a_ledger_are_counted_with_their_payloads() -> None:
    outbox = new()
    sizes = []
    for at in range(3):
        [batch] = outbox.admit(append(b"x" * at), 0)
        payload = outbox.stamp(batch)
        assert (batch.entry, batch.payload_bytes) == (at, len(payload))
        sizes.append(len(payload))
        outbox.confirm(batch)
        assert outbox.confirmed_entry == at
    assert (outbox.entries, outbox.ledger_bytes) == (3, sum(sizes))


async def test_a_repeat_waits_for_the_entry_that_has_it_and_no_longer() -> None:
    outbox = new()
    [one] = outbox.admit(append(b"x", producer="p", seq=1), 0)
    first, again = append(b"x", producer="p", seq=1), append(b"x", producer="p", seq=2)
    assert outbox.admit(first, 0) == []
    [two] = outbox.admit(append(b"x", producer="p", seq=2), 0)
    assert outbox.admit(again, 0) == []
    outbox.confirm(one)
    assert first.done.result() == [1] and not again.done.done()
    outbox.confirm(two)
    assert again.done.result() == [2]
    late = append(b"x", producer="p", seq=1)
    assert outbox.admit(late, 0) == [] and late.done.result() == [None]


async def test_a_snapshot_is_an_entry_without_messages_in_its_place() -> None:
    outbox = new()
    assert outbox.snapshot_due() is None, "nobody is known"
    [batch] = outbox.admit(append(b"x", producer="p", seq=1), 30)
    snapshot = outbox.snapshot_due()
    assert snapshot is not None and list(outbox.sent) == [batch, snapshot]
    assert (snapshot.first, snapshot.end, snapshot.time_ms, snapshot.size_bytes) == (2, 2, 30, 0)
    assert snapshot.snapshot == [KnownProducer("p", 1, 1)]
    for sent in (batch, snapshot):
        outbox.stamp(sent)
        outbox.confirm(sent)
    assert (outbox.sent_bytes, outbox.confirmed, outbox.confirmed_entry) == (0, 1, 1)


async def test_another_ledger_begins_with_who_is_known_as_of_its_first_entry() -> None:
    outbox = new()
    [stored] = outbox.admit(append(b"x", producer="p", seq=1), 10)
    outbox.stamp(stored)
    outbox.confirm(stored)
    [one] = outbox.admit(append(b"x"), 20)
    [two] = outbox.admit(append(b"x"), 30)
    first, *rest = outbox.begin_ledger()
    assert rest == [one, two] and list(outbox.sent) == [first, one, two]
    assert (first.first, first.time_ms, first.messages, first.size_bytes) == (2, 20, [], 0)
    assert first.snapshot == [KnownProducer("p", 1, 1)]
    assert (outbox.entries, outbox.ledger_bytes, outbox.confirmed_entry) == (0, 0, -1)
    for sent in (first, one, two):
        outbox.confirm(sent)
    [alone] = outbox.begin_ledger()
    assert (alone.first, alone.time_ms) == (4, 30)


def test_who_was_silent_longest_goes_for_want_of_bytes() -> None:
    cost = cost_of(KnownProducer("a", 1, 1))
    producers = Producers(9, 2 * cost)
    for at, name in enumerate("abc", 1):
        producers.accept(KnownProducer(name, 1, at))
    assert [one.producer for one in producers.snapshot()] == ["b", "c"]
    producers.accept(KnownProducer("b", 2, 9))
    assert [one.producer for one in producers.snapshot()] == ["c", "b"]
