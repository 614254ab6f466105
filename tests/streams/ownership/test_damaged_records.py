"""Damaged queue records are named, and never read as another position."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Corrupt, Grain, MemoryStateStore
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.ownership.manager import DAMAGED_LOOK_S
from millstream.streams.ownership.record import ListedSubscription, QueueRecord, QueueState
from millstream.streams.ownership.store import OwnershipStore

WORDS = StreamNamespace("words", str, subscriptions="implicit")
heard: list[str] = []


def record(seq: int = 70_000) -> QueueRecord:
    behind = (ListedSubscription("orders", "k", "reader", Token(0, seq - 9, 0)),)
    return QueueRecord(
        "a:1@1", 7, QueueState.OWNED, lease_s=10.0, upto=Token(0, seq, 0), listed=behind
    )


def others(data: bytes) -> Iterator[bytes]:
    """Yield the data with each bit flipped, and cut at each place."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    yield from (data[:size] for size in range(len(data)))


async def test_no_flipped_bit_and_no_cut_gives_another_position() -> None:
    store = MemoryStateStore()
    records = OwnershipStore(store, "p")
    await records.write("q-1", record(), None)
    row = store.get("queue/p/q-1")
    assert row is not None
    etag = row.etag
    for data in others(row.data):
        etag = store.put("queue/p/q-1", data, etag, 0)
        with pytest.raises(Corrupt, match=r"^row queue/p/q-1 .* restore"):
            await records.read("q-1")


async def test_a_record_of_another_queue_is_refused() -> None:
    store = MemoryStateStore()
    records = OwnershipStore(store, "p")
    for queue, seq in (("q-1", 1_000), ("q-2", 2_000)):
        await records.write(queue, record(seq), None)
    one, other = store.get("queue/p/q-1"), store.get("queue/p/q-2")
    assert one is not None and other is not None
    store.put("queue/p/q-1", other.data, one.etag, 0)
    with pytest.raises(Corrupt, match="row queue/p/q-1 is damaged, or was written under another"):
        await records.read("q-1")


async def test_a_record_that_was_written_bare_is_read_and_sealed_by_the_next_write() -> None:
    store = MemoryStateStore()
    records = OwnershipStore(store, "p")
    etag = store.put("queue/p/q-1", msgspec.msgpack.encode(record()), None, 0)
    found = await records.read("q-1")
    assert found is not None and found.record == record()
    await records.write("q-1", found.record, etag)
    row = store.get("queue/p/q-1")
    assert row is not None and row.data.startswith(b"MSrw")
    assert (await records.read("q-1")) is not None


async def test_all_records_are_read_but_a_damaged_one_which_the_log_names_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    records = OwnershipStore(store, "p")
    queues = ["q-1", "q-2", "q-3"]
    for queue in queues:
        await records.write(queue, record(), None)
    row = store.get("queue/p/q-2")
    assert row is not None
    etag = store.put("queue/p/q-2", row.data[:-1], row.etag, 0)
    for _ in range(2):
        assert list(await records.read_all(queues)) == ["q-1", "q-3"]
    (said,) = caplog.messages
    assert said.startswith("row queue/p/q-2 is damaged") and "restore" in said
    assert set(await records.etags()) == set(queues)
    etag = store.put("queue/p/q-2", row.data, etag, 0)
    assert list(await records.read_all(queues)) == queues
    store.put("queue/p/q-2", b"", etag, 0)
    await records.read_all(queues)
    assert len(caplog.messages) == 2


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard.append(event.item)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=4),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.5)),
    )


def test_a_queue_whose_record_is_damaged_waits_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard.clear()
    store = MemoryStateStore()

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation,
            silos=2,
            grains=[Listener],
            streams={"default": provider},
            stores={"default": store},
        ) as cluster:
            silo = cluster.silos()[0]
            keys = [f"k{number}" for number in range(12)]

            async def publish(word: str) -> None:
                for key in keys:
                    await silo.stream(WORDS, key).publish(f"{word} {key}")

            host = simulation.host("silo-0")
            await simulation.call(host, publish("one"))
            await asyncio.sleep(5)
            assert sorted(heard) == sorted(f"one {key}" for key in keys)
            row = store.get("queue/default/queue-2")
            assert row is not None
            etag = store.put("queue/default/queue-2", row.data[:-1], row.etag, 0)
            await cluster.stop_silo("silo-1")
            await simulation.call(host, cluster.stop_silo("silo-0"))
            await cluster.until_settled(2.0)
            silo = cluster.silos()[0]
            await simulation.call(simulation.host("silo-0"), publish("two"))
            await asyncio.sleep(3 * DAMAGED_LOOK_S)
            got = {one for one in heard if one.startswith("two")}
            assert 0 < len(got) < len(keys)
            text = "no silo reads the queue, because its record is damaged: row queue/default/"
            assert f"queue-2: {text}queue-2 is damaged" in caplog.text
            store.put("queue/default/queue-2", row.data, etag, 0)
            await asyncio.sleep(2 * DAMAGED_LOOK_S)
            assert sorted(heard) == sorted(
                f"{word} {key}" for word in ("one", "two") for key in keys
            )

    run(main, 1)
