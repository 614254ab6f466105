"""An agent that ends leaves no task behind, even if its stop is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryReceiver
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    Token,
    subscribe,
)

LINES = StreamNamespace("lines", int, subscriptions="implicit")
SEEN: list[int] = []


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        SEEN.append(event.item)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
    )


@pytest.mark.parametrize("slow", ["ack", "aclose"])
async def test_a_stop_that_is_cancelled_ends_every_task_of_the_agent(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 24454 of suite `ledger`: agents of an evicted silo still looked for standstills."""
    SEEN.clear()
    is_called = asyncio.Event()

    async def never(self: MemoryReceiver, *args: Sequence[Token]) -> None:
        is_called.set()
        await asyncio.Event().wait()

    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        await cluster.client.stream(LINES, "a").publish(1)
        await until(lambda: SEEN == [1])
        part: Any = cluster.silos[0].services.part("default")
        (agent,) = part.manager.agents()
        monkeypatch.setattr(MemoryReceiver, slow, never)
        stopping = asyncio.create_task(agent.stop())
        await is_called.wait()
        assert list(agent._tasks)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        monkeypatch.undo()
        await spin(10)
        assert list(agent._tasks) == []
