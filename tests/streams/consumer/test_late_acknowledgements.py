"""Events that a grain acknowledges by hand during a pause or a hand-over are not redelivered, even
to another activation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Client, Grain
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    pause_queue,
    resume_queue,
)

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: list[int] = []
QUEUE = "queue-0"
SETTLES_S = 15.0


class Keeper(Grain):
    def __init__(self) -> None:
        self._events: dict[int, Event[int]] = {}

    async def listen(self) -> None:
        await self.stream(LINES, "k").subscribe(self._on_line, ack="manual")

    async def acknowledge(self, item: int) -> None:
        await self.context.ack(self._events[item])

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def _on_line(self, event: Event[int]) -> None:
        self._events[event.item] = event
        SEEN.append(event.item)


class Story:
    """A client, and a grain that has handled some events and acknowledged none."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.keeper = client.grain(Keeper, "k")
        self.stream = client.stream(LINES, "k")

    async def begin(self, items: int) -> None:
        await self.keeper.listen()
        await self.stream.publish_many(range(items))
        await asyncio.sleep(1.0)
        assert list(range(items)) == SEEN

    async def pause(self) -> None:
        (one,) = await self.stream.subscriptions()
        await one.pause()

    async def acknowledge(self, item: int) -> None:
        await self.keeper.acknowledge(item)
        await asyncio.sleep(SETTLES_S)

    async def resume_anew(self, *, start: str = "") -> None:
        """Resume with another activation."""
        await self.keeper.leave()
        await asyncio.sleep(1.0)
        (one,) = await self.stream.subscriptions()
        await (one.resume(start="earliest") if start else one.resume())
        await self.stream.publish(9)
        await asyncio.sleep(1.0)


def play(tell: Callable[[Story], Awaitable[None]], seed: int) -> list[int]:
    """Return the events that the grain has seen before the silos stop."""
    SEEN.clear()
    seen: list[int] = []

    async def main(simulation: Simulation) -> None:
        def provider() -> PersistentStreams:
            return PersistentStreams(
                MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
            )

        streams = {"default": provider}
        cluster = SimCluster(simulation, silos=3, grains=[Keeper], streams=streams)
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host, is_operator=True) as client:
                await tell(Story(client))
                seen.extend(SEEN)

        await simulation.call(host, program())
        await cluster.close()

    run(main, seed, max_virtual_s=300.0)
    return seen


@pytest.mark.parametrize("items", [1, 3])
def test_what_is_acknowledged_during_a_pause_does_not_come_again(items: int) -> None:
    async def tell(story: Story) -> None:
        await story.begin(items)
        await story.pause()
        await story.acknowledge(items - 1)
        await story.resume_anew()

    assert play(tell, items) == [*range(items), 9]


def test_what_is_acknowledged_in_part_during_a_pause_comes_again_from_there_on() -> None:
    async def tell(story: Story) -> None:
        await story.begin(4)
        await story.pause()
        await story.acknowledge(1)
        await story.resume_anew()

    assert play(tell, 4) == [0, 1, 2, 3, 2, 3, 9]


@pytest.mark.parametrize("when", ["before", "while nobody reads", "after"])
def test_what_is_acknowledged_around_a_hand_over_reaches_the_next_owner(when: str) -> None:
    async def tell(story: Story) -> None:
        await story.begin(2)
        await story.pause()
        if when == "before":
            await story.acknowledge(1)
        await pause_queue(story.client, QUEUE)
        await asyncio.sleep(SETTLES_S)
        if when == "while nobody reads":
            await story.keeper.acknowledge(1)
            await asyncio.sleep(1.0)
        await resume_queue(story.client, QUEUE)
        await asyncio.sleep(SETTLES_S)
        if when == "after":
            await story.acknowledge(1)
        await story.resume_anew()

    assert play(tell, 5) == [0, 1, 9]


def test_what_was_acknowledged_comes_again_where_the_subscription_is_moved_back() -> None:
    async def tell(story: Story) -> None:
        await story.begin(2)
        await story.pause()
        await story.acknowledge(0)
        await story.resume_anew(start="earliest")

    seen = play(tell, 6)
    assert seen[:2] == [0, 1] and seen[-2:] == [1, 9]
