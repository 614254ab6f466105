"""When a slow consumer is quick again, its queue is read as before, and its backlog is soon done.

The tests run in virtual time: they see waits, not the cost of events, which `python -m benchmarks
slow_consumer` measures.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from tests.contract.reference import LEASES, LEDGER, LOG, TAGS, Broker, ReferenceQueues

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, RuntimeOptions
from millstream.runtime.testing import SimCluster, Simulation, run
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

LINES = StreamNamespace("lines", int, subscriptions="implicit")
QUICK, EVERY_S, SLOW_S = 8, 0.2, 8.0
RATE = QUICK / EVERY_S  # events per second of the quick streams
WITHIN_S, KEPT = 2.0, 0.9
CACHE = CacheLimits(events_max=50, stream_events_max=12)
BUCKETS = CacheLimits(events_max=50, policy="buckets")
ONCE = LEDGER - {Capability.REWIND, Capability.SEALED}


class Seen:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.is_slow = True


SEEN: list[Seen] = []


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        seen = SEEN[-1]
        if self.key == "slow" and seen.is_slow:
            await asyncio.sleep(SLOW_S)
        seen.counts[self.key] += 1


class Place:
    """One silo with one queue, 20 quick streams and a slow one."""

    def __init__(
        self, simulation: Simulation, capabilities: frozenset[Capability], cache: CacheLimits
    ) -> None:
        self.seen = Seen()
        SEEN.append(self.seen)
        broker = Broker(capacity=100_000)
        self.provider = PersistentStreams(
            ReferenceQueues(broker, capabilities),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.1),
            options=StreamOptions(cache=cache),
        )
        self.cluster = SimCluster(
            simulation,
            silos=1,
            grains=[Reader],
            streams={"default": lambda: self.provider},
            options=RuntimeOptions(idle_after_s=3600.0),
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.cluster.start()
        silo = self.cluster.silo("silo-0")
        assert silo is not None
        self.silo = silo
        for number in range(QUICK):
            self.produce(f"quick-{number}")
        await asyncio.sleep(2.0)

    def produce(self, key: str) -> None:
        stream = self.silo.stream(LINES, key)
        self.tasks.append(asyncio.create_task(self._steadily(stream)))

    async def _steadily(self, stream: Stream[int]) -> None:
        while True:
            await stream.publish(self.seen.sent[stream.key])
            self.seen.sent[stream.key] += 1
            await asyncio.sleep(EVERY_S)

    @property
    def waiting(self) -> int:
        """Return the number of events that the slow stream has not handled."""
        return self.seen.sent["slow"] - self.seen.counts["slow"]

    async def reads_per_s(self, for_s: float) -> float:
        (before,) = self.provider.stats()
        await asyncio.sleep(for_s)
        (after,) = self.provider.stats()
        return (after.read - before.read) / for_s

    async def until(self, condition: Callable[[], bool], within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.cluster.close()


def play(capabilities: frozenset[Capability], cache: CacheLimits, *, stops: bool) -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(simulation, capabilities, cache)
        await place.start()
        seen = place.seen
        assert await place.reads_per_s(2.0) >= KEPT * RATE
        place.produce("slow")
        await asyncio.sleep(30.0)
        held_up = await place.reads_per_s(2.0)
        assert held_up == 0 if stops else held_up >= KEPT * RATE
        seen.is_slow, handled = False, seen.counts["slow"]
        # one event is under way
        await place.until(lambda: seen.counts["slow"] > handled, SLOW_S + 1.0)
        await asyncio.sleep(WITHIN_S - 0.5)
        assert await place.reads_per_s(0.5) >= KEPT * RATE
        assert place.waiting <= 1, "what had waited is done"
        for _ in range(3):
            assert await place.reads_per_s(1.0) >= KEPT * RATE
        await place.stop()

    try:
        run(main, 1)
    finally:
        SEEN.clear()


@pytest.mark.parametrize(
    ("capabilities", "cache"),
    [
        pytest.param(ONCE, CACHE, id="read once"),
        pytest.param(ONCE, BUCKETS, id="by buckets", marks=pytest.mark.slow),
        pytest.param(LOG, CACHE, id="polled log", marks=pytest.mark.slow),
        pytest.param(LEASES, CACHE, id="leases", marks=pytest.mark.slow),
        pytest.param(TAGS, CACHE, id="polled, without order"),
    ],
)
@pytest.mark.spare
def test_a_queue_that_stood_still_is_read_at_its_rate_again_within_two_seconds(
    capabilities: frozenset[Capability], cache: CacheLimits
) -> None:
    play(capabilities, cache, stops=True)


@pytest.mark.spare
def test_where_it_can_be_read_again_the_reading_never_stops() -> None:
    play(LEDGER, CACHE, stops=False)
