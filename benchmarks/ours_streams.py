"""Millstream's streams as a subject: a client publishes, and a silo's grains handle batches.

The queue is in the memory of the consumer's silo, or in its ledger. Its owner, agent and cache are
the ordinary ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.feed import (
    DURABLE_RUNS,
    RUNS,
    WIDE_RUNS,
    Arrivals,
    Run,
    Sample,
    measure_feed,
    produce,
)
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import Grain, Silo, StateStore, connect
from millstream.streams import (
    Event,
    PersistentStreams,
    QueueAdapterFactory,
    StreamNamespace,
    subscribe,
)

__all__ = ["durable", "producer", "streams", "wide"]

SAMPLES = StreamNamespace("samples", Sample)
SHARED = StreamNamespace("shared", Sample, subscriptions="explicit")
RECEIVING: dict[str, Arrivals] = {}


class Sink(Grain):
    """Records the events of its key."""

    @subscribe(SAMPLES, batch=True)
    async def on_samples(self, events: list[Event[Sample]]) -> None:
        RECEIVING[self.key.partition("/")[0]].note([event.item for event in events])


class Subscriber(Grain):
    """One of several subscribers of a stream; its key is the stream's key and its number."""

    async def join(self) -> None:
        stream = self.stream(SHARED, self.key.partition("/")[0])
        await stream.subscribe(self._on_samples)

    async def _on_samples(self, events: list[Event[Sample]]) -> None:
        key, _, number = self.key.partition("/")
        RECEIVING[key].note([event.item for event in events], int(number))


class SiloConsumer:
    """The first event of each key activates its grain."""

    pids = (os.getpid(),)

    def __init__(self, silo: Silo) -> None:
        self.address = silo.gateway
        self._silo = silo

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        RECEIVING[key] = arrivals
        if run.subscribers > 1:
            for number in range(run.subscribers):
                await self._silo.grain(Subscriber, f"{key}/{number}").join()


async def streams(work: Path) -> dict[str, float]:
    """One subscriber and one stream at a time."""
    return await _measure(RUNS, MemoryQueues())


async def durable(work: Path) -> dict[str, float]:
    """The queue is in a ledger: accepted events are on disk."""
    store = SqliteStateStore(work / "rows")
    return await _measure(DURABLE_RUNS, LedgerQueues(work / "ledger"), {"default": store})


async def wide(work: Path) -> dict[str, float]:
    """Many subscribers, or many streams."""
    return await _measure(WIDE_RUNS, MemoryQueues())


async def _measure(
    runs: Sequence[Run],
    queues: QueueAdapterFactory,
    stores: Mapping[str, StateStore] | None = None,
) -> dict[str, float]:
    """Run a silo in this process."""
    provider = PersistentStreams(queues, balancer=DeploymentBalancer(rebalance_delay_s=0.1))
    streams = {"default": provider}
    async with Silo(grains=[Sink, Subscriber], streams=streams, stores=stores) as silo:
        return await measure_feed("ours_streams", SiloConsumer(silo), runs)


async def producer(address: str) -> None:
    """Run the client's process."""
    async with connect(address) as client:

        async def send(key: str, samples: list[Sample]) -> None:
            topic = SHARED if key.startswith("subscribers") else SAMPLES
            await client.stream(topic, key).publish_many(samples)

        async def send_each(key: str, keys: list[str], samples: list[Sample]) -> None:
            sends = zip(keys, samples, strict=True)
            await asyncio.gather(*(client.stream(SAMPLES, key).publish(one) for key, one in sends))

        await produce(send, send_each)
