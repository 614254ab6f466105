"""The in-memory queue grain: numbers, repeats, fencing, and content across a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues, queue_log
from millstream.providers.memory.adapter import MemoryAdapter, MemoryReader
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.memory.wire_form import NumberedMessages, QueuedMessage
from millstream.runtime import (
    CursorTooOld,
    Etag,
    MemoryMembershipTable,
    MemoryStateStore,
    QueueFenced,
    QueueFull,
    Silo,
    StorageUnavailable,
    StreamError,
)
from millstream.streams import OutMessage, PersistentStreams, StreamId, Token


def message(text: str, producer: str = "", seq: int = 0, items: int = 1) -> QueuedMessage:
    return QueuedMessage("n", "k", [text.encode()] * items, None, producer, seq, 0.0)


def make_silo(store: MemoryStateStore, table: MemoryMembershipTable) -> Silo:
    memory = MemoryOptions(capacity_events=10, enqueue_wait_s=0.02)
    streams = PersistentStreams(MemoryQueues(memory), balancer=DeploymentBalancer())
    return Silo(
        grains=[],
        membership=table,
        stores={"default": store},
        streams={"default": streams},
        can_own_queues=False,
    )


@pytest.fixture
async def queue() -> AsyncIterator[MemoryQueue]:
    async with make_silo(MemoryStateStore(), MemoryMembershipTable()) as silo:
        yield silo.grain(MemoryQueue, "default/q")


async def test_messages_are_numbered_from_one(queue: MemoryQueue) -> None:
    assert await queue.append([message("a"), message("b")]) == [(1, 1), (1, 2)]
    assert await queue.append([message("c")]) == [(1, 3)]


async def test_a_repeated_sequence_is_stored_once_and_zero_is_a_sequence(
    queue: MemoryQueue,
) -> None:
    first = [message("a", "p", 0), message("b", "p", 1)]
    assert await queue.append(first) == [(1, 1), (1, 2)]
    assert await queue.append([*first, message("c", "p", 2)]) == [(1, 0), (1, 0), (1, 3)]
    assert await queue.append([message("d", "other", 0)]) == [(1, 4)]


async def test_an_older_reader_is_fenced(queue: MemoryQueue) -> None:
    await queue.begin(2)
    for call in (
        queue.begin(1),
        queue.read(1, 1, 0, 10, 1000, 0.0),
        queue.acknowledge(1, 1, 1, []),
    ):
        with pytest.raises(QueueFenced, match="epoch 1 is older than 2"):
            await call


async def test_what_is_not_acknowledged_is_read_again(queue: MemoryQueue) -> None:
    await queue.append([message(text) for text in "abcd"])
    assert len((await queue.read(1, 1, 0, 2, 1000, 0.0)).messages) == 2
    await queue.acknowledge(1, 1, 2, [])
    await queue.acknowledge(1, 1, 1, [])
    assert await queue.begin(2) == (1, 2, False)
    found = await queue.read(2, 1, 0, 10, 1000, 0.0)
    assert (found.first_seq, [m.items for m in found.messages]) == (3, [[b"c"], [b"d"]])


async def test_backlog_is_what_was_not_read_yet(queue: MemoryQueue) -> None:
    await queue.begin(1)
    await queue.append([message("a", items=2), message("b", items=3), message("c")])
    assert await queue.backlog() == 6
    await queue.read(1, 1, 0, 2, 1000, 0.0)
    assert await queue.backlog() == 4
    await queue.read(1, 1, 0, 2, 1000, 0.0)  # the same messages again
    assert await queue.backlog() == 4
    await queue.acknowledge(1, 1, 1, [])
    await queue.read(1, 1, 1, 10, 1000, 0.0)
    assert await queue.backlog() == 0
    await queue.begin(2)  # another reader begins after the acknowledged messages
    assert await queue.backlog() == 4


async def test_single_messages_that_are_done_give_their_room_back(queue: MemoryQueue) -> None:
    await queue.append([message(text) for text in "abcdefghij"])  # now the queue is full
    await queue.begin(1)
    await queue.read(1, 1, 0, 10, 1000, 0.0)
    await queue.acknowledge(1, 1, 0, [2, 3, 3, 9, 10, 99])
    await queue.acknowledge(1, 1, 0, [2])
    assert await queue.append([message(text) for text in "klmn"]) == [(1, n) for n in range(11, 15)]
    with pytest.raises(QueueFull):
        await queue.append([message("o")])
    await queue.begin(2)  # processed messages stay processed for the next reader
    found = await queue.read(2, 1, 0, 20, 1000, 0.0)
    held = [one.items[0].decode() for one in found.messages if not one.is_gone]
    assert held == list("adefghklmn")
    await queue.acknowledge(2, 1, 9, [])
    assert await queue.backlog() == 0 and await queue.depth() == 5


async def test_what_is_done_cannot_be_read_again() -> None:
    """Single processed messages are left out without an error. A position before the first kept
    message raises.
    """
    async with make_silo(MemoryStateStore(), MemoryMembershipTable()) as silo:
        adapter: MemoryAdapter = silo.services.part("default").adapter
        texts = [b"a", b"b", b"c", b"d"]
        await adapter.enqueue("q", [OutMessage(StreamId("n", "k"), [text]) for text in texts], 1)
        receiver, reader = adapter.receiver("q", 1), adapter.reader("q")
        await receiver.start(None)
        found = [message.token for message in await receiver.read(10, 1000, 0.0)]
        await receiver.ack(None, [found[1]])
        page = await reader.read_from(found[0], 10, 1000, None)
        assert [message.items for message in page.messages] == [[b"a"], [b"c"], [b"d"]]
        await receiver.ack(found[0])
        assert await reader.bounds() == (found[1], found[3])
        await receiver.ack(found[2])
        with pytest.raises(CursorTooOld) as refused:
            await reader.read_from(found[2], 10, 1000, None)
        assert refused.value.first == found[3]


async def test_a_page_from_the_end_leads_on_to_the_era_that_the_end_has_now() -> None:
    """A seal raised the era after the last message (seeds 44 and 46 of the resizing suite)."""

    async def bounds() -> tuple[int, int, int, int]:
        return 1, 5, 3, 9

    async def look(number: int, max_events: int, max_bytes: int) -> NumberedMessages:
        return NumberedMessages(1, number, [])

    queue: Any = SimpleNamespace(bounds=bounds, look=look)
    reader = MemoryReader(queue)
    for number, era in ((10, 3), (9, 1)):  # number 9 exists, but this read does not have it yet
        page = await reader.read_from(Token(1, number), 10, 1000, None)
        assert (page.messages, page.next) == ([], Token(era, number))


async def test_what_is_done_behind_an_older_message_is_bounded(
    queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "SPAN_MAX", 5)
    for number in range(1, 6):
        await queue.append([message("x")])
        await queue.acknowledge(1, 1, 0, [number] if number > 1 else [])
    with pytest.raises(QueueFull, match="the oldest message is not acknowledged"):
        await queue.append([message("x")])
    await queue.acknowledge(1, 1, 1, [])
    await queue.append([message("x")])


async def test_what_is_done_before_older_messages_survives_a_move() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    async with make_silo(store, table) as silo:
        queue = silo.grain(MemoryQueue, "default/q")
        await queue.append([message(text) for text in "abcd"])
        await queue.acknowledge(1, 1, 0, [1, 3])
    async with make_silo(store, table) as silo:
        queue = silo.grain(MemoryQueue, "default/q")
        assert await queue.begin(2) == (1, 0, False)
        found = await queue.read(2, 1, 0, 20, 1000, 0.0)
        assert [one.items for one in found.messages if not one.is_gone] == [[b"b"], [b"d"]]
        await queue.append([message(text) for text in "efghijkl"])
        with pytest.raises(QueueFull):
            await queue.append([message("m")])


async def test_a_full_queue_refuses_and_takes_again_after_an_acknowledgement(
    queue: MemoryQueue,
) -> None:
    await queue.append([message("a", "p", 1, items=10)])
    with pytest.raises(QueueFull, match="of 10 events .capacity_events."):
        await queue.append([message("b", "p", 2)])
    await queue.acknowledge(1, 1, 1, [])
    assert await queue.append([message("b", "p", 2)]) == [(1, 2)]


async def test_content_outlives_a_graceful_stop_and_keeps_its_numbers() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    async with make_silo(store, table) as silo:
        queue = silo.grain(MemoryQueue, "default/q")
        await queue.append([message(text, "p", at) for at, text in enumerate("abc")])
        await queue.acknowledge(3, 1, 1, [])
    async with make_silo(store, table) as silo:
        queue = silo.grain(MemoryQueue, "default/q")
        found = await queue.read(3, 1, 0, 10, 1000, 0.0)
        assert (found.era, found.first_seq, len(found.messages)) == (1, 2, 2)
        assert await queue.append([message("c", "p", 2), message("d", "p", 3)]) == [(1, 0), (1, 4)]


async def test_the_era_rises_when_the_content_was_lost() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    crashed = make_silo(store, table)
    await crashed.start()
    assert await crashed.grain(MemoryQueue, "default/q").append([message("a")]) == [(1, 1)]
    await crashed.kill()
    async with make_silo(store, MemoryMembershipTable()) as silo:
        assert await silo.grain(MemoryQueue, "default/q").append([message("b")]) == [(2, 1)]


class Flaky(MemoryStateStore):
    """Refuses the first write of each row of content."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        if "content" in key and key not in self.refused:
            self.refused.add(key)
            raise StorageUnavailable("away for a moment")
        return await super().write(key, data, expect, fence)


async def test_a_store_that_is_away_for_a_moment_costs_no_content() -> None:
    store, table = Flaky(), MemoryMembershipTable()
    for first in (1, 4):
        async with make_silo(store, table) as silo:
            queue = silo.grain(MemoryQueue, "default/q")
            await queue.append([message(text) for text in "abc"])
            found = await queue.read(1, 1, 0, 10, 1000, 0.0)
            assert (found.era, found.first_seq + len(found.messages)) == (1, first + 3)
    assert store.refused


async def test_rows_of_content_are_dropped_once_they_are_loaded() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    async with make_silo(store, table) as silo:
        await silo.grain(MemoryQueue, "default/q").append([message("a")])
    assert await store.scan("memory-queue-content/", "", 10)
    async with make_silo(store, table) as silo:
        await silo.grain(MemoryQueue, "default/q").begin(1)
        assert not await store.scan("memory-queue-content/", "", 10)


async def test_a_sequence_that_was_refused_is_accepted_when_it_comes_again(
    queue: MemoryQueue,
) -> None:
    await queue.begin(1)
    await queue.append([message("x", items=10)])
    for _ in range(2):
        with pytest.raises(QueueFull):
            await queue.append([message("a", "p", 1)])
    with pytest.raises(StreamError, match="one batch has 11 events"):
        await queue.append([message("b", "p", 1, items=11)])
    await queue.read(1, 1, 0, 10, 1000, 0.0)
    await queue.acknowledge(1, 1, 1, [])
    twice = [message("a", "p", 1), message("a", "p", 1)]
    assert await queue.append(twice) == [(1, 2), (1, 0)]
    assert await queue.backlog() == 1
    assert await queue.append([message("rest", items=9)]) == [(1, 3)]


async def test_publishes_that_wait_are_not_joined_beyond_the_capacity() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    async with make_silo(store, table) as silo:
        provider = silo.services.part("default")
        reader = silo.grain(MemoryQueue, "default/q")
        await reader.begin(1)
        message_of = OutMessage(StreamId("n", "k"), [b"x"] * 5)
        sends = [
            asyncio.ensure_future(provider.adapter.enqueue("q", [message_of], 1)) for _ in range(2)
        ]
        assert [str((await send)[0])[:8] for send in sends] == ["00000001", "00000001"]
        more = [
            asyncio.ensure_future(provider.adapter.enqueue("q", [message_of], 1)) for _ in range(4)
        ]
        outcomes = await asyncio.gather(*more, return_exceptions=True)
        assert not [one for one in outcomes if "in one batch" in str(one)]
