"""How often the loop goes round between an event and its handler."""

from __future__ import annotations

import asyncio

from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Silo
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

POINTS = StreamNamespace("points", int)
SEEN: list[int] = []


class Plotter(Grain):
    @subscribe(POINTS)
    async def on_point(self, event: Event[int]) -> None:
        SEEN.append(event.item)


async def test_a_handler_runs_one_turn_of_the_loop_after_its_event_was_stored() -> None:
    """In the silo of queue, agent and grain, while nothing waits."""
    SEEN.clear()
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(rebalance_delay_s=0.01))
    async with Silo(grains=[Plotter], streams={"default": streams}) as silo:
        stream = silo.stream(POINTS, "a")
        await stream.publish(0)
        await until(lambda: SEEN == [0])
        for number in range(1, 100):
            await spin(5)  # until the queue is read again
            await stream.publish(number)
            turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(turn.set)  # behind the reader that was woken
            await turn.wait()
            assert SEEN[-1] == number
