"""The events that are marked `redelivered` after the owner of their queue has crashed."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.reference import LEDGER, Broker, ReferenceQueues, ReferenceReader

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, StorageUnavailable
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    CacheLimits,
    Capability,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)

LINES = StreamNamespace("lines", int, subscriptions="implicit")
NAMES = ("silo-0", "silo-1", "silo-2")
PUBLISHED, EVERY_S = 1_200, 0.05
DETECTED_S = 2.0  # the time in which a crash is detected and the queue is taken over
SEEN: list[Event[int]] = []
SLOW: set[str] = set()  # keys of grains with slow handlers
SLOW_S = 8.0


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key in SLOW:
            await asyncio.sleep(SLOW_S)
        SEEN.append(event)


class NotingReader(ReferenceReader):
    """Notes the end of the queue at the first call."""

    last: Token | None = None

    async def bounds(self) -> tuple[Token | None, Token | None]:
        found = await super().bounds()
        NotingReader.last = NotingReader.last or found[1]
        return found


class NotingQueues(ReferenceQueues):
    reader_class = NotingReader


class BoundlessReader(ReferenceReader):
    async def bounds(self) -> tuple[Token | None, Token | None]:
        raise StorageUnavailable("no bounds today")


class BoundlessQueues(ReferenceQueues):
    reader_class = BoundlessReader


class Place:
    """Three silos with one queue; events are published every 50 ms of simulated time."""

    def __init__(
        self,
        simulation: Simulation,
        queues: type[ReferenceQueues] = ReferenceQueues,
        capabilities: frozenset[Capability] = LEDGER,
    ) -> None:
        SEEN.clear()
        SLOW.clear()
        self.simulation = simulation
        self.published = 0
        broker = Broker(capacity=100_000)

        def make() -> PersistentStreams:
            return PersistentStreams(
                queues(broker, capabilities),
                mapper=HashRingMapper(queues=1),
                balancer=DeploymentBalancer(rebalance_delay_s=0.1),
                options=StreamOptions(cache=CacheLimits(events_max=50, stream_events_max=12)),
            )

        self.cluster = SimCluster(simulation, silos=3, grains=[Reader], streams={"default": make})

    def owner(self) -> str:
        """Return the silo that reads the queue."""
        return next(
            name
            for silo, name in ((self.cluster.silo(name), name) for name in NAMES)
            if silo is not None and silo.services.part("default").manager.agents()
        )

    async def publish(self, count: int, avoiding: str) -> None:
        silo = next(filter(None, (self.cluster.silo(one) for one in NAMES if one != avoiding)))
        stream = silo.stream(LINES, "a")
        for _ in range(count):
            await stream.publish(self.published)
            self.published += 1
            await asyncio.sleep(EVERY_S)

    async def until_all_are_handled(self) -> None:
        async with asyncio.timeout(120.0):
            while {one.item for one in SEEN} != set(range(self.published)):
                await asyncio.sleep(EVERY_S)


def marked() -> list[int]:
    return [one.item for one in SEEN if one.redelivered]


async def crash_an_owner(place: Place) -> None:
    async with place.cluster as cluster:
        await cluster.until_settled(calm_s=20.0)
        owner = place.owner()
        await place.publish(20, avoiding=owner)
        await place.until_all_are_handled()
        place.simulation.crash(owner)
        await place.publish(PUBLISHED - 20, avoiding=owner)
        await place.until_all_are_handled()
        assert place.owner() != owner


def test_events_that_are_stored_after_a_take_over_are_not_marked() -> None:
    """Of 1,200 events, only those that wait while the crash is detected may have been delivered."""

    async def main(simulation: Simulation) -> None:
        await crash_an_owner(Place(simulation))
        first = next(at for at, one in enumerate(SEEN) if one.item == 20)
        twice = [one for one in SEEN[first:] if one.item < 20]
        assert all(one.redelivered for one in twice)
        assert len(marked()) <= DETECTED_S / EVERY_S

    run(main, 1)


def test_a_subscription_that_lags_gets_marks_for_what_was_stored_before_the_take_over() -> None:
    """Pages that are read again for the subscription begin before the last such event, and end
    after it."""

    async def main(simulation: Simulation) -> None:
        place = Place(simulation, NotingQueues)
        async with place.cluster as cluster:
            await cluster.until_settled(calm_s=20.0)
            owner = place.owner()
            NotingReader.last = None
            SLOW.add("a")
            await place.publish(100, avoiding=owner)
            place.simulation.crash(owner)
            await place.publish(PUBLISHED - 100, avoiding=owner)
            SLOW.clear()
            await place.until_all_are_handled()
        assert NotingReader.last == max(one.token for one in SEEN if one.redelivered)
        unmarked = [one.item for one in SEEN if not one.redelivered and one.item > 20]
        assert unmarked == list(range(max(marked()) + 1, PUBLISHED))
        assert 100 <= unmarked[0] <= 100 + DETECTED_S / EVERY_S

    run(main, 1)


@pytest.mark.parametrize(
    ("queues", "capabilities"),
    [
        pytest.param(BoundlessQueues, LEDGER, id="bounds raises"),
        pytest.param(ReferenceQueues, LEDGER - {Capability.REWIND, Capability.SEALED}, id="none"),
    ],
)
def test_without_an_answer_events_of_a_minute_after_a_take_over_may_be_marked(
    queues: type[ReferenceQueues], capabilities: frozenset[Capability]
) -> None:
    async def main(simulation: Simulation) -> None:
        await crash_an_owner(Place(simulation, queues, capabilities))
        assert len(marked()) > DETECTED_S / EVERY_S

    run(main, 1)
