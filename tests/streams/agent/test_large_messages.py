"""Each accepted item can be read and delivered in any silo; larger items are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from tests.conditions import until
from tests.streams.agent.caches import cursor_at

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.memory.wire_form import QueuedMessage
from millstream.runtime import Grain, LocalCluster, RuntimeOptions, Silo
from millstream.streams import (
    CacheLimits,
    Event,
    HashRingMapper,
    PersistentStreams,
    QueueMessage,
    StreamId,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.agent.cache.queue_cache import QueueCache

FRAME_BYTES = 1 << 20
LIMIT = FRAME_BYTES // 2
BLOBS = StreamNamespace("blobs", bytes)
BIN_HEADER = 5  # for a body of 64 KiB or more
SEEN: dict[str, int] = defaultdict(int)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Taker(Grain):
    @subscribe(BLOBS)
    async def on_blob(self, event: Event[bytes]) -> None:
        assert event.attempt == 1
        SEEN[self.key] += len(event.item)


def providers() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        silos=2,
        grains=[Taker],
        streams={"default": providers},
        options=RuntimeOptions(frame_bytes_max=FRAME_BYTES),
    ) as cluster:
        yield cluster


def everywhere(cluster: LocalCluster) -> list[Silo | LocalCluster]:
    return [*cluster.silos, cluster]


async def test_the_largest_item_arrives_from_and_in_every_silo(cluster: LocalCluster) -> None:
    size = LIMIT - BIN_HEADER
    keys = [f"key-{number}-{'long' * 200}" for number in range(6)]
    for number, key in enumerate(keys):
        where = everywhere(cluster)[number % 3]
        await where.stream(BLOBS, key).publish(b"x" * size)
    await until(lambda: all(SEEN[key] == size for key in keys))


async def test_a_larger_item_is_refused_wherever_it_is_published(cluster: LocalCluster) -> None:
    for where in everywhere(cluster):
        for size in (LIMIT - BIN_HEADER + 1, FRAME_BYTES - 300):
            with pytest.raises(ValueError, match=rf"message_bytes_max is {LIMIT}"):
                await where.stream(BLOBS, "a").publish(b"x" * size)
        await where.stream(BLOBS, "a").publish(b"small")  # no connection was closed
    await until(lambda: SEEN["a"] == 15)


async def test_headers_count_for_each_item_that_they_go_with(cluster: LocalCluster) -> None:
    headers = {"note": "h" * 10_000}
    for silo in cluster.silos:  # 400 items in one call would bring 4 MB of headers
        stream = silo.stream(BLOBS, "a")
        await stream.publish_many([b"x"] * 400, headers=headers)
        for _ in range(200):
            await stream.publish(b"y", headers=headers)
        with pytest.raises(ValueError, match="items and headers"):
            await stream.publish(b"x", headers={"ä": "ä" * (LIMIT // 2)})
    await until(lambda: SEEN["a"] == 1200)


def test_a_delivery_call_counts_headers_with_each_item() -> None:
    cache, stream = QueueCache(CacheLimits()), StreamId("blobs", "a")
    for seq in (1, 2):
        cache.append(QueueMessage(stream, Token(1, seq), [b"x" * 10] * 50, {"note": "h" * 986}))
    cursor = cursor_at(cache, 0)
    assert len(cursor.peek(256, 10_000)) == 10
    assert len(cursor.peek(256, 60_000)) == 60
    assert len(cursor.peek(256, 1)) == 1


async def test_a_read_counts_names_and_headers(cluster: LocalCluster) -> None:
    queue = cluster.silos[0].grain(MemoryQueue, "default/queue-9")
    message = QueuedMessage("blobs", "k" * 95, [b"x" * 50] * 2, {"note": "h" * 796}, "", 0, 0.0)
    await queue.append([message] * 20)
    assert len((await queue.read(1, 0, 0, 1000, 10_000, 0.0)).messages) == 10
    assert len((await queue.read(1, 0, 0, 1000, 1, 0.0)).messages) == 1


def test_limits_follow_the_frame() -> None:
    options = StreamOptions().within(1000)
    assert (options.publish_bytes_max, options.message_bytes_max) == (500, 500)
    assert (options.flow.read_bytes_max, options.delivery.max_batch_bytes) == (500, 500)
    assert StreamOptions().within(64 << 20) == StreamOptions()
