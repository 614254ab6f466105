"""A stream with very many subscriptions: each gets all events in order, and the loop is not
blocked."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Silo
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.audience.stream_entry import AT_ONCE
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.delivery.deliveries import Deliveries
from millstream.streams.agent.delivery.subscriber import Subscriber

LINES = StreamNamespace("lines", int, subscriptions="explicit")
COUNT = AT_ONCE * 4 + 1
SEEN: dict[str, list[int]] = defaultdict(list)


class Hearer(Grain):
    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def leave(self) -> None:
        for subscription in await self.stream(LINES, "s").subscriptions(self):
            await subscription.unsubscribe()

    async def _on_line(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)


class Offers:
    """Counts the offers in one iteration of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        offer = Deliveries.offer

        def counted(deliveries: Deliveries, subscriber: Subscriber, slot: Slot) -> None:
            if not self._now:
                asyncio.get_running_loop().call_soon(self._next)
            self._now += 1
            self.most = max(self.most, self._now)
            offer(deliveries, subscriber, slot)

        monkeypatch.setattr(Deliveries, "offer", counted)

    def _next(self) -> None:
        self._now = 0


async def listening(silo: Silo, count: int) -> None:
    await asyncio.gather(*(silo.grain(Hearer, str(number)).listen() for number in range(count)))


def silo_of() -> Silo:
    SEEN.clear()
    streams = PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )
    return Silo(grains=[Hearer], streams={"default": streams})


def agent_of(silo: Silo) -> PullingAgent:
    (agent,) = silo.services.part("default").manager.agents()
    found: PullingAgent = agent
    return found


@pytest.mark.parametrize("is_cold", [True, False])
async def test_very_many_subscriptions_get_each_event_in_order_a_part_at_a_time(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silo_of() as silo:
        stream = silo.stream(LINES, "s")
        if not is_cold:
            await stream.publish(-1)
        await listening(silo, COUNT)
        offers = Offers(monkeypatch)
        for number in range(5):
            await stream.publish(number)
            await spin(number)
        await until(lambda: sum(map(len, SEEN.values())) >= 5 * COUNT)
        assert set(map(tuple, SEEN.values())) == {tuple(range(5))} and len(SEEN) == COUNT
        assert offers.most <= AT_ONCE
        agent = agent_of(silo)
        await until(lambda: agent.undone == 0)


async def test_who_comes_and_goes_meanwhile_loses_nothing_and_gets_nothing_more() -> None:
    async with silo_of() as silo:
        stream = silo.stream(LINES, "s")
        await listening(silo, COUNT)
        await stream.publish_many([0, 1])
        last = str(COUNT - 1)
        await silo.grain(Hearer, last).leave()
        left_with = len(SEEN[last])
        await silo.grain(Hearer, "new").listen()
        await stream.publish(2)
        await until(lambda: sum(map(len, SEEN.values())) >= 3 * (COUNT - 1) + 1 + left_with)
        await spin(50)
        assert SEEN["new"][-1:] == [2] and len(SEEN[last]) == left_with
        assert {tuple(SEEN[str(number)]) for number in range(COUNT - 1)} == {(0, 1, 2)}
        agent = agent_of(silo)
        await until(lambda: agent.undone == 0)


async def test_what_is_let_go_while_it_is_given_is_held_by_nobody() -> None:
    async with silo_of() as silo:
        stream = silo.stream(LINES, "s")
        await stream.publish(-1)
        await listening(silo, COUNT)
        agent = agent_of(silo)
        await stream.publish_many([0, 1])
        entry = agent.subscribers.streams[stream.id]
        await until(lambda: bool(entry.spread))
        agent.pause()
        agent.cache.forget(agent.subscribers.let_go)
        await spin(50)
        assert not entry.spread and agent.cache.events == 0
