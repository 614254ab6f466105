"""The fixed cases of the buffer queue, and the defects of the design that it replaces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conditions import until

from millstream.providers.memory import (
    ConcurrentUse,
    MemoryBufferQueue,
    MemoryConsumer,
    MemoryTopic,
    NothingToCommit,
    Offset,
    Retries,
    TopicClosed,
    TopicOptions,
    UnknownTopic,
)
from millstream.providers.memory.buffer.routing import deal, partition_of_key
from millstream.runtime import ConfigError, QueueFull
from millstream.streams import BufferQueue


def topic_of(**options: Any) -> MemoryTopic[int]:
    return MemoryBufferQueue().topic("t", int, **options)


async def batch_of(consumer: MemoryConsumer[int]) -> list[int]:
    """Return the next batch, which must be available."""
    async with asyncio.timeout(5):
        return await anext(aiter(consumer))


async def fill(topic: MemoryTopic[int], items: Sequence[int]) -> None:
    for item in items:
        await topic.producer().produce(item)


def has_none(consumer: MemoryConsumer[int]) -> bool:
    """Would the consumer wait at this moment?"""
    step = consumer.next_batch()
    try:
        step.send(None)
    except StopIteration:
        return False
    step.close()
    return True


# --- vectors -------------------------------------------------------------------------------------


async def test_vector_2_two_consumers_get_the_even_and_the_odd_items() -> None:
    topic = topic_of(partitions=2)
    even, odd = topic.consumers("g", 2, auto_commit=True)
    await fill(topic, range(10))
    assert (await batch_of(even), await batch_of(odd)) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


async def test_vector_3_a_batch_comes_again_until_it_is_committed() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g", batch_size=7)
    await fill(topic, range(10))
    assert await batch_of(consumer) == await batch_of(consumer) == list(range(7))
    assert consumer.again_count == 1
    await consumer.commit()
    assert await batch_of(consumer) == [7, 8, 9]


async def test_vector_4_room_is_given_in_order_and_a_cancelled_one_gives_way() -> None:
    topic = topic_of(capacity=3)
    (consumer,) = topic.consumers("g", batch_size=3)
    await fill(topic, [0, 1, 2])
    three = asyncio.ensure_future(topic.producer().produce_many([3, 4, 5]))
    one = asyncio.ensure_future(topic.producer().produce(6))
    await asyncio.sleep(0)
    await batch_of(consumer)
    await consumer.commit(1)
    await asyncio.sleep(0)
    assert not three.done() and not one.done()
    three.cancel()
    await asyncio.gather(three, return_exceptions=True)
    await one
    assert await batch_of(consumer) == [1, 2, 6]


async def test_vector_5_a_group_that_comes_late_begins_at_what_is_not_released() -> None:
    topic = topic_of(capacity=1)
    (first,) = topic.consumers("g1")
    await fill(topic, [1])
    await batch_of(first)
    await first.commit()
    await fill(topic, [2])
    (late,) = topic.consumers("g2")
    assert await batch_of(late) == [2]


async def test_vector_6_a_batch_beyond_the_capacity_goes_in_by_slices() -> None:
    topic = topic_of(capacity=4)
    (consumer,) = topic.consumers("g")
    put = asyncio.ensure_future(topic.producer().produce_many(range(10)))
    seen: list[int] = []
    for _ in range(1):
        seen += await batch_of(consumer)
        await consumer.commit()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    seen += await batch_of(consumer)
    await consumer.commit()
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7]
    assert has_none(consumer)
    await fill(topic, [20, 21, 22, 23])  # all capacity is free again


async def test_vector_8_a_batch_does_not_change_when_its_segment_is_used_again() -> None:
    topic = topic_of(segment_size=4)
    (consumer,) = topic.consumers("g", batch_size=4)
    await fill(topic, range(4))
    batch = await batch_of(consumer)
    await consumer.commit()
    await fill(topic, range(4, 16))
    assert batch == [0, 1, 2, 3]


async def test_vector_9_a_second_commit_is_refused_and_skips_nothing() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g")
    await fill(topic, [1, 2])
    await batch_of(consumer)
    await consumer.commit()
    with pytest.raises(NothingToCommit):
        consumer.commit()
    await fill(topic, [3, 4, 5])
    assert await batch_of(consumer) == [3, 4, 5]


async def test_vector_10_without_a_group_items_are_kept_dropped_or_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, dropping = topic_of(segment_size=4), topic_of(segment_size=4, on_no_group="drop_oldest")
    await fill(kept, range(40))
    await fill(dropping, range(40))
    assert (kept.figures()["segments"], dropping.figures()["segments"]) == (10, 2)
    blocking = topic_of(capacity=2, on_no_group="block")
    await fill(blocking, [0, 1])
    with caplog.at_level(logging.WARNING):
        waits = [asyncio.ensure_future(blocking.producer().produce(at)) for at in (2, 3)]
        await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    assert [record.message for record in caplog.records] == [
        "topic 't' of int is full (2 items) and has no group, so its producers wait for a group"
    ]
    (consumer,) = blocking.consumers("g")
    assert await batch_of(consumer) == [0, 1]
    await consumer.commit()
    await asyncio.gather(*waits)
    assert await batch_of(consumer) == [2, 3]


# --- topics and groups ---------------------------------------------------------------------------


async def test_a_topic_is_another_one_under_another_name_or_for_another_type() -> None:
    queue = MemoryBufferQueue()
    numbers, texts, others = queue.topic("a", int), queue.topic("a", str), queue.topic("b", int)
    consumers = [topic.consumers("g", auto_commit=True)[0] for topic in (numbers, others)]
    (reader,) = texts.consumers("g")
    await numbers.producer().produce(1)
    await texts.producer().produce("x")
    await others.producer().produce(2)
    assert [await batch_of(consumer) for consumer in consumers] == [[1], [2]]
    assert await anext(aiter(reader)) == ["x"]
    assert queue.find("a", str) is texts
    with pytest.raises(
        UnknownTopic, match=r"no topic 'b' of str; existing topics: topic 'a' of int, "
    ):
        queue.find("b", str)
    with pytest.raises(ConfigError, match="exists: use find"):
        queue.topic("a", int)


async def test_groups_are_independent() -> None:
    topic = topic_of()
    (one,), (two,) = topic.consumers("one", batch_size=2), topic.consumers("two", batch_size=3)
    await fill(topic, range(4))
    assert await batch_of(one) == [0, 1]
    await one.commit()
    assert (await batch_of(two), await batch_of(one)) == ([0, 1, 2], [2, 3])
    assert topic.figures()["depth"] == {"one": 2, "two": 4}


@pytest.mark.parametrize(
    ("partitions", "consumers", "sizes"),
    [
        (18, 3, [6, 6, 6]),
        (18, 4, [5, 5, 4, 4]),
        (18, 5, [4, 4, 4, 3, 3]),
        (18, 16, [2, 2, *[1] * 14]),
        (1, 1, [1]),
    ],
)
def test_partitions_are_dealt_in_even_ranges(
    partitions: int, consumers: int, sizes: list[int]
) -> None:
    found = deal(partitions, consumers)
    assert [len(one) for one in found] == sizes
    assert [at for one in found for at in one] == list(range(partitions))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": 3}, "3 consumers for 2 partitions"),
        ({"count": 0}, "0 consumers"),
        ({"count": True}, "count is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"auto_commit": "before"}, "auto_commit is 'before'"),
        ({"start": "now"}, "start is 'now'"),
        ({"group": ""}, "the name of a group is empty"),
    ],
)
async def test_a_group_that_cannot_work_is_refused_and_leaves_nothing(
    arguments: dict[str, Any], text: str
) -> None:
    topic = topic_of(partitions=2)
    with pytest.raises(ConfigError, match=text):
        topic.consumers(**{"group": "g", **arguments})
    topic.consumers("g", 2)
    with pytest.raises(ConfigError, match="group 'g' exists"):
        topic.consumers("g")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 70_000}, "at most 65536"),
        ({"capacity": 0}, "capacity"),
        ({"segment_size": 0}, "segment_size"),
        ({"full_mode": "drop"}, "full_mode is 'drop'; it must be 'wait' or 'fail'"),
        ({"on_no_group": "drop"}, "on_no_group is 'drop'"),
        ({"on_no_group": "block"}, "needs a capacity"),
    ],
)
def test_a_topic_that_cannot_work_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        topic_of(**arguments)


async def test_a_group_may_begin_with_what_comes() -> None:
    topic = topic_of()
    await fill(topic, [1, 2])
    (consumer,) = topic.consumers("g", start="latest")
    await fill(topic, [3])
    assert await batch_of(consumer) == [3]


async def test_a_removed_group_gives_its_room_back_and_ends_its_loops() -> None:
    topic = topic_of(capacity=2)
    (slow,), (quick,) = topic.consumers("slow"), topic.consumers("quick", auto_commit=True)
    await fill(topic, [1, 2])
    await batch_of(quick)
    put = asyncio.ensure_future(topic.producer().produce(3))
    await asyncio.sleep(0)
    assert not put.done()
    topic.remove_group("slow")
    await put
    assert [batch async for batch in slow] == []
    assert await batch_of(quick) == [3]


# --- consuming -----------------------------------------------------------------------------------


async def test_a_consumer_waits_until_there_is_something_and_leaves_nothing_behind() -> None:
    topic = topic_of(partitions=3)
    (consumer,) = topic.consumers("g", auto_commit=True)
    wait = asyncio.ensure_future(batch_of(consumer))
    await asyncio.sleep(0)
    assert all(topic.waiting)
    await fill(topic, [1])
    assert await wait == [1]
    assert not any(topic.waiting)
    cancelled = asyncio.ensure_future(batch_of(consumer))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert not any(topic.waiting)
    await fill(topic, [2])
    assert await batch_of(consumer) == [2]


async def test_an_item_that_meets_a_cancellation_is_not_lost() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g")
    wait = asyncio.ensure_future(batch_of(consumer))
    await asyncio.sleep(0)
    await topic.producer().produce(1)  # wakes the consumer
    wait.cancel()  # before the consumer's task runs
    assert (await asyncio.gather(wait, return_exceptions=True))[0] is not None
    assert await batch_of(consumer) == [1]


async def test_a_partition_with_items_is_served_within_as_many_batches_as_there_are() -> None:
    topic = topic_of(partitions=3)
    (consumer,) = topic.consumers("g", batch_size=1, auto_commit=True)
    await fill(topic, range(30))
    seen = [(await batch_of(consumer))[0] % 3 for _ in range(9)]
    assert seen == [0, 1, 2] * 3


async def test_a_second_loop_at_a_time_is_refused_and_one_after_the_other_is_not() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g")
    await fill(topic, [1])
    async for _ in consumer:
        with pytest.raises(ConcurrentUse):
            async for _ in consumer:
                raise AssertionError("a second loop")
        break
    async for batch in consumer:
        assert batch == [1]
        await consumer.commit()
        break
    one = asyncio.ensure_future(batch_of(consumer))
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentUse):
        await batch_of(consumer)
    one.cancel()


@pytest.mark.parametrize(("mode", "lost"), [(True, [0, 1]), ("after", []), (False, [])])
async def test_what_a_failing_handler_loses_is_what_auto_commit_says(
    mode: Any, lost: list[int]
) -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g", batch_size=2, auto_commit=mode)
    await fill(topic, range(4))
    with pytest.raises(ValueError, match="odd"):
        async for _ in consumer:
            raise ValueError("odd")
    seen: list[int] = []
    async for batch in consumer:
        seen += batch
        if mode is False:
            await consumer.commit()
        if seen[-1] == 3:
            break
    assert seen == [at for at in range(4) if at not in lost]


async def test_a_consumer_that_commits_by_itself_takes_no_commit() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g", auto_commit=True)
    await fill(topic, [1])
    await batch_of(consumer)
    with pytest.raises(NothingToCommit, match="auto_commit=True"):
        consumer.commit()


async def test_a_consumer_that_always_finds_something_lets_others_run() -> None:
    topic = topic_of()
    (consumer,) = topic.consumers("g", batch_size=1, auto_commit=True)
    await fill(topic, range(1000))
    rounds = 0

    async def other() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    count = 0
    async for _ in consumer:
        count += 1
        if count == 1000:
            break
    task.cancel()
    assert rounds >= 10


async def test_a_closed_topic_takes_nothing_and_its_consumers_end_after_the_rest() -> None:
    queue = MemoryBufferQueue()
    topic = queue.topic("t", int, capacity=3)
    (consumer,) = topic.consumers("g")
    await fill(topic, [1, 2, 3])
    waiting = asyncio.ensure_future(topic.producer().produce(4))
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(TopicClosed, match="closed: 0 items were accepted, the"):
        await waiting
    for put in (topic.producer().produce, topic.producer().try_produce):
        with pytest.raises(TopicClosed):
            put(5)
    seen: list[int] = []
    async for batch in consumer:
        seen += batch
        await consumer.commit()
    assert seen == [1, 2, 3]


async def test_offsets_are_told_as_generation_and_index() -> None:
    topic = topic_of(partitions=2)
    (consumer,) = topic.consumers("g", auto_commit=True)
    await fill(topic, range(3))
    await batch_of(consumer)
    assert consumer.offsets() == {0: Offset(0, 2), 1: Offset(0, 0)}


# --- producing -----------------------------------------------------------------------------------


async def test_a_full_topic_that_is_not_to_wait_refuses_and_changes_nothing() -> None:
    topic = topic_of(capacity=10, partitions=3, full_mode="fail")
    producer = topic.producer()
    (consumer,) = topic.consumers("g", auto_commit=True)
    await producer.produce_many(range(9))
    with pytest.raises(QueueFull, match="has no room for 2 items: capacity is 10"):
        producer.produce_many([20, 21])
    with pytest.raises(QueueFull):
        producer.produce_many(range(11))
    assert producer.try_produce(9) and not producer.try_produce(10)
    with pytest.raises(QueueFull):
        producer.produce(10)
    assert sorted([at for _ in range(3) for at in await batch_of(consumer)]) == list(range(10))
    await producer.produce(10)  # refused items moved no partition's turn
    assert [partition.end for partition in topic.partitions] == [4, 4, 3]


async def test_round_robin_is_even_with_single_items_and_batches_mixed() -> None:
    topic = topic_of(partitions=4, segment_size=8)
    topic.consumers("g")
    await fill(topic, range(7))
    await topic.producer().produce_many(range(7, 512))
    await fill(topic, range(512, 1024))
    assert topic.depth("g") == [256] * 4
    assert [partition.read_at(0, 3) for partition in topic.partitions] == [
        [at, at + 4, at + 8] for at in range(4)
    ]


async def test_items_of_a_key_are_in_one_partition_in_order() -> None:
    topic = topic_of(partitions=4, key=lambda item: str(item % 10))
    await fill(topic, range(50))
    await topic.producer().produce_many(range(50, 100))
    stored = [partition.read_at(0, 200) for partition in topic.partitions]
    for key in range(10):
        homes = [items for items in stored if key in {item % 10 for item in items}]
        assert len(homes) == 1
        assert [item for item in homes[0] if item % 10 == key] == list(range(key, 100, 10))


def test_keys_go_where_they_always_went() -> None:
    assert [partition_of_key(key, 8) for key in ("", "a", "trace-1", "日本")] == [2, 7, 4, 0]


async def test_a_selector_that_raises_takes_no_room_and_no_item() -> None:
    def key(item: int) -> str:
        if item == 3:
            raise ValueError("three")
        return str(item)

    topic = topic_of(capacity=4, key=key, partitions=2)
    topic.consumers("g")
    with pytest.raises(ValueError, match="three"):
        topic.producer().produce(3)
    with pytest.raises(ValueError, match="three"):
        topic.producer().produce_many([1, 3])
    with pytest.raises(TypeError, match="the key of an item is 7"):
        topic_of(key=lambda item: 7).producer().produce(1)
    await topic.producer().produce_many([1, 2, 4, 5])
    assert sum(topic.depth("g")) == 4


async def test_items_of_other_threads_come_in_order_each() -> None:
    topic = topic_of(partitions=1)
    (consumer,) = topic.consumers("g", auto_commit=True)

    def produce(first: int) -> None:
        for at in range(500):
            topic.produce_threadsafe(first + at)

    threads = [threading.Thread(target=produce, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    async with asyncio.timeout(20):
        async for batch in consumer:
            seen += batch
            if len(seen) == 1000:
                break
    for thread in threads:
        thread.join()
    for first in (0, 1000):
        mine = [item for item in seen if first <= item < first + 500]
        assert mine == list(range(first, first + 500))


async def test_items_of_other_threads_wait_for_room_and_have_a_limit() -> None:
    topic = MemoryTopicOf(capacity=1, handover_max=2)
    with pytest.raises(ConfigError, match="knows no event loop yet"):
        topic.produce_threadsafe(0)
    (consumer,) = topic.consumers("g", auto_commit=True)
    for item in range(2):
        topic.produce_threadsafe(item)
    with pytest.raises(QueueFull, match="handover_max"):
        topic.produce_threadsafe(2)
    assert await batch_of(consumer) == [0]
    assert await batch_of(consumer) == [1]


def MemoryTopicOf(**options: Any) -> MemoryTopic[int]:
    return MemoryTopic("t", int, TopicOptions(**options))


# --- push ----------------------------------------------------------------------------------------


async def test_a_handler_gets_every_batch_and_a_stop_waits_for_it() -> None:
    topic = topic_of(partitions=2)
    seen: list[int] = []
    gate = asyncio.Event()

    async def handler(batch: list[int]) -> None:
        await gate.wait()
        seen.extend(batch)

    group = topic.subscribe("g", handler, concurrency=2, batch_size=3)
    await fill(topic, range(6))
    await asyncio.sleep(0)
    stop = asyncio.ensure_future(group.stop())
    await asyncio.sleep(0)
    gate.set()
    await stop
    assert sorted(seen) == list(range(6)) and topic.depth("g") == [0, 0]


async def test_a_failed_batch_comes_again_and_after_all_attempts_is_given_up() -> None:
    from millstream.streams import Backoff

    topic, dead = topic_of(), topic_of()
    (dead_reader,) = dead.consumers("g", auto_commit=True)
    calls: list[list[int]] = []

    async def handler(batch: list[int]) -> None:
        calls.append(batch)
        if 1 in batch:
            raise ValueError("odd")

    async def bury(batch: list[int], error: Exception) -> None:
        await dead.producer().produce_many(batch)

    retries = Retries(3, Backoff(0.001, 1, 0.001), exhausted=bury)
    group = topic.subscribe("g", handler, batch_size=1, retries=retries)
    await fill(topic, [0, 1, 2])
    await until(lambda: topic.depth("g") == [0])
    assert calls == [[0], [1], [1], [1], [2]]
    assert await batch_of(dead_reader) == [1]
    await group.stop()


async def test_a_handler_that_is_cancelled_by_itself_gets_its_batch_again() -> None:
    """The task's cancellation count, left from an earlier batch, must not change the retry."""
    from millstream.streams import Backoff

    topic, calls = topic_of(), list[int]()

    async def handler(batch: list[int]) -> None:
        calls.extend(batch)
        task = asyncio.current_task()
        assert task is not None
        if batch == [0]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        elif calls.count(1) == 1:
            raise asyncio.CancelledError

    retries = Retries(3, Backoff(0.001, 1, 0.001))
    group = topic.subscribe("g", handler, batch_size=1, retries=retries)
    await fill(topic, [0, 1, 2])
    await until(lambda: topic.depth("g") == [0])
    assert calls == [0, 1, 1, 2]
    await group.stop()


async def test_a_group_that_stops_at_a_failure_keeps_the_batch() -> None:

    topic = topic_of(partitions=2)

    async def handler(batch: list[int]) -> None:
        raise ValueError("odd")

    retries = Retries(1, on_exhausted="stop")
    group = topic.subscribe("g", handler, concurrency=2, retries=retries)
    await fill(topic, [0, 1])
    await until(lambda: group.failed is not None)
    await group.stop()
    assert isinstance(group.failed, ValueError) and topic.depth("g") == [1, 1]


async def test_a_handler_that_commits_may_do_so_in_part() -> None:
    topic = topic_of()
    calls: list[list[int]] = []

    async def handler(batch: list[int], commit: Any) -> None:
        calls.append(batch)
        await commit(1)

    group = topic.subscribe("g", handler, commit="manual")
    await topic.producer().produce_many(range(3))
    await until(lambda: topic.depth("g") == [0])
    await group.stop()
    assert calls == [[0, 1, 2], [1, 2], [2]]


def test_the_memory_queue_is_a_buffer_queue() -> None:
    queue: BufferQueue = MemoryBufferQueue()
    assert queue.topic("t", int).name == "t"


ODD: Any = 5


async def nothing(batch: list[int]) -> None: ...


# --- usage that users tried ----------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 3])
async def test_items_that_other_threads_put_before_the_end_are_in(capacity: int | None) -> None:
    topic = topic_of(partitions=2, capacity=capacity)
    (consumer,) = topic.consumers("g", auto_commit="after")

    def produce() -> None:
        for item in range(50):
            topic.produce_threadsafe(item)

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()
    topic.close()
    topic.close()
    assert sorted([item async for batch in consumer for item in batch]) == list(range(50))
    with pytest.raises(TopicClosed):
        topic.produce_threadsafe(50)


async def test_an_item_of_another_thread_without_a_key_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic: MemoryTopic[Any] = topic_of(key=lambda item: item)
    (consumer,) = topic.consumers("g", auto_commit=True)
    for item in ("a", 5, "b"):
        topic.produce_threadsafe(item)
    await until(lambda: topic.depth("g") == [2])
    assert list(map(str, await batch_of(consumer))) == ["a", "b"]
    assert "the key function failed for an item" in caplog.text


async def test_who_stops_waiting_for_the_end_of_a_group_ends_nothing() -> None:
    topic, seen = topic_of(), list[int]()

    async def handler(batch: list[int]) -> None:
        seen.extend(batch)

    group = topic.subscribe("g", handler)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await group.wait_drained()
    await topic.producer().produce(1)
    topic.close()
    await group.wait_drained()
    assert seen == [1]


async def test_a_handler_that_awaited_something_cancelled_has_failed_and_no_more() -> None:
    topic, calls = topic_of(), list[list[int]]()

    async def handler(batch: list[int]) -> None:
        calls.append(batch)
        if len(calls) == 1:
            raise asyncio.CancelledError

    group = topic.subscribe("g", handler)
    await topic.producer().produce(1)
    await until(lambda: topic.depth("g") == [0])
    await group.stop()
    assert calls == [[1], [1]] and group.failed is None


async def test_a_last_resort_that_fails_stops_the_group_and_keeps_the_batch() -> None:
    topic = topic_of()

    async def handler(batch: list[int]) -> None:
        raise ValueError("odd")

    async def bury(batch: list[int], error: Exception) -> None:
        raise KeyError("bury")

    group = topic.subscribe("g", handler, retries=Retries(1, exhausted=bury))
    await topic.producer().produce(1)
    await until(lambda: group.failed is not None)
    with pytest.raises(KeyError):
        await group.wait_drained()
    assert topic.depth("g") == [1]


@pytest.mark.parametrize(
    "subscribe",
    [
        lambda topic: topic.subscribe("g", None),
        lambda topic: topic.subscribe("g", lambda batch: None),
        lambda topic: topic.subscribe("g", nothing, retries=5),
        lambda topic: Retries(backoff=ODD),
        lambda topic: Retries(exhausted=ODD),
        lambda topic: Retries(attempts_max=-1),
    ],
)
async def test_a_push_group_that_cannot_work_is_refused(subscribe: Any) -> None:
    topic = topic_of()
    with pytest.raises(ConfigError):
        subscribe(topic)
    assert topic.groups == ()


async def test_a_batch_that_the_end_cuts_tells_what_is_in() -> None:
    topic = topic_of(capacity=5)
    (consumer,) = topic.consumers("g")
    put = asyncio.ensure_future(topic.producer().produce_many(range(20)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    topic.close()
    with pytest.raises(TopicClosed, match="5 items were accepted") as raised:
        await put
    assert raised.value.accepted_events == 5
    assert await batch_of(consumer) == [0, 1, 2, 3, 4]


async def test_a_put_is_an_awaitable_and_never_a_coroutine() -> None:
    topic = topic_of(capacity=1)
    topic.consumers("g")
    puts = [topic.producer().produce(item) for item in range(2)]
    assert not any(asyncio.iscoroutine(put) for put in puts)
    done, waits = map(asyncio.ensure_future, puts)
    await done
    assert not waits.done()
    waits.cancel()


def test_a_topic_takes_every_option() -> None:
    options = {field: getattr(TopicOptions(), field) for field in TopicOptions.__dataclass_fields__}
    assert MemoryBufferQueue().topic("t", int, **options).options == TopicOptions()
