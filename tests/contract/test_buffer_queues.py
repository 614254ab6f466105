"""The contract of `BufferQueue`, in memory and on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import spin

from millstream.providers.ledger import LedgerBufferQueue, open_topics
from millstream.providers.memory import MemoryBufferQueue
from millstream.runtime import ConfigError, StorageUnavailable, StreamError
from millstream.streams import BufferConsumer, BufferQueue, BufferTopic

Make = Callable[[], AbstractAsyncContextManager[BufferQueue]]


@dataclass
class Span:
    trace: str
    ms: float


@asynccontextmanager
async def in_memory() -> AsyncIterator[BufferQueue]:
    yield MemoryBufferQueue()


@pytest.fixture(params=["memory", "ledger"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    @asynccontextmanager
    async def on_disk() -> AsyncIterator[BufferQueue]:
        async with open_topics(tmp_path) as topics:
            yield LedgerBufferQueue(topics)

    return in_memory if request.param == "memory" else on_disk


async def next_of(consumer: BufferConsumer[Any]) -> Sequence[Any]:
    """Return the next batch, in a loop of its own."""
    async with asyncio.timeout(10):
        return await anext(aiter(consumer))


async def fill(topic: BufferTopic[int], count: int, first: int = 0) -> None:
    await topic.producer().produce_many(range(first, first + count))


async def test_items_come_in_order_and_as_they_were(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", Span)
        (consumer,) = topic.consumers("g", batch_size=3)
        for number in range(5):
            await topic.producer().produce(Span(f"t{number}", number / 2))
        seen: list[Span] = []
        for size in (3, 2):
            batch = await next_of(consumer)
            assert len(batch) == size
            seen += batch
            await consumer.commit()
        assert seen == [Span(f"t{number}", number / 2) for number in range(5)]


async def test_every_group_sees_every_item(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        groups = [topic.consumers(name)[0] for name in ("one", "two")]
        await fill(topic, 10)
        for consumer in groups:
            assert list(await next_of(consumer)) == list(range(10))


async def test_consumers_of_a_group_share_partitions_and_lose_nothing(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int, partitions=5)
        consumers = topic.consumers("g", 2, batch_size=4, auto_commit=True)
        assert [list(one.partitions) for one in consumers] == [[0, 1, 2], [3, 4]]
        assert [one.group for one in consumers] == ["g", "g"]
        await fill(topic, 100)
        queue.close()
        seen = [item for one in consumers async for batch in one for item in batch]
        assert sorted(seen) == list(range(100))


async def test_what_is_not_committed_comes_again(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        (consumer,) = topic.consumers("g", batch_size=4)
        await fill(topic, 3)
        assert list(await next_of(consumer)) == [0, 1, 2]
        await consumer.commit(1)
        await fill(topic, 1, first=3)
        first = list(await next_of(consumer))
        assert first[:2] == [1, 2]
        await fill(topic, 1, first=4)
        assert list(await next_of(consumer))[: len(first)] == first
        await consumer.commit(len(first))
        again = await next_of(consumer)
        assert again[0] == first[-1] + 1


@pytest.mark.parametrize("auto_commit", [True, "after"])
async def test_batches_are_committed_by_themselves(make: Make, auto_commit: Any) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        (consumer,) = topic.consumers("g", batch_size=2, auto_commit=auto_commit)
        await fill(topic, 5)
        queue.close()
        assert [list(batch) async for batch in consumer] == [[0, 1], [2, 3], [4]]


async def test_a_loop_waits_for_items_and_ends_with_the_topic(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int, partitions=2)
        (consumer,) = topic.consumers("g", auto_commit=True)
        seen: list[int] = []

        async def consume() -> None:
            async for batch in consumer:
                seen.extend(batch)

        consuming = asyncio.create_task(consume())
        await spin(5)
        for number in range(6):
            await topic.producer().produce(number)
        async with asyncio.timeout(10):
            while len(seen) < 6:
                await asyncio.sleep(0)
        puts = [asyncio.ensure_future(topic.producer().produce(n)) for n in (6, 7)]
        await asyncio.sleep(0)
        queue.close()
        await asyncio.gather(*puts)
        async with asyncio.timeout(10):
            await consuming
        assert sorted(seen) == list(range(8))


async def test_after_the_end_nothing_is_taken(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        (consumer,) = topic.consumers("g")
        queue.close()
        queue.close()
        with pytest.raises(StreamError):
            await topic.producer().produce(1)
        assert [batch async for batch in consumer] == []


async def test_a_commit_without_a_batch_is_refused(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        (consumer,) = topic.consumers("g")
        (auto,) = topic.consumers("auto", auto_commit=True)
        with pytest.raises(StreamError):
            await consumer.commit()
        await fill(topic, 2)
        await next_of(consumer)
        with pytest.raises(ValueError):
            await consumer.commit(3)
        await consumer.commit()
        with pytest.raises(StreamError):
            await consumer.commit()
        await next_of(auto)
        with pytest.raises(StreamError):
            await auto.commit()


async def test_a_consumer_is_in_one_loop_at_a_time(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        (consumer,) = topic.consumers("g")
        loop = aiter(consumer)
        with pytest.raises(StreamError):
            aiter(consumer)
        waiting = asyncio.ensure_future(anext(loop))
        await spin(5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await fill(topic, 1)
        assert list(await next_of(consumer)) == [0]


async def test_a_topic_is_known_by_its_name_and_type(make: Make) -> None:
    async with make() as queue:
        numbers, words = queue.topic("t", int), queue.topic("t", str)
        assert queue.find("t", int) is numbers and queue.find("t", str) is words
        for wrong in (("t", float), ("u", int)):
            with pytest.raises(StreamError, match="there is no topic"):
                queue.find(*wrong)
        with pytest.raises(ConfigError, match="exists"):
            queue.topic("t", int)
        await numbers.producer().produce(1)
        (consumer,) = words.consumers("g")
        await words.producer().produce("one")
        assert list(await next_of(consumer)) == ["one"]


@pytest.mark.parametrize("partitions", [0, -1])
async def test_partitions_that_cannot_be_are_refused(make: Make, partitions: int) -> None:
    async with make() as queue:
        with pytest.raises(ConfigError):
            queue.topic("t", int, partitions=partitions)
        with pytest.raises(ConfigError):
            queue.topic("", int)


async def test_groups_that_cannot_be_are_refused(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int, partitions=2)
        wrongs: list[dict[str, Any]] = [{"count": 3}, {"count": 0}, {"batch_size": 0}]
        wrongs.append({"auto_commit": "before"})
        for wrong in wrongs:
            with pytest.raises(ConfigError):
                topic.consumers("g", **wrong)
        topic.consumers("g", 2)
        with pytest.raises((ConfigError, StreamError)):
            topic.consumers("g")


async def test_what_a_put_gives_is_no_coroutine(make: Make) -> None:
    async with make() as queue:
        topic = queue.topic("t", int)
        puts = [topic.producer().produce(1), topic.producer().produce_many([2, 3])]
        assert not any(asyncio.iscoroutine(put) for put in puts)
        await asyncio.gather(*puts)


async def test_a_group_on_disk_goes_on_where_the_program_before_was(tmp_path: Path) -> None:
    async with open_topics(tmp_path) as topics:
        topic = LedgerBufferQueue(topics).topic("t", int, partitions=2, key=str)
        (consumer,) = topic.consumers("g", batch_size=100)
        await topic.producer().produce_many(range(20))
        done = list(await next_of(consumer))
        await consumer.commit()
    async with open_topics(tmp_path) as topics:
        queue = LedgerBufferQueue(topics)
        (consumer,) = queue.topic("t", int, partitions=2, key=str).consumers("g")
        rest = list(await next_of(consumer))
        assert sorted(done + rest) == list(range(20))
        with pytest.raises(ConfigError, match="partitions is 3, and 2 so far"):
            other = LedgerBufferQueue(topics).topic("t", int, partitions=3)
            await other.producer().produce(1)


async def test_consumers_on_disk_that_could_not_subscribe_do_once_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_topics(tmp_path) as topics:
        opened, failures = topics.topic, 2

        async def fails(*args: Any) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise StorageUnavailable("the disk is away")
            return await opened(*args)

        monkeypatch.setattr(topics, "topic", fails)
        topic = LedgerBufferQueue(topics).topic("t", int)
        (consumer,) = topic.consumers("g")
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="the disk is away"):
                await next_of(consumer)
        await topic.producer().produce_many(range(3))
        assert list(await next_of(consumer)) == [0, 1, 2]
