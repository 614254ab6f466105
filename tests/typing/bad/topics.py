"""Mistakes with topics without streams. A line that ends with the mark E must be refused."""

from __future__ import annotations

from millstream.providers.ledger import (
    LedgerBufferQueue,
    LedgerTopic,
    LedgerTopics,
    Position,
    open_topics,
)


async def use(orders: LedgerTopic) -> None:
    await orders.produce("BOS", "x")  # E
    await orders.produce(b"x")  # E
    await orders.read(1)  # E
    await orders.subscribe("billing", start="newest")  # E
    (await orders.subscribe("billing")).acknowledge(5)  # E
    where: Position = await orders.produce(None, b"x")  # E
    print(where)


async def wrong() -> None:
    await open_topics("data")  # E
    async with open_topics("data", store="sqlite:x") as topics:  # E
        await topics.topic("orders", partition=4)  # E


async def buffer(topics: LedgerTopics) -> None:
    words = LedgerBufferQueue(topics).topic("words", str)
    await words.producer().produce(5)  # E
    words.consumers("g", auto_commit="before")  # E
    LedgerBufferQueue(topics).topic("words", str, key=len)  # E
    LedgerBufferQueue("data")  # E
