"""Broadcast channels: all current listeners hear an item, and a failing one harms no other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

import pytest
from tests.conditions import spin, until

from millstream.runtime import (
    ConfigError,
    DefinitionError,
    Grain,
    LocalCluster,
    MillstreamError,
    NotHosted,
    NotRemote,
    Overloaded,
)
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import Broadcast, BroadcastChannel, BroadcastOptions, listen


@dataclass
class Price:
    cents: int


PRICES = BroadcastChannel("prices", Price)
HEARD: dict[str, list[int]] = defaultdict(list)
GATES: dict[int, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    HEARD.clear()
    GATES.clear()


class Good(Grain):
    @listen(PRICES)
    async def on_price(self, price: Price) -> None:
        if price.cents in GATES:
            await GATES[price.cents].wait()
        HEARD[f"good/{self.key}"].append(price.cents)

    async def announce(self, cents: int) -> None:
        await self.stream(PRICES, "other").publish(Price(cents))

    async def wake(self) -> str:
        return self.context.silo


class Bad(Grain):
    """Fails at the second item, like the bad actor of Orleans' tests."""

    @listen(PRICES)
    async def on_price(self, price: Price) -> None:
        if price.cents == 2:
            raise ValueError("bad")
        HEARD[f"bad/{self.key}"].append(price.cents)


AWAITED = BroadcastOptions(fire_and_forget=False)


def cluster_of(options: BroadcastOptions | None = None, silos: int = 2) -> LocalCluster:
    return LocalCluster(
        silos=silos, grains=[Good, Bad], streams={"broadcast": lambda: Broadcast(options)}
    )


@pytest.mark.parametrize("source", ["client", "silo", "grain"])
async def test_each_listener_of_the_key_hears_it_from_wherever_it_comes(source: str) -> None:
    async with cluster_of(AWAITED) as cluster:
        if source == "grain":
            await cluster.grain(Good, "a").announce(1)
        else:
            program = cluster if source == "client" else cluster.silos[1]
            await program.stream(PRICES, "other").publish(Price(1))
    assert HEARD == {"good/other": [1], "bad/other": [1]}


async def test_awaited_items_come_in_order_and_one_error_is_one_error() -> None:
    async with cluster_of(AWAITED) as cluster:
        for program in (cluster, cluster.silos[0]):
            channel = program.stream(PRICES, "a")
            await channel.publish(Price(1))
            with pytest.raises(ExceptionGroup, match="1 of 2 listeners failed") as caught:
                await channel.publish(Price(2))
            (error,) = caught.value.exceptions
            assert isinstance(error, ValueError) and str(error) == "bad"
            await channel.publish(Price(3))
            assert HEARD.pop("good/a") == [1, 2, 3] and HEARD.pop("bad/a") == [1, 3]


async def test_what_is_not_awaited_reaches_the_others_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster_of() as cluster:
        for cents in (1, 2, 3):
            await cluster.stream(PRICES, "a").publish(Price(cents))
        await until(lambda: len(HEARD["good/a"]) == 3 and len(HEARD["bad/a"]) == 2)
    assert sorted(HEARD["good/a"]) == [1, 2, 3] and sorted(HEARD["bad/a"]) == [1, 3]
    lines = [record.getMessage() for record in caplog.records if "the call of" in record.msg]
    told = "the call of Bad/a.on_price for channel prices failed: ValueError: bad"
    assert len(lines) == 1 and told in lines[0]


async def test_a_slow_listener_holds_nobody_and_its_calls_are_bounded() -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of(BroadcastOptions(waiting_max=4), silos=1) as cluster:
        channel = cluster.silos[0].stream(PRICES, "a")
        for number in range(1, 4):  # each leaves a call at the slow listener
            await channel.publish(Price(0))
            await until(lambda number=number: len(HEARD["bad/a"]) == number)  # type: ignore[misc]
            await spin()
        with pytest.raises(Overloaded, match="waiting_max is 4"):
            await channel.publish(Price(0))
        GATES[0].set()
        await until(lambda: HEARD["good/a"] == [0, 0, 0])
        await spin()
        await channel.publish(Price(1))
        await until(lambda: HEARD["good/a"] == [0, 0, 0, 1])


async def test_a_channel_without_listeners_takes_what_it_is_told() -> None:
    async with LocalCluster(grains=[], streams={"broadcast": Broadcast}) as cluster:
        await cluster.stream(PRICES, "a").publish(Price(1))
        with pytest.raises(TypeError, match=r"BroadcastChannel\('prices'\): item"):
            await cluster.stream(PRICES, "a").publish("1")  # type: ignore[arg-type]


async def test_a_provider_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Good\.on_price: `@listen.*needs part 'broadcast'"):
        async with LocalCluster(grains=[Good]):
            raise AssertionError("started")
    async with LocalCluster(grains=[]) as cluster:
        with pytest.raises(NotHosted, match="no broadcast provider 'broadcast'"):
            await cluster.stream(PRICES, "a").publish(Price(1))
    with pytest.raises(ConfigError, match="waiting_max"):
        BroadcastOptions(waiting_max=0)


async def test_a_listener_cannot_be_called() -> None:
    async with cluster_of() as cluster:
        with pytest.raises(NotRemote):
            await cluster.grain(Good, "a").on_price(Price(1))


def test_a_handler_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(DefinitionError, match="annotate `text: Price`"):

        class Wrong(Grain):
            @listen(PRICES)  # type: ignore[arg-type]
            async def on_price(self, text: str) -> None: ...

    with pytest.raises(DefinitionError, match="`@listen` takes a channel"):

        class Nothing(Grain):
            @listen("prices")  # type: ignore[arg-type]
            async def on_price(self, price: Price) -> None: ...


@pytest.mark.parametrize("seed", range(3))
def test_a_silo_that_dies_is_told_of_and_its_grains_hear_again_elsewhere(seed: int) -> None:
    async def play(simulation: Simulation) -> int:
        streams = {"broadcast": lambda: Broadcast(AWAITED)}
        cluster = SimCluster(simulation, silos=3, grains=[Good], streams=streams)
        await cluster.start()
        missed = 0
        async with cluster.client(simulation.host("client")) as client:
            keys = [f"k{number}" for number in range(12)]
            for key in keys:
                await client.stream(PRICES, key).publish(Price(1))
            simulation.crash("silo-2", is_silent=bool(seed))
            for key in keys:
                try:
                    await client.stream(PRICES, key).publish(Price(2))
                except (MillstreamError, ExceptionGroup):
                    missed += 1
            await asyncio.sleep(60.0)
            for key in keys:
                await client.stream(PRICES, key).publish(Price(3))
            assert all(HEARD[f"good/{key}"][-1] == 3 for key in keys)
            assert all(HEARD[f"good/{key}"][0] == 1 for key in keys)
            assert sum(2 in HEARD[f"good/{key}"] for key in keys) >= len(keys) - missed
        await cluster.close()
        return missed

    run(play, seed, max_virtual_s=900)
