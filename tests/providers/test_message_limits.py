"""A queue accepts exactly the messages that its stated limit allows, at every size around the
limit."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.ledger.queues.form import in_topic
from millstream.providers.ledger.topic.form import FRAME_BYTES, size_of
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.queue_log import size_of as memory_size_of
from millstream.providers.priority import (
    DeadlineOptions,
    DeadlineQueues,
    MemoryStore,
    PriorityQueues,
)
from millstream.providers.priority.adapter.form import new_message
from millstream.runtime import Client, LocalCluster, StreamError, connect
from millstream.streams import (
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    ProducerMark,
    QueueAdapterFactory,
    StreamId,
    StreamNamespace,
)
from millstream.streams.contracts.message import message_bytes
from millstream.streams.extending import IngestMessage, encode_messages
from millstream.streams.staging.stager import StagedAttempt, StagedBatch, StagedWriterName

LIMIT = 4_096
CLUSTERS: dict[PersistentStreams, LocalCluster] = {}
ROWS = StreamNamespace("limited_rows", bytes)

texts = st.text(max_size=40)
messages = st.builds(
    OutMessage,
    st.builds(StreamId, texts, texts),
    st.lists(st.binary(min_size=1, max_size=300), max_size=30),
    st.dictionaries(texts, texts, max_size=8),
    st.none() | st.builds(ProducerMark, texts, st.integers(0, (1 << 63) - 1)),
)


@given(messages)
def test_no_queue_needs_more_for_a_message_than_it_counts(message: OutMessage) -> None:
    counted = message_bytes(message)
    assert size_of(in_topic(message)) <= counted
    plain = OutMessage(message.stream, message.items, {})  # the header "priority" would be read
    assert len(new_message(plain, 1.5e9, 1 << 20).payload) <= message_bytes(plain)
    assert memory_size_of(message) <= counted


def ledger(directory: Path) -> QueueAdapterFactory:
    topic = LedgerTopicOptions(entry_bytes_max=LIMIT + FRAME_BYTES)
    return LedgerQueues(directory / "ledger", LedgerOptions(topic=topic))


def memory(directory: Path) -> QueueAdapterFactory:
    return MemoryQueues(MemoryOptions(capacity_bytes=LIMIT, capacity_events=20))


def deadline(directory: Path) -> QueueAdapterFactory:
    options = DeadlineOptions(payload_bytes_max=LIMIT)
    return DeadlineQueues("pq", durable=False, options=options)


QUEUES: Mapping[str, Callable[[Path], QueueAdapterFactory]] = {
    "ledger": ledger,
    "memory": memory,
    "deadline": deadline,
}


@asynccontextmanager
async def streams_over(factory: QueueAdapterFactory) -> AsyncIterator[PersistentStreams]:
    provider = PersistentStreams(
        factory, mapper=HashRingMapper(queues=2), balancer=DeploymentBalancer()
    )
    async with LocalCluster(
        silos=1,
        grains=[],
        streams={"default": lambda: provider},
        parts={"pq": lambda: PriorityQueues(MemoryStore())},
    ) as cluster:
        CLUSTERS[provider] = cluster
        yield provider


@pytest.mark.parametrize("name", QUEUES)
async def test_the_largest_message_is_stored_and_a_larger_one_refused_before_it_is_sent(
    name: str, tmp_path: Path
) -> None:
    async with streams_over(QUEUES[name](tmp_path)) as provider:
        for mark in (None, ProducerMark("p" * 100, 7)):
            for headers in ({}, {"note": "h" * 50}):
                head = OutMessage(StreamId(ROWS.name, "ключ"), [b""], headers, mark)
                room = LIMIT - message_bytes(head)
                fits = OutMessage(head.stream, [b"x" * room], headers, mark)
                (stored,) = await provider.store([fits])
                assert not isinstance(stored, Exception), stored
                larger = OutMessage(head.stream, [b"x" * (room + 1)], headers, mark)
                with pytest.raises(ValueError, match=rf"its queue accepts {LIMIT}"):
                    await provider.store([larger])


STAGEABLE = ("ledger", "memory")  # the queues that drop repeats


@pytest.mark.parametrize("name", STAGEABLE)
async def test_what_may_be_staged_is_published(name: str, tmp_path: Path) -> None:
    """A message around the limit is either refused before its batch is decided, or published."""
    accepted = refused = 0
    async with streams_over(QUEUES[name](tmp_path)) as provider, client_of(provider) as client:
        for batch, (size, headers) in enumerate(around_the_limit()):
            attempt = StagedAttempt(client.gateway, WRITER, batch, 0, f"u{batch}", patience_s=9.0)
            assert await attempt.begin()
            body = msgspec.msgpack.encode(b"x" * size)
            message = IngestMessage("ключ", 0, [msgspec.Raw(body)], headers)
            try:
                await attempt.stage(encode_messages([message]))
            except ValueError as error:
                assert f"its queue accepts {LIMIT}" in str(error)
                refused += 1
                await attempt.aclose()
                continue
            manifests = [await attempt.finish()]
            committed = StagedBatch(client.gateway, WRITER, batch, patience_s=9.0)
            assert await committed.commit(manifests) == 1
            accepted += 1
    assert accepted and refused


@pytest.mark.parametrize("name", STAGEABLE)
async def test_a_message_of_the_size_that_an_attempt_is_told_may_be_staged(
    name: str, tmp_path: Path
) -> None:
    async with streams_over(QUEUES[name](tmp_path)) as provider, client_of(provider) as client:
        attempt = StagedAttempt(client.gateway, WRITER, 0, 0, "u", patience_s=9.0)
        assert await attempt.begin()
        limits = attempt.limits
        assert LIMIT // 2 < limits.bytes_max < LIMIT
        assert limits.items_max == (20 if name == "memory" else sys.maxsize)
        body = msgspec.msgpack.encode(b"x" * (limits.bytes_max - 5 - 1 - 3))
        message = IngestMessage("k", 0, [msgspec.Raw(body)], None)
        assert len(body) + 5 + 1 == limits.bytes_max
        await attempt.stage(encode_messages([message]))
        committed = StagedBatch(client.gateway, WRITER, 0, patience_s=9.0)
        assert await committed.commit([await attempt.finish()]) == 1


WRITER = StagedWriterName("default", ROWS.name, "w" * 40)


def around_the_limit() -> list[tuple[int, dict[str, str] | None]]:
    sizes = [*range(LIMIT - 240, LIMIT - 100, 5), LIMIT, 4 * LIMIT]
    return [(size, headers) for size in sizes for headers in (None, {"note": "h" * 30})]


@asynccontextmanager
async def client_of(provider: PersistentStreams) -> AsyncIterator[Client]:
    async with connect(CLUSTERS[provider].silos[0].gateway) as client:
        yield client


@pytest.mark.parametrize("name", QUEUES)
async def test_a_list_is_cut_so_that_queues_accept_each_part(name: str, tmp_path: Path) -> None:
    async with streams_over(QUEUES[name](tmp_path)) as provider:
        stream = StreamId(ROWS.name, "k")
        for bodies, headers in cases():
            await provider.publish(stream, bodies, headers)
            # as a client sends it that does not know the limits
            (stored,) = await provider.store([OutMessage(stream, bodies, headers)])
            assert not isinstance(stored, StreamError), stored


def cases() -> Sequence[tuple[list[bytes], dict[str, str]]]:
    return [
        ([b"x"] * 64, {}),
        ([b"x" * 300] * 40, {"note": "h" * 500}),
        ([b"x" * 3_000, b"y", b"z" * 2_000], {}),
    ]
