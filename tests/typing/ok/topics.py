"""Topics without streams as a user writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type

from millstream.providers.ledger import (
    BookieOptions,
    LedgerBufferConsumer,
    LedgerBufferProducer,
    LedgerBufferQueue,
    LedgerBufferTopic,
    LedgerMessage,
    LedgerOptions,
    LedgerQueues,
    LedgerSubscription,
    LedgerTopic,
    LedgerTopicOptions,
    LedgerTopics,
    LedgerTopicSettings,
    Position,
    Quorum,
    RecoveryOptions,
    ScrubOptions,
    open_topics,
)
from millstream.runtime import MemoryStateStore
from millstream.streams import BufferQueue, QueueAdapterFactory


async def use() -> None:
    async with open_topics("data/a", "data/b", store=MemoryStateStore(), open_wait_s=5) as topics:
        assert_type(topics, LedgerTopics)
        assert_type(await topics.names(), list[str])
        orders = await topics.topic("orders", 4, 2, 2, 2, options=LedgerTopicOptions())
        assert_type(orders, LedgerTopic)
        assert_type(orders.settings, LedgerTopicSettings)
        where = await orders.produce("BOS", b"x", producer="p", sequence=1)
        assert_type(where, Position | None)
        assert_type(await orders.produce_many([("BOS", b"x")]), list[Position | None])
        for message in await orders.read(Position(0, 1)):
            assert_type(message, LedgerMessage)
            assert_type(message.key, str | None)
            assert_type(message.value, bytes)
        async for tailed in orders.tail(datetime.now(UTC)):
            assert_type(tailed, LedgerMessage)
        await follow(await orders.subscribe("billing", start="latest"))


async def follow(billing: LedgerSubscription) -> None:
    async for batch in billing:
        assert_type(batch, list[LedgerMessage])
        billing.acknowledge(*batch)
        billing.acknowledge_upto(batch[-1].position)
        await billing.flush()
    billing.seek(Position(0, 1))
    await billing.seek_time(datetime.now(UTC))
    assert_type(billing.backlog, int)


queues: QueueAdapterFactory = LedgerQueues(
    "data/ledger/{silo}",
    LedgerOptions(
        settings=LedgerTopicSettings(quorum=Quorum(3, 3, 2)),
        bookie=BookieOptions(segment_bytes=2**24),
        recovery=RecoveryOptions(lost_bookie_after_s=300.0),
        scrub=ScrubOptions(scrub_every_s=3_600.0),
    ),
)


async def buffer(topics: LedgerTopics) -> None:
    queue = LedgerBufferQueue(topics)
    plain: BufferQueue = queue
    words = queue.topic("words", str, partitions=2, key=lambda word: word[:1])
    assert_type(words, LedgerBufferTopic[str])
    assert_type(queue.find("words", str), LedgerBufferTopic[str])
    assert_type(words.producer(), LedgerBufferProducer[str])
    await words.producer().produce_many(["a", "b"])
    for consumer in words.consumers("g", 2, auto_commit="after"):
        assert_type(consumer, LedgerBufferConsumer[str])
        async for batch in consumer:
            assert_type(batch, list[str])
    plain.close()
