"""Streams that generate their own events: `python examples/generator/main.py`.

This is Orleans' example of a persistent stream provider, in Python. The queue adapter is a
generator, with eight queues by a hash ring, which the deployment balancer shares among the silos.
Each airport counts its arrivals and stores its position with its count. So each arrival counts
once, whichever silo reads its queue.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from millstream.balancers import DeploymentBalancer
from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues
from millstream.runtime import Grain, LocalCluster, Silo, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

AIRPORTS = ("ATL", "BOS", "DEN", "JFK", "LAX", "ORD", "SEA", "SFO")
EVENTS = 500
QUEUES = 8


@dataclass
class Flight:
    carrier: str
    arr_delay: float


@dataclass
class Tally:
    flights: int = 0
    delay_min: float = 0.0


ARRIVALS = StreamNamespace("arrivals", Flight)


def flight(airport: str, number: int) -> Flight:
    """Return the same flight for the same airport and number, in every silo."""
    chance = random.Random(f"{airport}/{number}")
    return Flight(chance.choice(("AA", "DL", "UA")), round(chance.expovariate(0.1), 1))


class Airport(Grain):
    tally = state(Tally)

    @subscribe(ARRIVALS, commit_with=tally)
    async def on_arrival(self, event: Event[Flight]) -> None:
        self.tally.value.flights += 1
        self.tally.value.delay_min += event.item.arr_delay

    async def result(self) -> Tally:
        return self.tally.value


def streams() -> PersistentStreams:
    options = GeneratorOptions(streams=AIRPORTS, events_per_stream=EVENTS, events_per_s=4_000)
    return PersistentStreams(
        GeneratorQueues(Generated(ARRIVALS, flight), options=options),
        mapper=HashRingMapper(queues=QUEUES),
        balancer=DeploymentBalancer(rebalance_delay_s=0.2),
    )


def queues_of(silo: Silo) -> list[str]:
    """Return the queues that a silo reads."""
    return sorted(one.queue for one in silo.services.part("default").stats())


async def main() -> None:
    async with LocalCluster(silos=2, grains=[Airport], streams={"default": streams}) as cluster:
        await cluster.start_silo()  # while events arrive, so some queues move to it
        airports = [cluster.grain(Airport, key) for key in AIRPORTS]
        while True:
            tallies = [await airport.result() for airport in airports]
            queues = {silo.services.name: queues_of(silo) for silo in cluster.silos}
            are_dealt = all(queues.values()) and sum(map(len, queues.values())) == QUEUES
            if are_dealt and all(tally.flights >= EVENTS for tally in tallies):
                break
            await asyncio.sleep(0.05)
        for name, read in queues.items():
            print(f"{name} reads {', '.join(read)}")
    for key, tally in zip(AIRPORTS, tallies, strict=True):
        expected = sum(flight(key, number).arr_delay for number in range(EVENTS))
        is_right = abs(tally.delay_min - expected) < 0.001
        mean = tally.delay_min / tally.flights
        print(f"{key}: {tally.flights} flights, {mean:.1f} min late, {is_right and 'right'}")


if __name__ == "__main__":
    asyncio.run(main())
