"""The number of loop iterations between an event and its handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Silo, connect
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe
from millstream.streams.publishing.ingest import IngestTarget

POINTS = StreamNamespace("points", int)
SEEN: list[int] = []


class Plotter(Grain):
    @subscribe(POINTS)
    async def on_point(self, event: Event[int]) -> None:
        SEEN.append(event.item)


async def test_a_handler_runs_one_turn_of_the_loop_after_its_event_was_stored() -> None:
    """In the silo of queue, agent and grain, while no work waits."""
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
            asyncio.get_running_loop().call_soon(turn.set)  # after the reader that was woken
            await turn.wait()
            assert SEEN[-1] == number


async def test_the_same_is_so_after_the_frame_of_a_client_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event is handled one iteration after its frame, on each loop of the client."""
    SEEN.clear()
    turns: list[tuple[int, bool]] = []  # the event, and whether the next iteration had handled it
    store = IngestTarget.publish_together

    def stored(target: IngestTarget, calls: list[tuple[Any, ...]]) -> list[object]:
        answers, handled = store(target, calls), len(SEEN)

        def note() -> None:
            turns.append((handled, len(SEEN) == handled + 1))

        asyncio.get_running_loop().call_soon(note)  # after the reader that was woken
        return answers

    monkeypatch.setattr(IngestTarget, "together", {"publish": stored})
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(rebalance_delay_s=0.01))
    async with (
        Silo(grains=[Plotter], streams={"default": streams}) as silo,
        connect(silo.gateway) as client,
    ):
        stream = client.stream(POINTS, "b")
        await stream.publish(0)
        await until(lambda: SEEN == [0])
        turns.clear()
        for number in range(1, 50):
            await spin(5)
            await stream.publish(number)
            await until(lambda wanted=number: SEEN[-1] == wanted)  # type: ignore[misc]
        assert turns == [(number, True) for number in range(1, 50)]
