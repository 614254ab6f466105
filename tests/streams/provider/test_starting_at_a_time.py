"""A subscription starts at a time, with the help of the provider's reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.contract.reference import Broker, ReferenceQueues, ReferenceReader

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, LocalCluster
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Capability,
    Event,
    PersistentStreams,
    Start,
    StreamError,
    StreamNamespace,
    Token,
)

LINES = StreamNamespace("lines", int)


def provider() -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())


LAST = 99


def test_what_was_accepted_at_that_time_or_later_comes() -> None:
    """One event a minute; the clocks of hosts differ by at most half a second."""

    async def play(simulation: Simulation) -> dict[int, list[int]]:
        streams = {"default": provider}
        cluster = SimCluster(simulation, silos=2, grains=[], streams=streams)
        await cluster.start()
        host = simulation.host("client")
        seen: dict[int, list[int]] = {}

        async def read() -> None:
            async with cluster.client(host) as client:
                stream = client.stream(LINES, "s")
                async with stream.consume(name="holds what a memory queue would forget"):
                    pass
                begun = datetime.fromtimestamp(simulation.env(host).wall_s(), UTC)
                for number in range(4):
                    await asyncio.sleep(30)
                    await stream.publish(number)
                    await asyncio.sleep(30)
                await stream.publish(LAST)
                for minutes in (0, 1, 2, 3):
                    start: Start = begun + timedelta(minutes=minutes)
                    async with stream.consume(start=start) as events:
                        seen[minutes] = await until_the_last(events)
                async with stream.consume(start=begun + timedelta(minutes=9)) as events:
                    await stream.publish(LAST)
                    seen[9] = await until_the_last(events)

        await simulation.call(host, read())
        await cluster.close()
        return seen

    found = run(play, 1, max_virtual_s=900).result
    assert found == {minutes: [*range(minutes, 4), LAST] for minutes in (0, 1, 2, 3, 9)}


async def until_the_last(events: AsyncIterator[Event[int]]) -> list[int]:
    seen: list[int] = []
    async for event in events:
        seen.append(event.item)
        if event.item == LAST:
            break
    return seen


class SlowReader(ReferenceReader):
    """Finds the position of a time only when the test permits it."""

    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def seek(self, when: datetime, /) -> Token | None:
        token = await super().seek(when)
        self.asked.set()
        await self.may_answer.wait()
        return token


class SlowQueues(ReferenceQueues):
    reader_class = SlowReader


@pytest.mark.parametrize("earlier", [0, 3])
async def test_events_that_come_while_the_time_is_looked_up_are_delivered(earlier: int) -> None:
    """The provider had no event of that time when it looked."""
    SlowReader.asked, SlowReader.may_answer = asyncio.Event(), asyncio.Event()
    streams = PersistentStreams(SlowQueues(Broker()), balancer=DeploymentBalancer())
    async with LocalCluster(grains=[], streams={"default": lambda: streams}) as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(start="earliest") as events:  # so that the queue is read
            for number in range(earlier):
                await stream.publish(number)
                await anext(events)
            late = stream.consume(start=datetime.now(UTC) + timedelta(milliseconds=1))
            entering = asyncio.ensure_future(late.__aenter__())
            await SlowReader.asked.wait()
            await stream.publish(LAST - 1)
            assert (await anext(events)).item == LAST - 1
            SlowReader.may_answer.set()
            await entering
            await stream.publish(LAST)
            assert await until_the_last(late) == [LAST - 1, LAST]
            await late.__aexit__(None, None, None)


async def test_a_time_without_a_zone_is_refused() -> None:
    async with LocalCluster(grains=[], streams={"default": provider}) as cluster:
        with pytest.raises(ConfigError, match="with a time zone"):
            cluster.stream(LINES, "s").consume(start=datetime(2024, 1, 1))


async def test_a_provider_that_cannot_be_read_again_refuses_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = MemoryQueues.capabilities - {Capability.REWIND}
    monkeypatch.setattr(MemoryQueues, "capabilities", without)
    async with LocalCluster(grains=[], streams={"default": provider}) as cluster:
        with pytest.raises(StreamError, match="the provider has no REWIND"):
            async with cluster.stream(LINES, "s").consume(start=datetime.now(UTC)):
                raise AssertionError("entered")
