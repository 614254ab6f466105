"""Pausing and resuming a subscription, even an implicit one, and listing them from outside."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from tests.conditions import spin, until
from tests.streams.provider.handled import BAD, GATES, SEEN, forget, handle

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore
from millstream.streams import (
    DeliveryFailure,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamError,
    StreamNamespace,
    StreamOptions,
    Subscription,
    subscribe,
)

LINES = StreamNamespace("lines", int)
MARKED = StreamNamespace("marked", int, subscriptions="implicit")


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


class Marked(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        await handle("both", event.item)

    @subscribe(MARKED)
    async def on_marked(self, event: Event[int]) -> None:
        await handle("implicit", event.item)


class Hearer(Grain):
    async def listen(self, name: str = "") -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, name=name)

    async def _on_line(self, event: Event[int]) -> None:
        await handle("explicit", event.item)


class Pause:
    async def give_up(self, failure: DeliveryFailure, /) -> Literal["pause"]:
        return "pause"


def cluster_of(silos: int = 1, store: MemoryStateStore | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.0),
            options=StreamOptions(
                delivery=DeliveryOptions(retries=0, max_batch=1),
                ownership=OwnershipOptions(max_handoff_s=0.0),
            ),
            on_give_up=Pause(),
        )

    return LocalCluster(
        silos=silos,
        grains=[Marked, Hearer],
        streams={"default": provider},
        stores={"default": store or MemoryStateStore()},
    )


KINDS = {"both": LINES, "implicit": MARKED, "explicit": LINES, "outside": LINES}


async def subscription_of(cluster: LocalCluster, kind: str) -> Subscription[int]:
    """Return the subscription of a kind, as a client finds it."""
    if kind == "explicit" and not SEEN[kind]:
        await cluster.grain(Hearer, "h").listen()
    return await found_of(cluster, kind)


async def found_of(cluster: LocalCluster, kind: str) -> Subscription[int]:
    """Do the same without subscribing again, which would resume a faulted subscription."""
    (found,) = [
        one
        for one in await cluster.stream(KINDS[kind], "s").subscriptions()
        if one.is_implicit == (kind in ("both", "implicit"))
    ]
    return found


async def publish(cluster: LocalCluster, kind: str, *numbers: int) -> None:
    await cluster.stream(KINDS[kind], "s").publish_many(numbers)


GRAINS = ["both", "implicit", "explicit"]


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("kind", GRAINS)
async def test_a_paused_subscription_sees_nothing_until_it_is_resumed(
    kind: str, warm: bool
) -> None:
    async with cluster_of() as cluster:
        subscription = await subscription_of(cluster, kind)
        if warm:
            await publish(cluster, kind, 0)
            await until(lambda: SEEN[kind] == [0])
        await subscription.pause()
        await subscription.pause()
        await publish(cluster, kind, 1, 2, 3)
        await spin(300)
        assert SEEN[kind] == [0] * warm
        assert (await subscription_of(cluster, kind)).state == "paused"
        await subscription.resume()
        await subscription.resume()
        await publish(cluster, kind, 4)
        await until(lambda: SEEN[kind] == [0] * warm + [1, 2, 3, 4])
        assert (await subscription_of(cluster, kind)).state == "active"


@pytest.mark.parametrize("kind", GRAINS)
async def test_a_handler_that_runs_ends_and_the_next_event_waits(kind: str) -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        subscription = await subscription_of(cluster, kind)
        await publish(cluster, kind, 0, 1, 2)
        await until(lambda: SEEN[f"{kind} begins"] == [0])
        await subscription.pause()
        GATES[0].set()
        await until(lambda: SEEN[kind] == [0])
        await spin(300)
        assert SEEN[kind] == [0]
        await subscription.resume()
        await until(lambda: SEEN[kind] == [0, 1, 2])


@pytest.mark.parametrize("kind", GRAINS)
async def test_a_pause_is_recorded_and_holds_for_the_next_owner(kind: str) -> None:
    async with cluster_of(2) as cluster:
        subscription = await subscription_of(cluster, kind)
        await publish(cluster, kind, 0)
        await until(lambda: SEEN[kind] == [0])
        await subscription.pause()
        await publish(cluster, kind, 1, 2)
        await cluster.silos[0].stop()
        await spin(300)
        await publish(cluster, kind, 3)
        await spin(300)
        assert SEEN[kind] == [0]
        await subscription.resume()
        await until(lambda: SEEN[kind] == [0, 1, 2, 3])


@pytest.mark.parametrize("kind", GRAINS)
async def test_a_faulted_subscription_is_found_and_resumed_from_outside(kind: str) -> None:
    BAD.add(1)
    async with cluster_of() as cluster:
        subscription = await subscription_of(cluster, kind)
        await publish(cluster, kind, 0, 1, 2)
        await until(lambda: SEEN[f"{kind} begins"] == [0, 1])
        await spin(300)
        found = await found_of(cluster, kind)
        assert found.state == "faulted" and "1 is bad" in found.note
        assert SEEN[kind] == [0]
        BAD.clear()
        await subscription.resume()
        await until(lambda: SEEN[kind] == [0, 1, 2])
        assert (await found_of(cluster, kind)).state == "active"


@pytest.mark.parametrize("kind", GRAINS)
async def test_a_resume_may_leave_out_what_waits(kind: str) -> None:
    async with cluster_of() as cluster:
        subscription = await subscription_of(cluster, kind)
        await publish(cluster, kind, 0)
        await until(lambda: SEEN[kind] == [0])
        await subscription.pause()
        await publish(cluster, kind, 1, 2, 3)
        await spin(300)
        await subscription.resume(start="next")
        await publish(cluster, kind, 4)
        await until(lambda: SEEN[kind] == [0, 4])


async def test_subscribing_again_does_not_end_a_pause() -> None:
    async with cluster_of() as cluster:
        subscription = await subscription_of(cluster, "explicit")
        await subscription.pause()
        await publish(cluster, "explicit", 1)
        await cluster.grain(Hearer, "h").listen()
        await spin(300)
        assert SEEN["explicit"] == []
        await subscription.resume()
        await until(lambda: SEEN["explicit"] == [1])


async def test_a_program_finds_every_subscription_of_a_stream_and_ends_explicit_ones() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        await cluster.grain(Hearer, "h").listen()
        await cluster.grain(Hearer, "h").listen("second")
        async with stream.consume(name="audit"):
            found = await stream.subscriptions()
            assert sorted((one.consumer, one.name) for one in found) == [
                ("Hearer/h", ""),
                ("Hearer/h", "second"),
                ("Marked/s", ""),
                ("audit", "audit"),
            ]
            assert [one.is_implicit for one in found].count(True) == 1
            assert {one.state for one in found} == {"active"}
        for one in found:
            if one.is_implicit:
                with pytest.raises(StreamError, match="is implicit and lasts"):
                    await one.unsubscribe()
            else:
                await one.unsubscribe()
                await one.unsubscribe()
        await publish(cluster, "both", 1)
        await until(lambda: SEEN["both"] == [1])
        assert SEEN["explicit"] == []
        assert len(await stream.subscriptions()) == 1
        ended = next(one for one in found if one.name == "second")
        for use in (ended.pause, ended.resume):
            with pytest.raises(StreamError, match="has no subscription explicit/.*ended"):
                await use()


async def test_a_consumer_outside_that_is_paused_waits_also_when_it_comes_again() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(name="audit") as events:
            await publish(cluster, "outside", 0)
            assert (await anext(events)).item == 0
            subscription = await subscription_of(cluster, "outside")
            await subscription.pause()
        await publish(cluster, "outside", 1)
        async with stream.consume(name="audit") as events:
            waiting = asyncio.create_task(anext(events))
            await spin(300)
            assert not waiting.done()
            await subscription.resume()
            assert (await waiting).item == 1


async def test_a_consumer_outside_whose_subscription_is_ended_is_told() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(name="audit") as events:
            waiting = asyncio.create_task(anext(events))
            await spin(50)
            await (await subscription_of(cluster, "outside")).unsubscribe()
            with pytest.raises(StreamError, match="the subscription ended"):
                await waiting
