"""Queues in ledgers keep messages for readers beside their owner, by cursors of their topics."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.test_receiver import Opens
from tests.providers.ledger.worlds import Process, World, in_a_world, plain

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.queues.desk import Desk
from millstream.providers.ledger.queues.target import (
    READER,
    WriterAnswer,
    WriterReason,
    let_go_here,
    retain_here,
)
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import ConfigError, CursorTooOld, StorageError

SMALL = LedgerTopicSettings(ledger_entries_max=5)
TEND_S = 61.0


class Owner:
    """A silo that writes the queue, with ledgers of five entries."""

    def __init__(self, world: World, options: LedgerTopicOptions | None = None) -> None:
        self.process = world.process()
        self.desk = Desk(self, self.process.tasks)
        self._options = options

    async def open(self, queue: str, epoch: int, /) -> Topic:
        return await self.process.topics.open("t", epoch, self._options, SMALL)

    async def last_epoch(self, queue: str, /) -> int:
        return await self.process.topics.last_epoch("t")

    async def begin(self, epoch: int) -> Topic:
        """Own the queue as an agent does, with its own cursor."""
        topic = await self.desk.own("q", epoch)
        await topic.cursors.open("agent")
        return topic

    async def retain(self, reader: str, number: int | None) -> None:
        (await retain_here(self.desk, "q", reader, number)).check()

    async def let_go(self, reader: str) -> None:
        (await let_go_here(self.desk, "q", reader)).check()


async def handled(topic: Topic, count: int) -> None:
    """Append messages, and let the owner acknowledge them."""
    for _ in range(count):
        await topic.append(plain("x"))
    cursor = await topic.cursors.open("agent")
    cursor.acknowledge(topic.reader.end - 1)
    await cursor.flush()
    await asyncio.sleep(TEND_S)


def test_what_readers_have_not_done_is_kept_and_the_rest_goes() -> None:
    async def main(world: World) -> None:
        owner = Owner(world)
        topic = await owner.begin(1)
        await handled(topic, 12)
        assert topic.reader.first == 11  # no other reader retains messages
        await owner.retain("spark", None)
        await owner.retain("other", 13)
        await handled(topic, 20)
        assert topic.reader.first == 11
        await owner.retain("spark", 22)
        await asyncio.sleep(TEND_S)
        assert topic.reader.first == 11  # retained by the other reader
        await owner.let_go("other")
        await asyncio.sleep(TEND_S)
        assert topic.reader.first == 21  # the first number of the ledger that contains 22
        assert [one.number for one in await topic.reader.read(22, 3, 2**20)] == [22, 23, 24]
        await owner.let_go("spark")
        await asyncio.sleep(TEND_S)
        assert topic.reader.first == 31

    in_a_world(main)


def test_it_is_kept_by_whoever_writes_the_queue_next() -> None:
    async def main(world: World) -> None:
        owner = Owner(world)
        topic = await owner.begin(1)
        await handled(topic, 3)
        await owner.retain("spark", 2)
        owner.process.kill()
        owner = Owner(world)
        topic = await owner.begin(2)
        await handled(topic, 20)
        assert topic.reader.first == 1
        assert await owner.process.topics.marks("t") == {"agent": 23, READER + "spark": 1}
        await owner.retain("spark", 17)
        await owner.retain("spark", 4)  # this request came too late
        assert (await owner.process.topics.marks("t"))[READER + "spark"] == 16
        await asyncio.sleep(TEND_S)
        assert topic.reader.first in range(10, 18)
        with pytest.raises(CursorTooOld):
            await topic.reader.read(1, 1, 2**20)

    in_a_world(main)


def test_many_at_a_time_are_one() -> None:
    async def main(world: World) -> None:
        owner = Owner(world)
        topic = await owner.begin(1)
        await asyncio.gather(*(topic.append(plain("x")) for _ in range(9)))
        await asyncio.gather(*(owner.retain("r", number) for number in (3, 9, 5, 1)))
        assert (await owner.process.topics.marks("t"))[READER + "r"] == 8
        await asyncio.gather(owner.let_go("r"), owner.let_go("r"), owner.let_go("nobody"))
        assert set(await owner.process.topics.marks("t")) == {"agent"}

    in_a_world(main)


def test_who_does_not_write_the_queue_says_so() -> None:
    async def main(world: World) -> None:
        owner = Owner(world)
        answer = await retain_here(owner.desk, "q", "r", 1)
        assert answer.is_elsewhere
        await owner.begin(1)
        await Owner(world).begin(2)
        assert (await retain_here(owner.desk, "q", "r", 1)).is_elsewhere
        assert (await let_go_here(owner.desk, "q", "r")).is_elsewhere

    in_a_world(main)


def test_too_many_readers_are_refused_and_those_that_are_there_go_on() -> None:
    async def main(world: World) -> None:
        owner = Owner(world, LedgerTopicOptions(cursors_max=3))
        await owner.begin(1)
        for name in ("a", "b"):
            await owner.retain(name, None)
        with pytest.raises(ConfigError, match=r"has 3 cursors, cursors_max is 3: drop one"):
            await owner.retain("c", None)
        await owner.retain("a", None)
        await owner.let_go("b")
        await owner.retain("c", None)

    in_a_world(main)


def test_rows_that_cannot_be_written_are_tried_again_by_who_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: object) -> None:
        raise StorageError("no disk")

    async def main(world: World) -> None:
        owner = Owner(world)
        topic = await owner.begin(1)
        with monkeypatch.context() as broken:
            broken.setattr(type(topic.cursors), "open", fails)
            answer = await retain_here(owner.desk, "q", "r", 1)
            assert answer == WriterAnswer(reason=WriterReason.UNAVAILABLE, text="no disk")
        await owner.retain("r", 1)

    in_a_world(main)


def test_a_reader_that_is_evicted_hears_of_what_is_gone() -> None:
    """With `backlog_policy="evict"`, publishers have priority over readers."""

    async def main(world: World) -> None:
        process: Process = world.process()
        desk = Desk(Opens(process), process.tasks)
        topic = await desk.own("q", 1)
        await retain_here(desk, "q", "r", 1)
        for _ in range(40):
            await topic.append(plain("x" * 500))
        await asyncio.sleep(TEND_S)
        with pytest.raises(CursorTooOld):
            await topic.reader.read(1, 1, 2**20)
        mark = (await process.topics.marks("t"))[READER + "r"]
        assert mark + 1 >= topic.reader.first > 20

    in_a_world(main)
