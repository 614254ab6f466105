"""Calls to a silo that has stopped or is stopping, or to a client that was closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    PREFER_LOCAL,
    DeactivationReason,
    Grain,
    LocalCluster,
    MemoryStateStore,
    NotInCluster,
    Silo,
    SiloUnavailable,
    connect,
    grain,
)
from millstream.runtime.extending import ask_gateway
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe
from millstream.streams.provider.target import StreamsTarget

LINES = StreamNamespace("lines", str)
SEEN: list[str] = []
LOG: list[str] = []
GATE: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    LOG.clear()
    GATE[:] = [asyncio.Event()]


class Hearer(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN.append(event.item)

    async def ping(self) -> None:
        return None


@grain(placement=PREFER_LOCAL)
class Speaker(Grain):
    async def speak_at_the_end(self) -> None:
        LOG.append("turn")
        await GATE[0].wait()
        await self.stream(LINES, "k").publish("in a turn")

    async def outlive(self) -> None:
        """Note the errors that a turn gets after the end of its silo; the turn ignores its
        cancellation."""
        LOG.append("turn")
        with suppress(asyncio.CancelledError):
            await GATE[0].wait()
        stream = self.stream(LINES, "k")
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: stream.publish("late"),
            lambda: stream.publish_many(["late", "later"]),
            lambda: stream.subscribe(self._on_line),
            lambda: stream.subscriptions(self),
            lambda: self.grain(Hearer, "k").ping(),
        ]
        LOG.extend([await told(ask) for ask in asks])

    async def _on_line(self, event: Event[str]) -> None:
        SEEN.append(event.item)

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append("on_deactivate")
        await self.stream(LINES, "k").publish("in on_deactivate")


async def told(ask: Callable[[], Awaitable[Any]]) -> str:
    try:
        await ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
    )


def make_silo() -> Silo:
    return Silo(
        grains=[Hearer, Speaker],
        streams={"default": provider()},
        stores={"default": MemoryStateStore()},
    )


def asks_of(runtime: Any) -> list[Callable[[], Awaitable[Any]]]:
    return [
        lambda: runtime.stream(LINES, "k").publish("late"),
        lambda: runtime.stream(LINES, "k").publish_many(["late", "later"]),
        lambda: runtime.grain(Hearer, "k").ping(),
        lambda: runtime.grain(Hearer, "new").ping(),
    ]


@pytest.mark.parametrize("how", ["stop", "kill", "evicted"])
async def test_a_silo_that_has_ended_says_so_whatever_is_asked_of_it(how: str) -> None:
    async with make_silo() as silo:
        await silo.stream(LINES, "k").publish("early")
        await silo.grain(Hearer, "k").ping()
        if how == "evicted":
            silo.assembly.on_evicted()
            await silo.wait_stopped()
        else:
            await getattr(silo, how)()
        for ask in asks_of(silo):
            with pytest.raises(NotInCluster, match=f"silo {silo.address} .*stopped.*start another"):
                await ask()


async def test_a_client_that_was_closed_says_so_whatever_is_asked_of_it() -> None:
    async with make_silo() as silo:
        async with connect(silo.gateway) as client:
            await client.stream(LINES, "k").publish("early")
            address = client.address
        asks = asks_of(client)
        stats = StreamsTarget.cluster_stats
        asks.append(lambda: ask_gateway(client, "", "$streams/default", stats))
        for ask in asks:
            with pytest.raises(NotInCluster, match=rf"client {address} .*closed.*connect\("):
                await ask()
        await until(lambda: SEEN == ["early"])


async def test_a_local_cluster_that_was_closed_says_so() -> None:
    async with LocalCluster(grains=[Hearer], streams={"default": provider}) as cluster:
        await cluster.stream(LINES, "k").publish("early")
    for ask in [*asks_of(cluster), *asks_of(cluster.silos[0])]:
        with pytest.raises(NotInCluster):
            await ask()


async def test_a_turn_that_outlives_its_silo_is_told_so() -> None:
    silo = make_silo()
    await silo.start()
    turn = asyncio.create_task(silo.grain(Speaker, "a").outlive())
    await until(lambda: LOG == ["turn"])
    await silo.kill()
    with pytest.raises(SiloUnavailable):
        await turn
    assert [text.partition(":")[0] for text in LOG] == ["turn", *["NotInCluster"] * 5]


async def test_turns_of_a_stopping_silo_may_publish_to_their_end() -> None:
    async with LocalCluster(
        silos=2, grains=[Hearer, Speaker], streams={"default": provider}
    ) as cluster:
        silo = cluster.silos[0]
        turn = asyncio.create_task(silo.grain(Speaker, "a").speak_at_the_end())
        await until(lambda: LOG == ["turn"])
        stopping = asyncio.create_task(silo.stop())
        await until(lambda: not silo.assembly.catalog.is_accepting)
        GATE[0].set()
        await turn
        await stopping
        assert LOG == ["turn", "on_deactivate"]
        with pytest.raises(NotInCluster):
            await silo.stream(LINES, "k").publish("late")
        await until(lambda: sorted(SEEN) == ["in a turn", "in on_deactivate"])
