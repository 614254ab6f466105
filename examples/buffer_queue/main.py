"""Spans of a collector: many fast producers, and slower groups that take batches.

The scenario is that of Mocha's MemoryBufferQueue. A topic has a partition per core, and producers
write round robin. One group stores spans with two consumers and commits by hand. Another group
counts errors, and its batches are pushed. A batch whose store fails is delivered again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass

from millstream.providers.memory import MemoryBufferQueue, MemoryConsumer, MemoryTopic, Retries

SPANS = 20_000
PRODUCERS = 4


@dataclass(frozen=True, slots=True)
class Span:
    trace: str
    service: str
    duration_ms: float
    is_error: bool


class Store:
    """Stores batches, and sometimes fails."""

    def __init__(self) -> None:
        self.spans: set[tuple[str, str]] = set()
        self.failures = 0
        self._chance = random.Random(7)

    async def write(self, batch: list[Span]) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < 0.02:
            self.failures += 1
            raise ConnectionError("the store is busy")
        self.spans.update((span.trace, span.service) for span in batch)


async def produce(topic: MemoryTopic[Span], number: int) -> None:
    """Produce the spans of one gateway, and wait while the topic is full."""
    chance, producer = random.Random(number), topic.producer()
    for at in range(SPANS // PRODUCERS):
        span = Span(f"{number}-{at}", "checkout", chance.expovariate(0.1), chance.random() < 0.01)
        await producer.produce(span)


async def store_batches(consumer: MemoryConsumer[Span], store: Store) -> None:
    """Store batches; an uncommitted batch is delivered again."""
    async for batch in consumer:
        try:
            await store.write(batch)
        except ConnectionError:
            continue
        await consumer.commit()


async def main() -> None:
    queue, store, errors = MemoryBufferQueue(), Store(), Counter[str]()
    topic = queue.topic("otlp-span", Span, partitions=max(2, os.cpu_count() or 2), capacity=5_000)

    async def count_errors(batch: list[Span]) -> None:
        errors.update(span.service for span in batch if span.is_error)

    consumers = topic.consumers("storage", 2, batch_size=100)
    alerts = topic.subscribe("alerts", count_errors, batch_size=500, retries=Retries(3))
    stores = [asyncio.create_task(store_batches(consumer, store)) for consumer in consumers]
    await asyncio.gather(*(produce(topic, number) for number in range(PRODUCERS)))
    queue.close()  # consumers end after the remaining spans
    await asyncio.gather(*stores)
    await alerts.wait_drained()
    print(
        f"stored {len(store.spans)} of {SPANS} spans; {store.failures} batches were delivered again"
    )
    print(f"errors: {dict(errors)}")


if __name__ == "__main__":
    asyncio.run(main())
