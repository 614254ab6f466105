"""Buffer queues as a user writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_type

from millstream.providers.memory import (
    ConcurrentUse,
    MemoryBufferQueue,
    MemoryConsumer,
    MemoryProducer,
    MemoryTopic,
    NothingToCommit,
    Offset,
    PushGroup,
    Retries,
    TopicClosed,
    TopicOptions,
    UnknownTopic,
)
from millstream.streams import (
    AutoCommit,
    BufferConsumer,
    BufferProducer,
    BufferQueue,
    BufferTopic,
    StreamError,
)


@dataclass
class Span:
    trace: str


def make(queue: BufferQueue, auto_commit: AutoCommit) -> Sequence[BufferConsumer[Span]]:
    topic = queue.topic("spans", Span, partitions=2)
    assert_type(topic, BufferTopic[Span])
    assert_type(topic.producer(), BufferProducer[Span])
    return topic.consumers("g", 2, batch_size=10, auto_commit=auto_commit)


async def use() -> None:
    queue = MemoryBufferQueue()
    topic = queue.topic("spans", Span, key=lambda span: span.trace, capacity=10, full_mode="fail")
    assert_type(topic, MemoryTopic[Span])
    assert_type(queue.find("spans", Span), MemoryTopic[Span])
    assert_type(topic.options, TopicOptions)
    producer = topic.producer()
    assert_type(producer, MemoryProducer[Span])
    await producer.produce(Span("a"))
    await producer.produce_many([Span("a"), Span("b")])
    assert_type(producer.try_produce(Span("c")), bool)
    (consumer,) = topic.consumers("g", auto_commit="after")
    assert_type(consumer, MemoryConsumer[Span])
    assert_type(consumer.offsets(), dict[int, Offset])
    try:
        async for batch in consumer:
            assert_type(batch, list[Span])
            await consumer.commit(1)
    except (ConcurrentUse, NothingToCommit, TopicClosed, UnknownTopic) as error:
        wrong: StreamError = error
        print(wrong)


async def push(topic: MemoryTopic[Span]) -> None:
    async def handle(batch: list[Span]) -> None:
        print(batch[0].trace)

    async def bury(batch: list[Span], error: Exception) -> None: ...

    group = topic.subscribe("g", handle, retries=Retries(3, exhausted=bury))
    assert_type(group, PushGroup[Span])
    await group.stop(timeout_s=1)


queue: BufferQueue = MemoryBufferQueue()
