"""Grains subscribe, filter, pause and unsubscribe, and whole streams are paused, under faults.

Silos join and crash, and messages and writes fail. After the last fault each agent knows exactly
the stored subscriptions. If no message to an agent was lost silently, a subscription gets each
event that was published between its beginning and its end and that its filter accepts. It gets no
other event. No delivery of a stream begins while the stream is paused.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from tests.contract.adapters.partitions import (
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Client, Grain, MillstreamError
from millstream.runtime.testing import FailingStore, SimCluster, Simulation, run
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    OwnershipOptions,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    pause_stream,
    resume_stream,
)
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.delivery.consumer_calls import ConsumerCalls
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.api.rendezvous import rendezvous_key
from millstream.streams.api.subscription_rows import row_key, rows_under
from millstream.streams.provider.agents import AgentCalls

SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
NUMBERS = StreamNamespace("numbers", int, subscriptions="explicit")
STREAMS, READERS = 4, 3
TROUBLE_S, CALM_S, LATE_S = 25.0, 60.0, 60.0
SETTLES_S = 1.0  # the time in which each agent hears of a pause
LAST = 1_000_000  # published after the last fault


class Reader(Grain):
    async def listen(self, key: str, filters: bool) -> None:
        where = self._is_even if filters else None
        stream = self.stream(NUMBERS, key)
        await stream.subscribe(
            self._on_number, where=where, retries=3, give_up_on=(KeyError,), on_give_up="skip"
        )

    async def leave(self, key: str) -> None:
        for subscription in await self.stream(NUMBERS, key).subscriptions(self):
            await subscription.unsubscribe()

    async def pause(self, key: str) -> None:
        for subscription in await self.stream(NUMBERS, key).subscriptions(self):
            await subscription.pause()

    async def resume(self, key: str) -> None:
        for subscription in await self.stream(NUMBERS, key).subscriptions(self):
            await subscription.resume()

    @staticmethod
    def _is_even(event: Event[int]) -> bool:
        return event.item % 2 == 0

    async def _on_number(self, event: Event[int]) -> None:
        HEARD[self.key, event.key].append(event.item)


HEARD: dict[tuple[str, str], list[int]] = defaultdict(list)


@dataclass
class Story:
    """The test's own knowledge: published events with times, and times of certain subscription."""

    published: dict[str, list[tuple[float, float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Start time, end time and number of each publish."""
    surely: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ends: dict[tuple[str, str], bool] = field(default_factory=dict)
    filters: dict[tuple[str, str], bool] = field(default_factory=dict)
    lost: int = 0
    are_lost: bool = False
    pauses: int = 0
    broken_pauses: list[str] = field(default_factory=list)
    sends: Counter[str] = field(default_factory=Counter)
    """Deliveries that began, by stream."""
    stored: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, list[str]] = field(default_factory=dict)


class Program:
    def __init__(self, simulation: Simulation, client: Client, story: Story) -> None:
        self.rng, self.client, self.story = simulation.rng, client, story
        self.is_over = False

    async def surely(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
                return
            except MillstreamError:
                await asyncio.sleep(0.2)

    async def reader(self, reader: str, key: str) -> None:
        """Subscribe and unsubscribe, again and again; the final state depends on chance."""
        grain, who, story = self.client.grain(Reader, reader), (reader, key), self.story
        filters = story.filters[who] = self.rng.random() < 0.5
        clock = asyncio.get_running_loop().time
        while True:
            await self.surely(lambda: grain.listen(key, filters))
            begun_s = clock()
            await asyncio.sleep(self.rng.uniform(0.5, 6.0))
            if self.rng.random() < 0.4:
                await self.surely(lambda: grain.pause(key))
                await asyncio.sleep(self.rng.uniform(0.1, 2.0))
                await self.surely(lambda: grain.resume(key))
            if self.is_over and self.rng.random() < 0.5:
                story.surely[who].append((begun_s, float("inf")))
                story.ends[who] = True
                return
            story.surely[who].append((begun_s, clock()))
            await self.caught_up(who, begun_s)
            await self.surely(lambda: grain.leave(key))
            if self.is_over:
                story.ends[who] = False
                return
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))

    async def caught_up(self, who: tuple[str, str], begun_s: float) -> None:
        """Wait for the last published event: events that wait at the end of a subscription are not
        delivered."""
        fits = [
            number
            for at_s, _, number in self.story.published[who[1]]
            if at_s >= begun_s and (number % 2 == 0 or not self.story.filters[who])
        ]
        end_s = asyncio.get_running_loop().time() + (0.0 if self.story.are_lost else LATE_S)
        while fits and fits[-1] not in HEARD[who] and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.05)

    async def pauser(self, key: str) -> None:
        """Pause the whole stream now and then; no delivery begins meanwhile.

        Deliveries that were under way end by the time the grain's silo is replaced.
        """
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(1.0, 8.0))
            await self.surely(lambda: pause_stream(self.client, NUMBERS, key))
            await asyncio.sleep(SETTLES_S)
            sends, heard = self.story.sends[key], self.heard_of(key)
            await asyncio.sleep(self.rng.uniform(0.1, 3.0))
            self.story.pauses += 1
            if self.heard_of(key) != heard and self.story.sends[key] != sends:
                self.story.broken_pauses.append(key)
            await self.surely(lambda: resume_stream(self.client, NUMBERS, key))

    def heard_of(self, key: str) -> int:
        return sum(len(heard) for (_, stream), heard in HEARD.items() if stream == key)

    async def publisher(self, key: str) -> None:
        stream, number = self.client.stream(NUMBERS, key), 0
        while not self.is_over:
            number += 1
            begun_s = asyncio.get_running_loop().time()
            await self.surely(partial(stream.publish, number))
            done_s = asyncio.get_running_loop().time()
            self.story.published[key].append((begun_s, done_s, number))
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))


def lose_messages(
    simulation: Simulation, story: Story, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    """Let some messages to agents be lost, although the sender counts them as delivered."""
    for name in ("attach", "pause", "detach"):
        told = getattr(AgentCalls, name)

        async def tell(self: AgentCalls, *args: Any, told: Any = told) -> None:
            if simulation.rng.random() < rate:
                story.lost += 1
                return
            await told(self, *args)

        monkeypatch.setattr(AgentCalls, name, tell)


def count_sends(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count deliveries when they begin."""
    begin = ConsumerCalls.send

    async def send(self: ConsumerCalls, subscriber: Subscriber, *args: Any, **named: Any) -> Any:
        story.sends[subscriber.stream.key] += 1
        return await begin(self, subscriber, *args, **named)

    monkeypatch.setattr(ConsumerCalls, "send", send)


async def play(simulation: Simulation, story: Story) -> None:
    HEARD.clear()
    broker = PartitionedBroker(partitions=2)
    store = FailingStore(simulation.rng)
    cluster = SimCluster(
        simulation,
        silos=3,
        grains=[Reader],
        streams={"default": lambda: provider_over(broker)},
        stores={"default": store},
    )
    await cluster.start()
    program: list[Program] = []
    client = asyncio.ensure_future(
        simulation.call(simulation.host("client"), consume(simulation, cluster, story, program))
    )
    store.rate = 0.01
    await trouble(simulation, cluster)
    store.rate = 0.0
    for one in program:
        one.is_over = True
    await asyncio.wait_for(client, 600.0)
    await cluster.until_active()
    await asyncio.sleep(CALM_S)
    await compare(cluster, store, story)
    await cluster.close()


async def consume(
    simulation: Simulation, cluster: SimCluster, story: Story, program: list[Program]
) -> None:
    async with cluster.client(simulation.host("client"), is_operator=True) as client:
        one = Program(simulation, client, story)
        program.append(one)
        streams = [f"s{number}" for number in range(STREAMS)]
        readers = [f"r{number}" for number in range(READERS)]
        await asyncio.gather(
            *(one.publisher(key) for key in streams),
            *(one.pauser(key) for key in streams),
            *(one.reader(reader, key) for reader in readers for key in streams),
        )
        await asyncio.sleep(CALM_S)
        for key in streams:
            await one.surely(lambda key=key: client.stream(NUMBERS, key).publish(LAST))  # type: ignore[misc]


async def trouble(simulation: Simulation, cluster: SimCluster) -> None:
    clock = asyncio.get_running_loop().time
    end_s = clock() + TROUBLE_S
    while clock() < end_s:
        await asyncio.sleep(simulation.rng.uniform(1.0, 4.0))
        name = f"silo-{simulation.rng.randrange(3)}"
        if simulation.rng.random() < 0.5:
            await cluster.stop_silo(name)
        else:
            simulation.crash(name)
            await asyncio.sleep(simulation.rng.uniform(0.5, 3.0))
            cluster.boot(name)
        await cluster.until_active(120.0)


def provider_over(broker: PartitionedBroker) -> PersistentStreams:
    return PersistentStreams(
        PartitionedQueues(broker),
        mapper=PartitionMapper(2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        options=StreamOptions(
            reconcile_s=0.5,
            read_wait_s=1.0,
            delivery=DeliveryOptions(backoff=Backoff(0.05, 2.0, 1.0)),
            ownership=OwnershipOptions(poll_s=0.2),
        ),
    )


async def compare(cluster: SimCluster, store: FailingStore, story: Story) -> None:
    agents: list[PullingAgent] = [
        agent
        for silo in cluster.silos()
        for agent in silo.services.part("default").manager.agents()
    ]
    for number in range(STREAMS):
        key = f"s{number}"
        stream = StreamId("numbers", key)
        rows = await rows_under(store, row_key(rendezvous_key("default", stream)))
        story.stored[key] = sorted(row.grain_key for row, _ in rows)
        queue = PartitionMapper(2).queue_for(stream)
        (agent,) = [one for one in agents if one.queue == queue]
        found = agent.subscribers.of(stream) or ()
        story.known[key] = sorted(one.grain_key for one in found)


def check_sides(story: Story) -> None:
    """Check that the stored subscriptions are those last requested, and that agents know them."""
    for number in range(STREAMS):
        key = f"s{number}"
        wanted = sorted(
            reader for (reader, one), stays in story.ends.items() if one == key and stays
        )
        assert story.stored[key] == wanted, key
        assert story.known[key] == wanted, key
    for who, stays in story.ends.items():
        assert (LAST in HEARD[who]) is stays, who


def check_loss(story: Story) -> None:
    """Check that a subscription missed no event that was published while it certainly existed."""
    for who, spans in story.surely.items():
        heard = set(HEARD[who])
        for at_s, done_s, number in story.published[who[1]]:
            fits = number % 2 == 0 or not story.filters[who]
            if fits and any(begun_s <= at_s and done_s < end_s for begun_s, end_s in spans):
                assert number in heard, f"{who} missed {number} of {at_s:.3f}, spans {spans}"


def check_filters(story: Story) -> None:
    for who, heard in HEARD.items():
        if story.filters[who]:
            assert all(number % 2 == 0 for number in heard), who


@pytest.mark.spare
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lost", [0.0, 0.2], ids=["all are told", "messages are lost"])
def test_both_sides_know_the_same_once_it_is_calm(
    seed: int, lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(are_lost=lost > 0)
    count_sends(story, monkeypatch)

    async def main(simulation: Simulation) -> None:
        if lost:
            lose_messages(simulation, story, monkeypatch, lost)
        await play(simulation, story)

    run(main, seed, max_virtual_s=3_000.0)
    assert sum(map(len, story.published.values())) > 100
    check_sides(story)
    check_filters(story)
    if lost:
        assert story.lost > 5
    else:
        check_loss(story)
        assert story.pauses > 5 and not story.broken_pauses
