"""A subscription begins at a time, through the provider's reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

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
        with pytest.raises(StreamError, match="cannot be read again"):
            async with cluster.stream(LINES, "s").consume(start=datetime.now(UTC)):
                raise AssertionError("entered")
