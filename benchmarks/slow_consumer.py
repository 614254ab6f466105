"""One queue with 100 fast consumers, one that needs 8 s for each event, and one that is paused.

Two providers, with one queue each, are in one silo. `beside` has all three kinds of consumers, and
`alone` only the fast ones. Their producers take turns of 5 s, so that other load on the machine
affects both. The slow and the paused stream get 10 events of 1 KB a second each, all the time. At
the end the slow consumer becomes fast, the paused one resumes, and the benchmark waits for all
events. Figures:

- `kept`, `kept_least`: events per second of the fast consumers on `beside`, as a share of those on
  `alone`: the median over all pairs of turns, and the least. Goal: 0.9.
- `beside_events_s`, `alone_events_s`: medians of these rates.
- `cached_mb_most`: the most that the agent's cache held. `cache_limit_mb`: its limit.
- `resident_mb_more`: the largest growth of the process. `stored_mb`: the most that the memory queue
  held, which keeps unacknowledged events.
- `slow_events`, `paused_events`: events published to these two. `recovery_s`: the time until all of
  them were handled. It begins when the consumers are fast and the running call of 8 s has ended.
- `lost`, `twice`, `out_of_order`: over all streams.

In another subject, `once`, the queue cannot be read again, and its cache uses buckets, so the slow
consumer stops the reading. Then it becomes fast. Figures:

- `reads_before_s`: events read per second before it became slow. `reads_stopped_s`: while it is
  slow. `reads_after_s`: during ten seconds after recovery.
- `reads_back_s`: from the end of its last slow event until the end of the first half second with 90
  % of the rate before. Goal: 2.
- `once_lost`, `once_twice`, `once_out_of_order`: over its streams.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.bounds.watch import resident_bytes, sized
from benchmarks.measure import settle_memory
from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, QueueFull, Silo, grain
from millstream.streams import (
    CacheLimits,
    Capability,
    Event,
    HashRingMapper,
    PersistentStreams,
    Stream,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

__all__ = ["beside", "once"]

QUICK = 100
SLOW_S = 8.0
TURN_S = 5.0
TURNS = 60  # of each kind: ten minutes
EVERY_S = 0.1
KEPT = 0.9  # share of the rate that reads must reach again
BODY = b"x" * 1_000
MIB = 1 << 20
LIMITS = CacheLimits(
    events_max=4_096, bytes_max=8 * MIB, stream_events_max=256, stream_bytes_max=MIB // 2
)
BUCKETS = CacheLimits(events_max=4_096, bytes_max=8 * MIB, policy="buckets")


class Sample(NamedTuple):
    number: int
    body: bytes


BESIDE = StreamNamespace("beside", Sample, provider="beside", subscriptions="implicit")
ALONE = StreamNamespace("alone", Sample, provider="alone", subscriptions="implicit")
ONCE = StreamNamespace("once", Sample, provider="once", subscriptions="implicit")


class Track:
    """One stream: counts of published and handled events, without the events."""

    __slots__ = ("handled", "out_of_order", "sent", "twice", "upto")

    def __init__(self) -> None:
        self.sent = self.handled = self.twice = self.out_of_order = 0
        self.upto = 0  # the next number

    def arrived(self, number: int) -> None:
        """Record that an event was handled."""
        self.handled += 1
        self.twice += number < self.upto
        self.out_of_order += number > self.upto
        self.upto = max(self.upto, number + 1)

    @property
    def is_done(self) -> bool:
        """Are all events handled?"""
        return self.handled - self.twice >= self.sent


class Seen:
    """All streams."""

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = defaultdict(Track)
        self.is_slow = True
        self.is_over = False
        self.slow_ended_s = 0.0  # when the last slow event was done


SEEN: list[Seen] = []


class ReadOnce(MemoryQueues):
    """Queues like those of a broker that delivers a message once."""

    capabilities = MemoryQueues.capabilities - {Capability.REWIND, Capability.SEALED}


@grain(name="Neighbour")
class Neighbour(Grain):
    """The consumer of one stream; its key decides its behaviour."""

    @subscribe(BESIDE)
    async def on_beside(self, event: Event[Sample]) -> None:
        await _handle("beside", event)

    @subscribe(ALONE)
    async def on_alone(self, event: Event[Sample]) -> None:
        await _handle("alone", event)


@grain(name="Reader")
class Reader(Grain):
    """Like `Neighbour`, for a queue that delivers a message once."""

    @subscribe(ONCE)
    async def on_once(self, event: Event[Sample]) -> None:
        await _handle("once", event)


async def _handle(side: str, event: Event[Sample]) -> None:
    seen = SEEN[-1]
    if event.key == "slow" and seen.is_slow:
        await asyncio.sleep(SLOW_S)
        seen.slow_ended_s = asyncio.get_running_loop().time()
    seen.tracks[f"{side}/{event.key}"].arrived(event.item.number)


async def _publish(seen: Seen, side: str, stream: Stream[Sample]) -> None:
    track = seen.tracks[f"{side}/{stream.key}"]
    number, track.sent = track.sent, track.sent + 1
    await stream.publish(Sample(number, BODY))


async def _steadily(seen: Seen, stream: Stream[Sample]) -> None:
    """Publish an event at intervals, until cancelled."""
    while True:
        await _publish(seen, "beside", stream)
        await asyncio.sleep(EVERY_S)


async def _turn(seen: Seen, side: str, streams: list[Stream[Sample]]) -> float:
    """Publish to fast streams as fast as possible; return the events handled per second."""
    loop = asyncio.get_running_loop()
    tracks = [seen.tracks[f"{side}/{stream.key}"] for stream in streams]

    async def produce(stream: Stream[Sample]) -> None:
        while loop.time() < begun_s + TURN_S:
            await _publish(seen, side, stream)

    def handled() -> int:
        return sum(track.handled for track in tracks)

    begun_s, before = loop.time(), handled()
    await asyncio.gather(*map(produce, streams))
    while not all(track.is_done for track in tracks):  # noqa: ASYNC110  no event reports it
        await asyncio.sleep(0.001)
    return (handled() - before) / (loop.time() - begun_s)


class Most:
    """The most memory in use, sampled ten times a second."""

    def __init__(self, provider: PersistentStreams) -> None:
        self._provider = provider
        self._before = resident_bytes(os.getpid())
        self.resident_bytes = self.cached_bytes = 0

    async def watch(self) -> None:
        while True:
            self.resident_bytes = max(
                self.resident_bytes, resident_bytes(os.getpid()) - self._before
            )
            for stats in self._provider.stats():
                self.cached_bytes = max(self.cached_bytes, stats.cached * len(BODY))
            await asyncio.sleep(0.1)


def _faults(seen: Seen) -> dict[str, float]:
    tracks = seen.tracks.values()
    return {
        "lost": sum(track.sent - track.handled + track.twice for track in tracks),
        "twice": sum(track.twice for track in tracks),
        "out_of_order": sum(track.out_of_order for track in tracks),
    }


async def _recover(seen: Seen, silo: Silo) -> float:
    """Make both consumers fast; return the seconds until all their events are handled."""
    loop = asyncio.get_running_loop()
    begun_s, seen.is_slow = loop.time(), False
    for one in await silo.stream(BESIDE, "paused").subscriptions():
        await one.resume()
    async with asyncio.timeout(600):
        while seen.slow_ended_s < begun_s and not seen.tracks["beside/slow"].is_done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        begun_s = loop.time()
        for name in ("beside/slow", "beside/paused"):
            while not seen.tracks[name].is_done:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return loop.time() - begun_s


def _provider(
    queues: MemoryQueues | None = None, limits: CacheLimits = LIMITS
) -> PersistentStreams:
    return PersistentStreams(
        queues or MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.1),
        options=StreamOptions(cache=limits),
    )


async def beside(work: Path, size: float) -> dict[str, float]:
    """Run for ten minutes, at size 1."""
    seen, providers = Seen(), {side: _provider() for side in ("beside", "alone")}
    SEEN.append(seen)
    rates: dict[str, list[float]] = {"beside": [], "alone": []}
    async with Silo(grains=[Neighbour], streams=providers) as silo:
        quick = {
            name.name: [silo.stream(name, f"quick-{number}") for number in range(QUICK)]
            for name in (BESIDE, ALONE)
        }
        for side, streams in quick.items():
            await _turn(seen, side, streams)  # warm-up
        paused = silo.stream(BESIDE, "paused")
        for one in await paused.subscriptions():
            await one.pause()
        settle_memory()
        most = Most(providers["beside"])
        tasks = [asyncio.create_task(most.watch())]
        for stream in (silo.stream(BESIDE, "slow"), paused):
            tasks.append(asyncio.create_task(_steadily(seen, stream)))
        for number in range(sized(TURNS, size)):
            for side in ("beside", "alone") if number % 2 else ("alone", "beside"):
                rates[side].append(await _turn(seen, side, quick[side]))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        recovery_s = await _recover(seen, silo)
    kept = [one / other for one, other in zip(rates["beside"], rates["alone"], strict=True)]
    slow, held = seen.tracks["beside/slow"].sent, seen.tracks["beside/paused"].sent
    return {
        "kept": statistics.median(kept),
        "kept_least": min(kept),
        "beside_events_s": statistics.median(rates["beside"]),
        "alone_events_s": statistics.median(rates["alone"]),
        "cached_mb_most": most.cached_bytes / 1e6,
        "cache_limit_mb": LIMITS.bytes_max / 1e6,
        "resident_mb_more": most.resident_bytes / 1e6,
        "stored_mb": (slow + held) * len(BODY) / 1e6,
        "slow_events": slow,
        "paused_events": held,
        "recovery_s": recovery_s,
        **_faults(seen),
    }


async def once(work: Path, size: float) -> dict[str, float]:
    """Run for about a minute, at any size."""
    seen, provider = Seen(), _provider(ReadOnce(), BUCKETS)
    SEEN.append(seen)
    async with Silo(grains=[Reader], streams={"once": provider}) as silo:
        names = ["slow", *(f"quick-{number}" for number in range(QUICK))]
        seen.is_slow = False
        tasks = [
            asyncio.create_task(_as_fast_as_it_goes(seen, silo.stream(ONCE, name)))
            for name in names
        ]
        await _reads_per_s(provider, TURN_S)  # warm-up
        before = await _reads_per_s(provider, 2 * TURN_S)
        seen.is_slow = True
        await asyncio.sleep(TURN_S)
        stopped = await _reads_per_s(provider, TURN_S)
        turned_s, seen.is_slow = asyncio.get_running_loop().time(), False
        while seen.slow_ended_s < turned_s:  # noqa: ASYNC110  the running call
            await asyncio.sleep(0.001)
        back_s = await _until_read_at(provider, KEPT * before, seen.slow_ended_s)
        after = await _reads_per_s(provider, 2 * TURN_S)
        seen.is_over = True
        await asyncio.gather(*tasks)
        while not all(track.is_done for track in seen.tracks.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return {
        "reads_before_s": before,
        "reads_stopped_s": stopped,
        "reads_back_s": back_s,
        "reads_after_s": after,
        **{f"once_{name}": count for name, count in _faults(seen).items()},
    }


async def _as_fast_as_it_goes(seen: Seen, stream: Stream[Sample]) -> None:
    track = seen.tracks[f"once/{stream.key}"]
    while not seen.is_over:
        try:
            await stream.publish(Sample(track.sent, BODY))
            track.sent += 1
        except QueueFull:  # while nothing is read
            await asyncio.sleep(EVERY_S)


def _read(provider: PersistentStreams) -> int:
    return sum(stats.read for stats in provider.stats())


async def _reads_per_s(provider: PersistentStreams, for_s: float) -> float:
    loop = asyncio.get_running_loop()
    begun_s, before = loop.time(), _read(provider)
    await asyncio.sleep(for_s)
    return (_read(provider) - before) / (loop.time() - begun_s)


async def _until_read_at(provider: PersistentStreams, events_s: float, since_s: float) -> float:
    """Return the seconds from `since_s` until half a second had this rate of events."""
    loop, looks = asyncio.get_running_loop(), list[tuple[float, int]]()
    while True:
        now_s, count = loop.time(), _read(provider)
        looks = [*(one for one in looks if one[0] > now_s - 0.55), (now_s, count)]
        first_s, first = looks[0]
        if now_s - first_s >= 0.45 and (count - first) / (now_s - first_s) >= events_s:
            return now_s - since_s
        await asyncio.sleep(0.05)
