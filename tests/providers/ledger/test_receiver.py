"""The read side of a queue in its owner: its reports to the agent about lost messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.providers.ledger.worlds import Process, World, in_a_world

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.queues.desk import Desk
from millstream.providers.ledger.queues.form import in_topic
from millstream.providers.ledger.queues.receiver import LedgerQueueReader, LedgerReceiver
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import CursorTooOld, QueueFenced, QueueUnavailable
from millstream.streams import OutMessage, StreamId, Token

ERA = 7


class Opens:
    """Opens the topic `t` for any queue, with a small backlog limit."""

    def __init__(self, process: Process) -> None:
        self._topics = process.topics

    async def open(self, queue: str, epoch: int, /) -> Topic:
        options = LedgerTopicOptions(backlog_bytes_max=4000, backlog_policy="evict")
        settings = LedgerTopicSettings(ledger_entries_max=5)
        return await self._topics.open("t", epoch, options, settings)

    async def last_epoch(self, queue: str, /) -> int:
        return await self._topics.last_epoch("t")


async def fill(desk: Desk, count: int) -> None:
    topic = desk.topic("q")
    assert topic is not None
    for number in range(count):
        item = f"{number}".encode().ljust(500)
        await topic.append([in_topic(OutMessage(StreamId("words", "k"), [item]))])


def test_a_gap_that_a_read_meets_is_told_by_the_start_that_follows_and_once() -> None:
    async def main(world: World) -> None:
        process = world.process()
        desk = Desk(Opens(process), process.tasks)
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(None)
        await fill(desk, 1)
        (one,) = await receiver.read(1, 10**6, 0.0)
        assert one.token == Token(ERA, 1)
        await fill(desk, 40)
        with pytest.raises(QueueUnavailable, match="were dropped; start a new receiver"):
            await receiver.read(1, 10**6, 0.0)
        await receiver.aclose()
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        with pytest.raises(CursorTooOld) as gone:
            await receiver.start(one.token)
        assert isinstance(gone.value.first, Token) and gone.value.first.seq > 20
        (next_one,) = await receiver.read(1, 10**6, 0.0)
        assert next_one.token == gone.value.first
        await receiver.aclose()
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(next_one.token)
        assert (await receiver.read(1, 10**6, 0.0))[0].token.seq == next_one.token.seq + 1
        await receiver.aclose()
        await desk.aclose()

    in_a_world(main)


def test_the_backlog_is_what_was_not_read_and_not_what_is_not_acknowledged() -> None:
    async def main(world: World) -> None:
        process = world.process()
        desk = Desk(Opens(process), process.tasks)
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(None)
        await fill(desk, 4)
        assert await receiver.backlog() == 4
        (one,) = await receiver.read(1, 10**6, 0.0)
        assert await receiver.backlog() == 3
        while await receiver.read(9, 10**6, 0.0):
            pass
        assert await receiver.backlog() == 0
        await receiver.ack(one.token)
        assert await receiver.backlog() == 0
        await receiver.aclose()
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(Token(ERA, 3))
        assert await receiver.backlog() == 1
        await receiver.aclose()
        await desk.aclose()

    in_a_world(main)


def test_a_gap_that_was_not_told_is_told_by_the_next_owner() -> None:
    async def main(world: World) -> None:
        process = world.process()
        desk = Desk(Opens(process), process.tasks)
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(None)
        await fill(desk, 40)
        with pytest.raises(QueueUnavailable):
            await receiver.read(1, 10**6, 0.0)
        await desk.aclose()
        other = world.process()
        desk = Desk(Opens(other), other.tasks)
        receiver = LedgerReceiver(desk, "q", 2, ERA)
        with pytest.raises(CursorTooOld):
            await receiver.start(None)
        await receiver.aclose()
        await desk.aclose()

    in_a_world(main)


def test_a_queue_whose_rows_are_damaged_is_unavailable_and_says_which_row() -> None:
    async def main(world: World) -> None:
        process = world.process()
        desk = Desk(Opens(process), process.tasks)
        receiver = LedgerReceiver(desk, "q", 1, ERA)
        await receiver.start(None)
        await fill(desk, 6)
        topic = desk.topic("q")
        assert topic is not None
        beside = LedgerQueueReader(desk, "q", process.topics.reader("t"), ERA)
        first, _ = await beside.bounds()
        assert first is not None
        await desk.aclose()
        world.bookies.ledgers.pop(topic.record.spans[0].ledger)
        with pytest.raises(QueueUnavailable, match=r"q: topic t: its row \(topics/\) lists"):
            await beside.read_from(first, 9, 10**6, None)
        row = world.store.get("ledger/c/topics/t")
        assert row is not None
        world.store.put("ledger/c/topics/t", row.data[:-1], row.etag, 0)
        for act in (beside.bounds(), beside.seek(datetime.now(UTC))):
            with pytest.raises(QueueUnavailable, match="q: row ledger/c/topics/t is damaged"):
                await act
        await receiver.aclose()
        await beside.aclose()

    in_a_world(main)


def test_the_next_owner_opens_a_topic_that_was_opened_too_often_in_one_epoch() -> None:
    """The owner of epoch 1 has used all topic epochs from 1,024 to 2,047."""

    async def main(world: World) -> None:
        process = world.process()
        topic = await process.topics.open("t", 2047)
        await topic.aclose()
        desk = Desk(Opens(process), process.tasks)
        with pytest.raises(QueueUnavailable, match="opened 1024 times in epoch 1"):
            await desk.own("q", 1)
        with pytest.raises(QueueUnavailable, match="opened 1024 times in epoch 1"):
            await desk.stand_in("q")
        with pytest.raises(QueueFenced):
            await desk.own("q", 0)
        assert (await desk.own("q", 2)).epoch == 2048
        await desk.aclose()

    in_a_world(main)


def test_a_read_of_an_owner_that_finds_damage_is_a_read_that_failed() -> None:
    """The agent therefore restarts later, and publishers continue in the meantime."""

    async def main(world: World) -> None:
        process = world.process()
        desk = Desk(Opens(process), process.tasks)
        await desk.own("q", 1)
        await fill(desk, 7)
        await desk.aclose()
        desk = Desk(Opens(process), process.tasks)
        receiver = LedgerReceiver(desk, "q", 2, ERA)
        await receiver.start(None)
        topic = desk.topic("q")
        assert topic is not None and len(topic.record.spans) == 2
        world.bookies.ledgers.pop(topic.record.spans[0].ledger)
        with pytest.raises(QueueUnavailable, match=r"q: topic t: its row \(topics/\) lists"):
            await receiver.read(9, 10**6, 0.0)
        await receiver.aclose()
        assert desk.topic("q") is topic
        await desk.aclose()

    in_a_world(main)
