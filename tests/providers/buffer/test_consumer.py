"""A consumer's turns: when it yields to other tasks, its order of partitions, its batches in
flight."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millstream.providers.memory import (
    ConcurrentUse,
    MemoryBufferQueue,
    MemoryConsumer,
    MemoryTopic,
    NothingToCommit,
)
from millstream.providers.memory.buffer.consumer import BATCHES_BEFORE_YIELD
from millstream.providers.memory.buffer.routing import partition_of_key


def topic_of(**options: Any) -> MemoryTopic[int]:
    return MemoryBufferQueue().topic("t", int, **options)


def at_once(step: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a step that ends without waiting, or "waits"."""
    try:
        step.send(None)
    except StopIteration as found:
        return found.value
    step.close()
    return "waits"


def consumer_of(topic: MemoryTopic[int], **options: Any) -> MemoryConsumer[int]:
    (consumer,) = topic.consumers("g", **options)
    return consumer


@pytest.mark.parametrize("is_loop", [False, True])
async def test_a_consumer_lets_others_run_after_as_many_batches_as_it_says(is_loop: bool) -> None:
    topic = topic_of()
    consumer = consumer_of(topic, batch_size=1, auto_commit=True)
    await topic.producer().produce_many(range(1000))
    step = aiter(consumer).__anext__ if is_loop else consumer.next_batch
    for number in range(3):
        for at in range(BATCHES_BEFORE_YIELD):
            assert at_once(step()) == [number * BATCHES_BEFORE_YIELD + at]
        assert at_once(step()) == "waits"


async def test_a_wait_for_an_item_lets_others_run_too() -> None:
    topic = topic_of()
    consumer = consumer_of(topic, batch_size=1, auto_commit=True)
    await topic.producer().produce_many(range(10))
    assert [at_once(consumer.next_batch()) for _ in range(10)] == [[at] for at in range(10)]
    waits = asyncio.ensure_future(consumer.next_batch())
    await asyncio.sleep(0)
    topic.producer().produce(10)
    assert await waits == [10]
    await topic.producer().produce_many(range(1000))
    steps = [at_once(consumer.next_batch()) for _ in range(BATCHES_BEFORE_YIELD)]
    assert steps == [*([at] for at in range(BATCHES_BEFORE_YIELD - 1)), "waits"]


async def test_the_item_that_ends_a_wait_is_served_first() -> None:
    topic = topic_of(partitions=3, key=str)
    consumer = consumer_of(topic, auto_commit=True)
    first = next(item for item in range(99) if partition_of_key(str(item), 3) == 2)
    later = next(item for item in range(99) if partition_of_key(str(item), 3) == 0)
    waits = asyncio.ensure_future(consumer.next_batch())
    await asyncio.sleep(0)
    assert all(topic.waiting)
    topic.producer().produce(first)
    assert not any(topic.waiting)  # the next item wakes nobody
    topic.producer().produce(later)
    assert await waits == [first]
    assert at_once(consumer.next_batch()) == [later]


async def test_a_loop_that_is_asked_twice_at_once_loses_no_item() -> None:
    topic = topic_of()
    loop = aiter(consumer_of(topic, auto_commit=True))
    first = asyncio.ensure_future(anext(loop))
    await asyncio.sleep(0)
    topic.producer().produce(1)  # wakes the first call, which has not run yet
    with pytest.raises(ConcurrentUse):
        await anext(loop)
    assert await first == [1]


async def test_a_batch_that_comes_again_is_counted_and_a_new_one_is_not() -> None:
    topic = topic_of(partitions=2)
    consumer = consumer_of(topic, batch_size=1)
    await topic.producer().produce_many(range(4))
    assert at_once(consumer.next_batch()) == [0]
    before, count_before = consumer.given, consumer.again_count
    consumer.commit()
    after = consumer.given
    assert (before, after, count_before) == ((0, 0), None, 0)
    assert [at_once(consumer.next_batch()) for _ in range(3)] == [[1], [2], [1]]
    assert consumer.again_count == 1
    assert consumer.given == (1, 0)


async def test_who_was_ended_has_nothing_to_commit() -> None:
    topic = topic_of()
    consumer = consumer_of(topic)
    await topic.producer().produce(1)
    assert at_once(consumer.next_batch()) == [1]
    topic.remove_group("g")
    assert at_once(consumer.next_batch()) is None
    assert consumer.given is None
    with pytest.raises(NothingToCommit):
        consumer.commit()


async def test_who_asks_while_a_consumer_lets_others_run_is_refused() -> None:
    topic = topic_of()
    consumer = consumer_of(topic, batch_size=1, auto_commit=True)
    await topic.producer().produce_many(range(1000))
    for _ in range(BATCHES_BEFORE_YIELD):
        at_once(consumer.next_batch())
    yielding = asyncio.ensure_future(consumer.next_batch())
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentUse):
        await consumer.next_batch()
    with pytest.raises(ConcurrentUse):  # a loop takes a batch that is there by another way
        await anext(aiter(consumer))
    assert await yielding == [BATCHES_BEFORE_YIELD]


async def test_another_loop_may_begin_once_one_was_left_or_has_ended() -> None:
    topic = topic_of()
    consumer = consumer_of(topic, auto_commit=True)
    left = aiter(consumer)
    with pytest.raises(ConcurrentUse):
        aiter(consumer)
    await left.aclose()
    ended = aiter(consumer)
    topic.close()
    with pytest.raises(StopAsyncIteration):
        await anext(ended)
    assert aiter(consumer) is not ended
