"""The cost of a thousand queues, and of many streams, on one silo while nothing happens.

Each function has one or two rows: `async (work, size) -> figures`. `tracemalloc` counts the bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Silo
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    Stream,
    StreamNamespace,
    subscribe,
)

from .watch import held_bytes, sized

__all__ = ["active", "idle", "idle_bytes", "idle_streams"]

QUEUES = 1_000
FEW = 100  # queues, so that the cost of a silo is left out
ACTIVE = 100
WATCHED_S = 10.0
TURN_S = 1.0
TURNS = 8
STREAMS = 20_000
READINGS = StreamNamespace("readings", int, subscriptions="implicit")
BLOBS = StreamNamespace("blobs", bytes, subscriptions="implicit")
Figures = dict[str, float]


class Meter(Grain):
    """Counts the events of all its grains."""

    count = 0

    @subscribe(READINGS)
    async def on_reading(self, event: Event[int]) -> None:
        Meter.count += 1

    @subscribe(BLOBS)
    async def on_blob(self, event: Event[bytes]) -> None:
        Meter.count += 1


@asynccontextmanager
async def silo_with(queues: int) -> AsyncIterator[Silo]:
    """Yield a silo that reads this number of queues."""
    streams = PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=queues),
        balancer=DeploymentBalancer(rebalance_delay_s=0.1),
    )
    async with Silo(grains=[Meter], streams={"default": streams}) as silo:
        async with asyncio.timeout(120):
            while sum(one.is_reading for one in streams.stats()) < queues:
                await asyncio.sleep(0.1)
        yield silo


async def idle(work: Path, size: float) -> Figures:
    """CPU during ten seconds without events."""
    async with silo_with(sized(QUEUES, size)):
        await asyncio.sleep(1)
        used_s = time.process_time()
        await asyncio.sleep(WATCHED_S)
        used_s = time.process_time() - used_s
    return {"queues_idle_percent": 100 * used_s / WATCHED_S}


async def idle_bytes(work: Path, size: float) -> Figures:
    """Bytes of each queue, apart from those of a silo with few queues."""
    held: list[int] = []
    counts = [sized(FEW, size), sized(QUEUES, size, 4)]
    for queues in counts:
        tracemalloc.start()
        async with silo_with(queues):
            await asyncio.sleep(1)
            held.append(held_bytes())
        tracemalloc.stop()
    return {"queues_idle_bytes": (held[1] - held[0]) / (counts[1] - counts[0])}


async def idle_streams(work: Path, size: float) -> Figures:
    """Bytes of a stream and its grain after one event of 10 KB, which was handled."""
    count = sized(STREAMS, size, 100)
    async with silo_with(1) as silo:
        await _one_event(silo, range(-100, 0))
        tracemalloc.start()
        before = held_bytes()
        await _one_event(silo, range(count))
        held = held_bytes() - before
        tracemalloc.stop()
    return {"streams_idle_bytes": held / count}


async def _one_event(silo: Silo, numbers: range) -> None:
    """Publish one event to each of these streams; return when all are handled and acknowledged."""
    wanted = Meter.count + len(numbers)
    for number in numbers:
        await silo.stream(BLOBS, f"b{number}").publish(os.urandom(10_000))
    while Meter.count < wanted:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)


async def active(work: Path, size: float) -> Figures:
    """100 active queues among 1,000, in turns with a silo that has only 100."""
    rates: list[tuple[float, float]] = []
    counts = [sized(QUEUES, size), sized(ACTIVE, size)]
    async with silo_with(counts[0]) as many, silo_with(counts[1]) as few:
        streams = {
            silo: _one_of_each(silo, queues, counts[1])
            for silo, queues in zip((many, few), counts, strict=True)
        }
        for number in range(TURNS):
            pair = (many, few) if number % 2 else (few, many)
            found = {silo: await _rate(streams[silo]) for silo in pair}
            rates.append((found[many], found[few]))
    best_many, best_few = (max(one) for one in zip(*rates, strict=True))
    return {"queues_active_lost_percent": max(0.0, 100 * (1 - best_many / best_few))}


def _one_of_each(silo: Silo, queues: int, count: int) -> list[Stream[int]]:
    """Return streams in `count` different queues."""
    mapper = HashRingMapper(queues=queues)
    found: dict[str, Stream[int]] = {}
    number = 0
    while len(found) < count:
        stream = silo.stream(READINGS, f"s{number}")
        found.setdefault(mapper.queue_for(stream.id), stream)
        number += 1
    return list(found.values())


async def _rate(streams: list[Stream[int]]) -> float:
    """Return the events per second of these streams, with one unanswered event in each."""
    end_s = time.perf_counter() + TURN_S
    before = Meter.count

    async def feed(stream: Stream[int]) -> None:
        number = 0
        while time.perf_counter() < end_s:
            await stream.publish(number)
            number += 1
            await asyncio.sleep(0)

    await asyncio.gather(*map(feed, streams))
    return (Meter.count - before) / (TURN_S + max(0.0, time.perf_counter() - end_s))
