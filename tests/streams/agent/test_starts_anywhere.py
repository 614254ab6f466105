"""The start of an explicit subscription, with and without `REWIND`: on a stream that is new to the
agent, from another silo, across a hand-over, and ahead of the queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from tests.conditions import spin, until
from tests.contract.adapters.partitions import (
    PartitionedQueues,
)
from tests.streams.partition_place import PartitionPlace

from millstream.runtime import Grain, LocalCluster, Silo
from millstream.streams import (
    Capability,
    Event,
    Start,
    StreamNamespace,
    Token,
    pause_stream,
    resume_stream,
)
from millstream.streams.agent.agent import PullingAgent

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: dict[str, list[int]] = defaultdict(list)
REWINDS = pytest.mark.parametrize("can_rewind", [True, False], ids=["rewind", "no rewind"])


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Hearer(Grain):
    async def listen(self, start: Start | None = None) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, start=start)

    async def listen_to_last(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, where=self._is_last)

    async def go_back(self) -> None:
        (subscription,) = await self.stream(LINES, "s").subscriptions(self)
        await subscription.resume(start="earliest")

    @staticmethod
    def _is_last(event: Event[int]) -> bool:
        return event.item >= 100

    async def _on_line(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)


class OnceReadQueues(PartitionedQueues):
    """The same broker without reading again."""

    capabilities = PartitionedQueues.capabilities - {Capability.REWIND}


def place_of(*, can_rewind: bool) -> PartitionPlace:
    return PartitionPlace([Hearer], queues=PartitionedQueues if can_rewind else OnceReadQueues)


async def publish(cluster: LocalCluster, *items: int) -> None:
    for item in items:
        await cluster.stream(LINES, "s").publish(item)


def agents(cluster: LocalCluster) -> list[tuple[Silo, PullingAgent]]:
    return [
        (silo, agent)
        for silo in cluster.silos
        for agent in silo.services.part("default").manager.agents()
    ]


async def reader(cluster: LocalCluster) -> tuple[Silo, PullingAgent]:
    await until(lambda: any(agent.reader.is_reading for _, agent in agents(cluster)))
    return agents(cluster)[0]


@REWINDS
@pytest.mark.parametrize("start", [Token(1, 500), Token(7, 0)], ids=str)
@pytest.mark.parametrize("has_met", [True, False], ids=["met", "cold"])
async def test_a_token_ahead_of_the_queue_does_not_make_deaf(
    can_rewind: bool, start: Token, has_met: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with place_of(can_rewind=can_rewind).cluster() as cluster:
        if has_met:
            await cluster.grain(Hearer, "other").listen()
            await publish(cluster, 0, 1, 2)
            await until(lambda: SEEN["other"] == [0, 1, 2])
        await reader(cluster)
        await cluster.grain(Hearer, "a").listen(start)
        await publish(cluster, 3, 4)
        await until(lambda: SEEN["a"] == [3, 4])
        await publish(cluster, 5)
        await until(lambda: SEEN["a"] == [3, 4, 5])
    assert f"should begin at {start}" in caplog.text


@REWINDS
async def test_a_token_that_is_stored_and_not_read_yet_comes_first(can_rewind: bool) -> None:
    async with place_of(can_rewind=can_rewind).cluster() as cluster:
        _, agent = await reader(cluster)
        # the read that is out may bring the first event, and the next read the others
        agent.pause()
        await publish(cluster, 0, 1, 2)
        token = await cluster.silos[0].stream(LINES, "s").publish(3)
        assert token is not None
        await cluster.grain(Hearer, "a").listen(token)
        agent.resume()
        await publish(cluster, 4)
        await until(lambda: SEEN["a"][-1:] == [4])
        assert SEEN["a"] == [3, 4]


@REWINDS
async def test_one_that_waits_for_a_token_and_is_paused_stays_so(can_rewind: bool) -> None:
    async with place_of(can_rewind=can_rewind).cluster() as cluster:
        await reader(cluster)
        await cluster.grain(Hearer, "other").listen()
        await cluster.grain(Hearer, "a").listen(Token(1, 500))
        for one in await cluster.stream(LINES, "s").subscriptions():
            if one.consumer == "Hearer/a":
                await one.pause()
        await publish(cluster, 0, 1)
        await until(lambda: SEEN["other"] == [0, 1])
        await spin(50)
        assert SEEN["a"] == []


@REWINDS
async def test_a_paused_stream_waits_in_the_cache_or_behind_it(can_rewind: bool) -> None:
    async with place_of(can_rewind=can_rewind).cluster() as cluster:
        _, agent = await reader(cluster)
        await cluster.grain(Hearer, "a").listen()
        await pause_stream(cluster, LINES, "s")
        await publish(cluster, 0, 1)
        await until(lambda: agent.reader.core.read_count == 2)
        await spin(50)
        assert SEEN["a"] == []
        assert (agent.cache.events, len(agent.behind)) == ((0, 1) if can_rewind else (2, 0))
        await resume_stream(cluster, LINES, "s")
        await until(lambda: SEEN["a"] == [0, 1])


@REWINDS
async def test_what_comes_later_is_not_taken_for_a_start_that_was_changed(
    can_rewind: bool,
) -> None:
    async with place_of(can_rewind=can_rewind).cluster() as cluster:
        await reader(cluster)
        await cluster.grain(Hearer, "a").listen(Token(1, 500))
        await cluster.grain(Hearer, "a").listen("next")
        await publish(cluster, 0, 1)
        await until(lambda: SEEN["a"] == [0, 1])
        await spin(50)
        assert SEEN["a"] == [0, 1]


@REWINDS
@pytest.mark.parametrize("silos", [1, 2])
async def test_earliest_of_a_stream_that_the_agent_has_not_met(
    can_rewind: bool, silos: int
) -> None:
    async with place_of(can_rewind=can_rewind).cluster(silos) as cluster:
        _, agent = await reader(cluster)
        agent.pause()
        await publish(cluster, 0, 1, 2)  # stored, and not read by any agent
        for number in range(4):  # through any silo
            await cluster.grain(Hearer, f"h{number}").listen("earliest")
        agent.resume()
        await publish(cluster, 3)
        for number in range(4):
            key = f"h{number}"
            await until(lambda key=key: SEEN[key] == [0, 1, 2, 3])  # type: ignore[misc]


@REWINDS
async def test_earliest_goes_on_with_the_next_owner(can_rewind: bool) -> None:
    async with place_of(can_rewind=can_rewind).cluster(2) as cluster:
        silo, agent = await reader(cluster)
        agent.pause()
        await publish(cluster, 0, 1, 2)
        for number in range(4):
            await cluster.grain(Hearer, f"h{number}").listen("earliest")
        await silo.stop()
        stays = next(one for one in cluster.silos if one is not silo)
        await until(lambda: bool(stays.services.part("default").manager.agents()))
        await stays.stream(LINES, "s").publish(3)
        for number in range(4):
            key = f"h{number}"
            await until(lambda key=key: SEEN[key] == [0, 1, 2, 3])  # type: ignore[misc]


@REWINDS
async def test_earliest_asked_for_while_the_queue_has_no_owner(can_rewind: bool) -> None:
    place = place_of(can_rewind=can_rewind)
    async with place.cluster() as cluster:
        _, agent = await reader(cluster)
        agent.pause()
        await publish(cluster, 0, 1, 2)
    async with place.cluster() as cluster:
        listening = asyncio.ensure_future(cluster.grain(Hearer, "a").listen("earliest"))
        await publish(cluster, 3)
        await listening
        await publish(cluster, 4)
        expected = [0, 1, 2, 3, 4]
        # without reading again, events that were read before the subscription are not delivered
        await until(lambda: SEEN["a"] == expected or (not can_rewind and SEEN["a"][-1:] == [4]))
        assert SEEN["a"] == expected[-len(SEEN["a"]) :]


async def test_earliest_of_a_stream_that_nobody_hears_reaches_back_with_rewind_only() -> None:
    for can_rewind in (True, False):
        SEEN.clear()
        async with place_of(can_rewind=can_rewind).cluster() as cluster:
            _, agent = await reader(cluster)
            await publish(cluster, 0, 1, 2)
            await until(lambda agent=agent: agent.reader.core.read_count == 3)  # type: ignore[misc]
            await spin(50)
            await cluster.grain(Hearer, "a").listen("earliest")
            await publish(cluster, 3)
            expected = [0, 1, 2, 3] if can_rewind else [3]
            await until(lambda expected=expected: SEEN["a"] == expected)  # type: ignore[misc]


async def test_going_back_is_heard_though_only_what_a_filter_drops_comes_first() -> None:
    async with place_of(can_rewind=True).cluster() as cluster:
        await cluster.grain(Hearer, "a").listen_to_last()
        await publish(cluster, *range(60), 100, 101)
        await until(lambda: SEEN["a"] == [100, 101])
        await cluster.grain(Hearer, "a").go_back()
        await until(lambda: SEEN["a"] == [100, 101, 100, 101])
