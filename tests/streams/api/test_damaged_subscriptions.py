"""Damaged rows of subscriptions are named, and no event is delivered because of them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Corrupt, Grain, MemoryStateStore
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    subscribe,
)
from millstream.streams.api.rendezvous import rendezvous_key
from millstream.streams.api.subscription_rows import (
    WHOLE_STREAM,
    SubscriptionRow,
    row_data,
    row_key,
    rows_of_namespace,
    rows_of_streams,
    rows_under,
)

WORDS = StreamNamespace("words", str, subscriptions="implicit")
heard: list[str] = []
KEYS = ["a", "b\x1fc", "d"]


def key_of(stream: StreamId, name: str) -> str:
    return row_key(rendezvous_key("default", stream), name)


def put(store: MemoryStateStore, stream: StreamId, name: str, is_damaged: bool = False) -> str:
    key = key_of(stream, name)
    data = row_data(key, SubscriptionRow(name, "Reader", stream.key, "_on", False, "next"))
    store.put(key, data[:-1] if is_damaged else data, None, 0)
    return key


async def test_no_flipped_bit_and_no_cut_gives_another_subscription() -> None:
    store, stream = MemoryStateStore(), StreamId("n", "a")
    key = put(store, stream, "one")
    row = store.get(key)
    assert row is not None
    etag = row.etag
    flipped = [bytearray(row.data) for _ in range(8 * len(row.data))]
    for bit, data in enumerate(flipped):
        data[bit // 8] ^= 1 << bit % 8
    for other in [*map(bytes, flipped), *(row.data[:size] for size in range(len(row.data)))]:
        etag = store.put(key, other, etag, 0)
        with pytest.raises(Corrupt, match=r"^row subscription/default.*restore"):
            await rows_under(store, row_key(rendezvous_key("default", stream)))


async def test_a_damaged_row_is_the_trouble_of_its_own_stream() -> None:
    store = MemoryStateStore()
    one, other = StreamId("n", "a"), StreamId("n", "b")
    put(store, one, "one", is_damaged=True)
    put(store, other, "two")
    with pytest.raises(Corrupt):
        await rows_of_streams(store, "default", [one, other])
    found = await rows_of_streams(store, "default", [other])
    assert [row.id for row in found[other]] == ["two"]


async def test_what_is_held_in_a_namespace_is_read_beside_a_damaged_row_which_counts_as_paused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    for key in KEYS:
        put(store, StreamId("n", key), "x\x1fy", is_damaged=key == KEYS[1])
    found = {s: row for s, row in await rows_of_namespace(store, "default", "n")}
    assert [stream.key for stream in found] == KEYS
    states = {stream.key: (row.id, row.state) for stream, row in found.items()}
    assert states[KEYS[1]] == ("x\x1fy", "paused") and states["a"][1] == "pending"
    (said,) = caplog.messages
    assert (
        "no event is delivered to subscription x" in said
        and "is damaged" in said
        and "restore" in said
    )


async def test_a_row_that_was_written_bare_is_read() -> None:
    store, stream = MemoryStateStore(), StreamId("n", "a")
    row = SubscriptionRow("one", "Reader", "r", "_on", False, "next")
    store.put(key_of(stream, "one"), msgspec.msgpack.encode(row), None, 0)
    assert (await rows_of_streams(store, "default", [stream]))[stream] == [row]


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard.append(event.item)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )


def test_a_stream_that_may_be_paused_gets_nothing_and_the_others_go_on() -> None:
    heard.clear()
    store = MemoryStateStore()
    put(store, StreamId("words", "b"), WHOLE_STREAM, is_damaged=True)

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation,
            grains=[Listener],
            streams={"default": provider},
            stores={"default": store},
        ) as cluster:
            silo = cluster.silos()[0]

            async def publish() -> None:
                for key in ("a", "b", "c"):
                    await silo.stream(WORDS, key).publish(key)

            await simulation.call(simulation.host("silo-0"), publish())
            await asyncio.sleep(20)
            assert sorted(heard) == ["a", "c"]

    run(main, 1)
