"""Millstream's streams as a subject: a client publishes, a silo's grain handles batches.

The queue is in the memory of the consumer's silo. Its owner, agent and cache are the ordinary ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.feed import Arrivals, Run, Sample, measure_feed, produce
from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Silo, connect
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

__all__ = ["producer", "streams"]

SAMPLES = StreamNamespace("samples", Sample)
RECEIVING: dict[str, Arrivals] = {}


class Sink(Grain):
    """Notes what arrives for its key."""

    @subscribe(SAMPLES, batch=True)
    async def on_samples(self, events: list[Event[Sample]]) -> None:
        RECEIVING[self.key].note([event.item for event in events])


class SiloConsumer:
    """The grain of each key is activated by its first event."""

    pids = (os.getpid(),)

    def __init__(self, gateway: str) -> None:
        self.address = gateway

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        RECEIVING[key] = arrivals


async def streams(work: Path) -> dict[str, float]:
    """A silo in this process."""
    provider = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(rebalance_delay_s=0.1))
    async with Silo(grains=[Sink], streams={"default": provider}) as silo:
        return await measure_feed("ours_streams", SiloConsumer(silo.gateway))


async def producer(address: str) -> None:
    """The client's process."""
    async with connect(address) as client:

        async def send(key: str, samples: list[Sample]) -> None:
            await client.stream(SAMPLES, key).publish_many(samples)

        await produce(send)
