"""Items that a producer stores at once, items that it refuses, and its errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from millstream.providers.memory import MemoryBufferQueue, MemoryTopic, TopicClosed
from millstream.runtime import QueueFull


def topic_of(**options: Any) -> MemoryTopic[int]:
    return MemoryBufferQueue().topic("t", int, **options)


def stored(topic: MemoryTopic[int]) -> list[list[int]]:
    return [partition.read_at(0, partition.end) for partition in topic.partitions]


@pytest.mark.parametrize("options", [{}, {"capacity": 3}, {"key": str}])
def test_no_way_leads_into_a_closed_topic(options: dict[str, Any]) -> None:
    topic = topic_of(**options)
    producer = topic.producer()
    topic.close()
    with pytest.raises(TopicClosed):
        producer.produce(1)
    with pytest.raises(TopicClosed):
        producer.try_produce(1)
    for items in ([1], []):
        with pytest.raises(TopicClosed):
            producer.produce_many(items)
    assert stored(topic) == [[]]


@pytest.mark.parametrize("full_mode", ["wait", "fail"])
def test_a_batch_of_just_the_capacity_is_in_before_the_call_returns(full_mode: str) -> None:
    topic = topic_of(capacity=3, full_mode=full_mode)
    topic.producer().produce_many([1, 2, 3])
    assert stored(topic) == [[1, 2, 3]]


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_batch_is_dealt_in_turn_as_single_items_are(partitions: int) -> None:
    in_lists, one_by_one = topic_of(partitions=partitions), topic_of(partitions=partitions)
    for start, count in ((0, 1), (1, 5), (6, 0), (6, 2), (8, 4)):
        items = range(start, start + count)
        in_lists.producer().produce_many(items)
        for item in items:
            one_by_one.producer().produce(item)
    assert stored(in_lists) == stored(one_by_one)
    assert stored(in_lists) == [list(range(at, 12, partitions)) for at in range(partitions)]


def test_a_refusal_says_how_many_items_had_no_room() -> None:
    topic = topic_of(capacity=1, full_mode="fail")
    producer = topic.producer()
    producer.produce(1)
    with pytest.raises(QueueFull, match="no room for 1 items: capacity is 1"):
        producer.produce(2)
    with pytest.raises(QueueFull, match="no room for 2 items: capacity is 1"):
        producer.produce_many([2, 3])
    assert stored(topic) == [[1]]


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_wait_that_no_group_can_end_is_told_once(
    caplog: pytest.LogCaptureFixture, is_batch: bool
) -> None:
    topic = topic_of(capacity=1)
    producer = topic.producer()
    producer.produce(1)
    puts = [producer.produce_many([2]) if is_batch else producer.produce(2) for _ in range(2)]
    tasks = [asyncio.ensure_future(put) for put in puts]
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(0)
    assert len(caplog.records) == 1
    topic.close()
    await asyncio.gather(*tasks, return_exceptions=True)
