"""Explicit subscriptions that acknowledge by hand, or change to or from it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, Silo, StreamError, state
from millstream.streams import (
    Backoff,
    CacheLimits,
    Capability,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

LINES = StreamNamespace("lines", int)
OTHERS = StreamNamespace("others", int)
SEEN: dict[str, list[int]] = defaultdict(list)
AGAIN: dict[str, list[int]] = defaultdict(list)
GATES: dict[int, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    AGAIN.clear()
    GATES.clear()


@dataclass
class Tally:
    items: list[int] = field(default_factory=list)


class Keeper(Grain):
    tally = state(Tally)

    def __init__(self) -> None:
        self._events: dict[int, Event[int]] = {}

    async def listen(self, ack: str, handler: str = "_on_line") -> None:
        chosen: Any = {"ack": ack}
        await self.stream(LINES, self.key).subscribe(getattr(self, handler), **chosen)

    async def listen_to_some(self) -> None:
        await self.stream(LINES, self.key).subscribe(
            self._on_line, ack="manual", where=Keeper._is_small
        )

    async def pause(self) -> None:
        (one,) = await self.stream(LINES, self.key).subscriptions(self)
        await one.pause()

    async def resume(self) -> None:
        (one,) = await self.stream(LINES, self.key).subscriptions(self)
        await one.resume()

    async def acknowledge(self, item: int) -> None:
        await self.context.ack(self._events[item])

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def _on_line(self, event: Event[int]) -> None:
        self._events[event.item] = event
        SEEN[self.key].append(event.item)
        if event.redelivered:
            AGAIN[self.key].append(event.item)
        if event.item in GATES:
            await GATES[event.item].wait()

    async def _on_lines(self, events: list[Event[int]]) -> None:
        for event in events:
            await self._on_line(event)

    @subscribe(OTHERS, commit_with=tally)
    async def on_other(self, event: Event[int]) -> None: ...

    @staticmethod
    def _is_small(event: Event[int]) -> bool:
        return event.item < 10


def cluster_of(silos: int = 1, cache: CacheLimits | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(
                cache=cache or CacheLimits(),
                delivery=DeliveryOptions(max_batch=4, backoff=Backoff(0.01, 1.0, 0.01)),
                ownership=OwnershipOptions(poll_s=0.02, max_handoff_s=0.1),
            ),
        )

    return LocalCluster(silos=silos, grains=[Keeper], streams={"default": provider})


def agents(cluster: LocalCluster) -> list[Any]:
    parts = [silo.services.part("default") for silo in cluster.silos]
    return [one for part in parts for one in part.manager.agents() if one.reader.is_reading]


def undone(cluster: LocalCluster) -> int:
    return sum(one.undone for one in agents(cluster))


async def until_seen(count: int) -> None:
    await until(lambda: len(SEEN["k"]) >= count)


async def publish(cluster: LocalCluster | Silo, *items: int) -> None:
    for item in items:
        await cluster.stream(LINES, "k").publish(item)


@pytest.mark.parametrize("handler", ["_on_line", "_on_lines"])
async def test_an_event_is_done_when_the_grain_says_so(handler: str) -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen("manual", handler)
        await publish(cluster, *range(10))
        await until(lambda: SEEN["k"] == list(range(10)))
        assert undone(cluster) == 10
        await keeper.acknowledge(6)
        await until(lambda: undone(cluster) == 3)
        await keeper.acknowledge(9)
        await until(lambda: undone(cluster) == 0)


async def test_another_activation_gets_what_was_not_acknowledged() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen("manual")
        await publish(cluster, 0, 1, 2)
        await until(lambda: SEEN["k"] == [0, 1, 2])
        await keeper.acknowledge(0)
        await until(lambda: undone(cluster) == 2)
        await keeper.leave()
        await publish(cluster, 3)
        await until(lambda: SEEN["k"] == [0, 1, 2, 1, 2, 3])
        assert AGAIN["k"] == [1, 2]


async def test_it_is_stored_so_the_next_owner_of_the_queue_waits_for_the_grain_too() -> None:
    async with cluster_of(silos=2) as cluster:
        await cluster.grain(Keeper, "k").listen("manual")
        await publish(cluster, 0, 1)
        await until(lambda: SEEN["k"] == [0, 1])
        first = next(s for s in cluster.silos if agents_of(s))
        stays = next(s for s in cluster.silos if s is not first)
        await first.stop()
        await until(lambda: bool(agents_of(stays)))
        await publish(stays, 2)
        await until(lambda: SEEN["k"][2:] == [0, 1, 2])
        (agent,) = agents_of(stays)
        assert agent.undone >= 3
        await stays.grain(Keeper, "k").acknowledge(2)
        await until(lambda: agent.undone == 0)


def agents_of(silo: Silo) -> list[Any]:
    return [one for one in silo.services.part("default").manager.agents() if one.reader.is_reading]


# -- changes to and from it


async def test_who_no_longer_acknowledges_gets_again_what_was_not_and_it_is_done_then() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen("manual")
        await publish(cluster, 0, 1, 2)
        await until(lambda: SEEN["k"] == [0, 1, 2])
        await keeper.acknowledge(0)
        await until(lambda: undone(cluster) == 2)
        await keeper.listen("auto")
        await publish(cluster, 3)
        await until(lambda: undone(cluster) == 0)
        assert SEEN["k"] == [0, 1, 2, 1, 2, 3] and AGAIN["k"] == [1, 2]
        await keeper.acknowledge(2)  # late, and harmless


async def test_who_begins_to_acknowledge_does_so_at_once_also_under_way() -> None:
    async with cluster_of() as cluster:
        keeper, GATES[1] = cluster.grain(Keeper, "k"), asyncio.Event()
        await keeper.listen("auto")
        await publish(cluster, *range(10))
        await until(lambda: SEEN["k"] == [0, 1])
        changing = asyncio.create_task(keeper.listen("manual"))
        await spin(20)  # until it waits for the turn that is under way
        GATES[1].set()
        await changing
        await until(lambda: SEEN["k"][-1:] == [9])
        assert undone(cluster) > 0 and sorted(set(SEEN["k"])) == list(range(10))
        await keeper.acknowledge(9)
        await until(lambda: undone(cluster) == 0)


@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_a_change_while_it_is_paused_or_behind_goes_on_from_the_same_place(ack: str) -> None:
    small = CacheLimits(events_max=20, stream_events_max=4)
    async with cluster_of(cache=small) as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen("auto" if ack == "manual" else "manual")
        await publish(cluster, 0)
        await until(lambda: SEEN["k"] == [0])
        await keeper.pause()
        await publish(cluster, *range(1, 50))
        await until(lambda: any(len(one.behind) for one in agents(cluster)))
        await keeper.listen(ack)
        assert SEEN["k"] == [0]
        await keeper.resume()
        while ack == "manual" and SEEN["k"][-1] < 49:  # as many events are out as the cache permits
            await until_seen(len(SEEN["k"]) + 1)
            assert undone(cluster) > 0
            await keeper.acknowledge(SEEN["k"][-1])
        await until(lambda: undone(cluster) == 0)
        assert [one for one in SEEN["k"] if one] == list(range(1, 50))


async def test_nothing_is_lost_or_out_of_order_however_often_it_changes() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        for number in range(12):
            await keeper.listen(("auto", "manual")[number % 2])
            await publish(cluster, *range(number * 10, number * 10 + 10))
            await until_seen(number * 9 + 1)
        await keeper.listen("auto")
        await until(lambda: undone(cluster) == 0)
        first_times = list(dict.fromkeys(SEEN["k"]))
        assert first_times == list(range(120))


# -- refused definitions


async def test_what_does_not_go_with_it_is_refused_before_anything_is_stored() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        with pytest.raises(ConfigError, match="the events that the filter drops"):
            await keeper.listen_to_some()
        with pytest.raises(ConfigError, match="ack is 'later': write 'auto' or 'manual'"):
            await keeper.listen("later")
        assert len(await cluster.stream(LINES, "k").subscriptions()) == 0
        await keeper.listen("manual", "on_other")  # its mark is for other streams


class Committing(Grain):
    tally = state(Tally)

    @subscribe(LINES, commit_with=tally)
    async def on_line(self, event: Event[int]) -> None: ...

    async def listen(self) -> None:
        await self.stream(LINES, self.key).subscribe(self.on_line, ack="manual")


async def test_a_handler_that_commits_is_not_acknowledged_by_hand() -> None:
    provider = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    async with Silo(grains=[Committing], streams={"default": provider}) as silo:
        with pytest.raises(ConfigError, match=r"Committing\.on_line has commit_with"):
            await silo.grain(Committing, "k").listen()


class Unordered(MemoryQueues):
    capabilities = frozenset({Capability.OWN_POSITION, Capability.ITEM_ACK})


class Plain(Grain):
    async def listen(self) -> None:
        await self.stream(LINES, self.key).subscribe(self._on_line, ack="manual")

    async def _on_line(self, event: Event[int]) -> None: ...


async def test_a_provider_without_positions_is_refused() -> None:
    provider = PersistentStreams(Unordered(), balancer=DeploymentBalancer())
    async with Silo(grains=[Plain], streams={"default": provider}) as silo:
        with pytest.raises(StreamError, match='ack="manual" needs ORDERED and STABLE_TOKENS'):
            await silo.grain(Plain, "k").listen()
        assert await silo.stream(LINES, "k").subscriptions() == []
