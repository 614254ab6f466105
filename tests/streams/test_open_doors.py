"""The callers that may use the runtime's own grains and system targets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.operators import operator_of

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.runtime import Grain, MillstreamError, NotAllowed, Silo, connect
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    dead_letters,
    pause_queue,
    pause_stream,
    resize,
    resume_queue,
    resume_stream,
    subscribe,
    why,
)
from millstream.streams.api.inbox import inbox_id
from millstream.streams.api.subscription_rows import SubscriptionRow

LINES = StreamNamespace("lines", str)
HEARD: asyncio.Queue[str] = asyncio.Queue()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        HEARD.put_nowait(event.item)


def one_silo() -> Silo:
    streams = PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )
    return Silo(grains=[Reader], streams={"default": streams})


async def test_a_client_cannot_stop_a_queue_by_a_call_to_the_grain_that_keeps_it() -> None:
    async with one_silo() as silo, connect(silo.gateway) as client:
        await client.stream(LINES, "a").publish("one")
        assert await asyncio.wait_for(HEARD.get(), 10) == "one"
        with pytest.raises(MillstreamError, match="is open to silos"):
            await client.grain(MemoryQueue, "default/queue-0").begin(2**62)
        await client.stream(LINES, "a").publish("two")
        assert await asyncio.wait_for(HEARD.get(), 10) == "two"


async def test_a_client_cannot_pass_for_the_subscription_of_a_grain() -> None:
    async with one_silo() as silo, connect(silo.gateway) as client:
        stream = silo.stream(LINES, "a")
        row = SubscriptionRow(
            id="explicit/default/lines/a/Reader/a/on_line/",
            grain_type="Reader",
            grain_key="a",
            handler="on_line",
            is_batch=False,
            start="next",
        )
        for forged in (row, msgspec.structs.replace(row, id=inbox_id("default", stream.id, ""))):
            with pytest.raises(NotAllowed, match="is not a subscription of a consumer outside"):
                await client.stream(LINES, "a").rendezvous_grain().join(forged)
        assert [one.is_implicit for one in await client.stream(LINES, "a").subscriptions()] == [
            True
        ]


async def test_a_client_ends_its_own_subscription_and_no_other() -> None:
    async with one_silo() as silo, connect(silo.gateway) as client:
        async with client.stream(LINES, "a").consume(name="mine") as events:
            await client.stream(LINES, "a").publish("one")
            assert (await anext(aiter(events))).item == "one"
        subscriptions = await client.stream(LINES, "a").subscriptions()
        (mine,) = (one for one in subscriptions if one.name == "mine")
        for act in (mine.pause, mine.resume):
            with pytest.raises(NotAllowed, match="is open to operators"):
                await act()
        await mine.unsubscribe()
        await mine.unsubscribe()
        assert [one.is_implicit for one in await client.stream(LINES, "a").subscriptions()] == [
            True
        ]


async def test_what_operators_do_a_client_cannot_do() -> None:
    async with one_silo() as silo, connect(silo.gateway) as client:
        for act in (
            pause_queue(client, "queue-0"),
            resume_queue(client, "queue-0"),
            pause_stream(client, LINES, "a"),
            resume_stream(client, LINES, "a"),
            resize(client, queues=2),
            dead_letters(client).list(),
            why(client, client.stream(LINES, "a")),
        ):
            with pytest.raises(
                NotAllowed, match=r"is open to operators.*connect\(operator_secret="
            ):
                await act
        async with operator_of(silo) as operator:
            await pause_queue(operator, "queue-0")
            await pause_stream(operator, LINES, "a")
            assert (await why(operator, operator.stream(LINES, "a"))).check == "queue_paused"
            await resume_stream(operator, LINES, "a")
            await resume_queue(operator, "queue-0")
            assert await dead_letters(operator).list() == []
            await resize(operator, queues=2)
