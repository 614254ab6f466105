"""Mistakes with buffer queues. A line that ends with the mark E must be refused."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.providers.memory import MemoryBufferQueue, MemoryTopic, Retries
from millstream.streams import BufferQueue


@dataclass
class Span:
    trace: str


topic = MemoryBufferQueue().topic("spans", Span)
topic.producer().produce("text")  # E
topic.producer().produce_many(Span("a"))  # E
topic.consumers(1)  # E
topic.consumers("g", "two")  # E
topic.consumers("g", auto_commit="before")  # E
MemoryBufferQueue().topic("spans", Span, full_mode="drop")  # E
MemoryBufferQueue().topic("spans", Span, partition=2)  # E
MemoryBufferQueue().topic("spans", "Span")  # E
MemoryBufferQueue().topic("spans", Span, key=lambda span: span.name)  # E
Retries(on_exhausted="dead_letter")  # E
BufferQueue()  # E


async def number(batch: list[int]) -> None: ...


def at_once(batch: list[Span]) -> None: ...


async def use(topic: MemoryTopic[Span]) -> None:
    topic.subscribe("g", number)  # E
    topic.subscribe("g", at_once)  # E
    (consumer,) = topic.consumers("g")
    async for batch in consumer:
        print(batch[0].name)  # E
    for batch in consumer:  # E
        print(batch)
