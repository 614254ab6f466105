"""A failing function of a mapper, in clusters: publishers get the error, and other streams go
on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    StreamError,
    state,
)
from millstream.streams import (
    Event,
    FunctionMapper,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    resize,
    subscribe,
    why,
)
from millstream.streams.provider import stream_reports

NOTES = StreamNamespace("notes", int, subscriptions="implicit")
ASKED = StreamNamespace("asked", int)
SEEN: dict[str, list[int]] = defaultdict(list)
GATES: dict[str, asyncio.Event] = {}
BAD: set[str] = set()
REFUSED = "the stream has no queue: the function of FunctionMapper 'last_digit' raised KeyError"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    GATES.clear()
    BAD.clear()
    monkeypatch.setattr(stream_reports, "BETWEEN_S", 0.001)


def last_digit(stream: StreamId, queues: int) -> int:
    if stream.key in BAD:
        raise KeyError(stream.key)
    return int(stream.key[-1]) % queues


@dataclass
class Tally:
    count: int = 0


class Reader(Grain):
    tally = state(Tally)

    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        if self.key in GATES:
            await GATES[self.key].wait()
        SEEN[self.key].append(event.item)

    async def send(self, key: str, item: int) -> None:
        self.stream(NOTES, key).publish_with(self.tally, item)
        self.tally.value.count += 1
        await self.tally.write()

    async def listen(self) -> str:
        return (await self.stream(ASKED, self.key).subscribe(self._on_asked)).id

    async def part(self) -> None:
        for one in await self.stream(ASKED, self.key).subscriptions():
            await one.unsubscribe()

    async def _on_asked(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)


def provider(name: str = "last_digit", queues: int = 2) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=FunctionMapper(queues=queues, by=last_digit, name=name),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.02)),
    )


def cluster_of(silos: int = 1) -> LocalCluster:
    return LocalCluster(silos=silos, grains=[Reader], streams={"default": provider})


def seen(**items: list[int]) -> Callable[[], bool]:
    return lambda: all(SEEN[key] == wanted for key, wanted in items.items())


async def test_streams_go_where_the_function_says_and_a_publisher_hears_where_it_fails() -> None:
    async with cluster_of(2) as cluster:
        BAD.add("x1")
        for program in (cluster.client, cluster.silos[0]):
            with pytest.raises(StreamError, match=f"^notes/x1: {REFUSED}: 'x1'") as caught:
                await program.stream(NOTES, "x1").publish(1)
            assert caught.value.accepted_events == 0
            with pytest.raises(StreamError, match=f"^notes/x1: {REFUSED}: 'x1'"):
                await program.stream(NOTES, "x1").publish_many(range(3))
        with pytest.raises(StreamError, match=REFUSED):
            await cluster.grain(Reader, "sender").send("x1", 1)
        await cluster.grain(Reader, "sender").send("y1", 1)
        await cluster.stream(NOTES, "z0").publish(2)
        await until(seen(y1=[1], z0=[2]))
        assert not SEEN["x1"]


async def test_why_says_that_no_queue_carries_a_stream() -> None:
    async with cluster_of(2) as cluster:
        BAD.add("x1")
        found = await why(cluster, cluster.stream(NOTES, "x1"))
        assert found.check == "no_queue" and REFUSED in str(found)
        BAD.clear()
        assert (await why(cluster, cluster.stream(NOTES, "x1"))).check != "no_queue"


async def test_what_is_in_a_queue_is_delivered_also_if_the_function_fails_meanwhile() -> None:
    GATES["x1"] = asyncio.Event()
    async with cluster_of() as cluster:
        await cluster.stream(NOTES, "x1").publish_many(range(3))
        BAD.add("x1")
        await cluster.stream(NOTES, "y1").publish(1)
        await until(seen(y1=[1]))
        GATES["x1"].set()
        await until(seen(x1=[0, 1, 2]))


async def test_who_subscribes_and_leaves_is_not_stopped_by_the_function() -> None:
    async with cluster_of() as cluster:
        BAD.add("x1")
        await cluster.grain(Reader, "x1").listen()
        await cluster.grain(Reader, "x1").part()
        await cluster.grain(Reader, "x1").listen()
        BAD.clear()
        await cluster.stream(ASKED, "x1").publish(1)
        await until(seen(x1=[1]))


async def test_the_number_of_queues_changes_also_while_the_function_fails_at_a_stream() -> None:
    GATES["x5"] = asyncio.Event()
    async with cluster_of(2) as cluster:
        for key in ("x5", "y2", "z4"):
            await cluster.stream(NOTES, key).publish(0)
        BAD.add("x5")
        await resize(cluster, queues=3)
        for key in ("y2", "z4"):
            await cluster.stream(NOTES, key).publish(1)
        await until(seen(y2=[0, 1], z4=[0, 1]))
        with pytest.raises(StreamError, match=REFUSED):
            await cluster.stream(NOTES, "x5").publish(1)
        BAD.clear()
        await cluster.stream(NOTES, "x5").publish(2)
        GATES["x5"].set()
        await until(seen(x5=[0, 2]))
        await resize_once_it_can(cluster, 1)
        for key in ("x5", "y2", "z4"):
            await cluster.stream(NOTES, key).publish(3)
        await until(seen(x5=[0, 2, 3], y2=[0, 1, 3], z4=[0, 1, 3]))


async def resize_once_it_can(cluster: LocalCluster, queues: int) -> None:
    """Resize again as soon as the former queues are done."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await resize(cluster, queues=queues)
            except ConfigError:
                await asyncio.sleep(0)


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_silo_whose_function_has_another_name_is_refused(is_running: bool) -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()

    def silo(streams: PersistentStreams) -> Silo:
        return Silo(
            grains=[Reader],
            membership=table,
            stores={"default": store},
            streams={"default": streams},
        )

    ring = PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=2), balancer=DeploymentBalancer()
    )
    async with silo(provider()):
        if is_running:
            with pytest.raises(Exception, match="first_digit") as caught:
                await silo(provider("first_digit")).start()
            assert "last_digit" in str(caught.value)
    for other in (provider("first_digit"), ring):
        with pytest.raises(ConfigError, match="last_digit"):
            await silo(other).start()
    async with silo(provider()) as again:
        await again.stream(NOTES, "x1").publish(1)
        await until(seen(x1=[1]))
