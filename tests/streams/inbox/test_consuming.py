"""Programs outside the cluster read streams: the events that are acknowledged, and when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, LocalCluster, MemoryStateStore, NotHosted
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    Event,
    Gap,
    HashRingMapper,
    PersistentStreams,
    StreamError,
    StreamEvents,
    StreamNamespace,
    StreamOptions,
    Token,
)
from millstream.streams.agent.losses import Loss


@dataclass
class Line:
    number: int


@dataclass
class Rule:
    name: str


LINES = StreamNamespace("lines", Line)
MIXED = StreamNamespace[Line | Rule]("mixed")
MARKED = StreamNamespace("marked", Line, subscriptions="implicit")


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
        options=StreamOptions(
            cache=CacheLimits(events_max=200),
            delivery=DeliveryOptions(backoff=Backoff(first_s=0.01, ceiling_s=0.05)),
        ),
    )


def cluster_of(silos: int = 2, store: MemoryStateStore | None = None) -> LocalCluster:
    stores = {"default": store or MemoryStateStore()}
    return LocalCluster(silos=silos, grains=[], streams={"default": provider}, stores=stores)


async def publish(cluster: LocalCluster, *numbers: int) -> None:
    await cluster.stream(LINES, "s").publish_many(map(Line, numbers))


async def take(events: StreamEvents[Line], count: int) -> list[int]:
    """Take `count` events; the last one stays unacknowledged."""
    return [(await anext(events)).item.number for _ in range(count)]


async def subscriptions(store: MemoryStateStore) -> int:
    return len(await store.scan("subscription/", "", 1000))


async def test_events_come_in_order_with_all_that_an_event_has() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume() as events:
            await stream.publish(Line(1), headers={"who": "me"})
            await publish(cluster, *range(2, 200))
            first = await anext(events)
            assert first.item == Line(1) and first.headers == {"who": "me"} and first.key == "s"
            assert first.subscription == events.subscription
            assert not first.redelivered and first.attempt == 1
            assert await take(events, 198) == list(range(2, 200))


async def test_every_event_after_the_block_has_begun_is_seen() -> None:
    async with cluster_of() as cluster:
        for number in range(20):
            async with cluster.stream(LINES, "s").consume() as events:
                await publish(cluster, number)
                assert await take(events, 1) == [number]


async def test_items_of_a_union_come_as_they_are() -> None:
    async with cluster_of(1) as cluster:
        stream = cluster.stream(MIXED, "s")
        async with stream.consume() as events:
            await stream.publish_many([Line(1), Rule("a")])
            assert [(await anext(events)).item for _ in range(2)] == [Line(1), Rule("a")]


async def test_a_silo_consumes_as_a_client_does() -> None:
    async with cluster_of() as cluster:
        async with cluster.silos[1].stream(LINES, "s").consume(name="x") as events:
            await publish(cluster, 1, 2)
            assert await take(events, 2) == [1, 2]


async def test_a_named_subscription_goes_on_behind_what_was_acknowledged() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(name="audit") as events:
            await publish(cluster, *range(10))
            assert await take(events, 5) == [0, 1, 2, 3, 4]
        await publish(cluster, *range(10, 20))
        async with stream.consume(name="audit") as events:
            assert await take(events, 15) == list(range(5, 20))


async def test_what_a_block_raises_leaves_its_event_and_those_behind_it_unacknowledged() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        with pytest.raises(ZeroDivisionError):
            async with stream.consume(name="audit") as events:
                await publish(cluster, 0, 1, 2)
                async for event in events:
                    assert 1 // (1 - event.item.number) > 0
        async with stream.consume(name="audit") as events:
            again = await anext(events)
            assert again.item == Line(1) and again.redelivered
            assert await take(events, 1) == [2]


async def test_a_program_that_is_cancelled_in_the_block_has_acknowledged_what_came_before() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        seen: list[int] = []

        async def read() -> None:
            async with stream.consume(name="audit") as events:
                async for event in events:
                    seen.append(event.item.number)
                    if event.item.number == 3:
                        await asyncio.Event().wait()

        async with stream.consume(name="audit"):
            await publish(cluster, *range(6))
        task = asyncio.create_task(read())
        await until(lambda: seen == [0, 1, 2, 3])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with stream.consume(name="audit") as events:
            assert await take(events, 3) == [3, 4, 5]


async def test_a_wait_that_is_cancelled_loses_no_event() -> None:
    async with cluster_of() as cluster:
        async with cluster.stream(LINES, "s").consume() as events:
            for number in range(20):
                waiting = asyncio.create_task(anext(events))
                await spin(number)
                await publish(cluster, number)
                waiting.cancel()
                try:
                    assert (await waiting).item.number == number
                except asyncio.CancelledError:
                    assert await take(events, 1) == [number]


async def test_who_comes_last_under_a_name_has_it_and_the_other_is_told() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(name="audit") as first:
            await publish(cluster, 0, 1, 2, 3)
            assert await take(first, 2) == [0, 1]
            async with stream.consume(name="audit") as second:
                event = await anext(second)
                assert event.item == Line(1) and event.redelivered
                with pytest.raises(StreamError, match="another consumer has taken"):
                    await take(first, 10)
                assert await take(second, 2) == [2, 3]


async def test_a_subscription_without_a_name_ends_with_its_block() -> None:
    store = MemoryStateStore()
    async with cluster_of(store=store) as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume() as one, stream.consume() as other:
            assert one.subscription != other.subscription and await subscriptions(store) == 2
            await publish(cluster, 1)
            assert await take(one, 1) == await take(other, 1) == [1]
        assert await subscriptions(store) == 0
        async with stream.consume(name="audit"):
            pass
        assert await subscriptions(store) == 1


async def test_a_slow_program_holds_a_bounded_part_and_the_rest_stays_in_the_queue() -> None:
    async with cluster_of(1) as cluster:
        part = cluster.silos[0].services.part("default")
        stream = cluster.stream(LINES, "s")
        async with stream.consume(events_max=3) as events:
            await publish(cluster, *range(2_000))
            assert await take(events, 1) == [0]
            await spin(500)
            assert len(events._page) <= 3
            for agent in part.manager.agents():
                assert agent.cache.events <= 200 + 1000 and agent.dispatch.calls_out <= 1
            assert await take(events, 1_999) == list(range(1, 2_000))


async def test_two_tasks_cannot_wait_for_the_next_event_at_once() -> None:
    async with cluster_of(1) as cluster:
        async with cluster.stream(LINES, "s").consume() as events:
            waiting = asyncio.create_task(anext(events))
            await spin()
            with pytest.raises(StreamError, match="another task waits"):
                await anext(events)
            await publish(cluster, 7)
            assert (await waiting).item == Line(7)


async def test_it_is_entered_once_and_read_inside() -> None:
    async with cluster_of(1) as cluster:
        events = cluster.stream(LINES, "s").consume()
        with pytest.raises(StreamError, match="read only inside `async with"):
            await anext(events)
        async with events:
            with pytest.raises(ConfigError, match="was used before"):
                await events.__aenter__()
        with pytest.raises(ConfigError, match="was used before"):
            await events.__aenter__()
        with pytest.raises(StreamError, match="read only inside"):
            await anext(events)


async def test_what_cannot_be_consumed_is_refused() -> None:
    async with cluster_of(1) as cluster:
        stream = cluster.stream(LINES, "s")
        with pytest.raises(ConfigError, match="events_max=0"):
            stream.consume(events_max=0)
        with pytest.raises(ConfigError, match="must not begin with '~'"):
            stream.consume(name="~a")
        with pytest.raises(ConfigError, match="start="):
            stream.consume(start="last")  # type: ignore[arg-type]
        with pytest.raises(StreamError, match="implicit subscriptions only"):
            cluster.stream(MARKED, "s").consume()
        other = StreamNamespace("lines", Line, provider="fast")
        with pytest.raises(NotHosted, match="fast"):
            async with cluster.stream(other, "s").consume():
                raise AssertionError("entered")


async def test_a_start_leaves_out_what_waits_or_goes_back_to_an_event() -> None:
    async with cluster_of(1) as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(name="slow"), stream.consume(name="audit") as events:
            await publish(cluster, *range(10))
            second = [event async for event in first_of(events, 3)][1]
        async with stream.consume(name="audit", start=second.token) as events:
            assert await take(events, 2) == [1, 2]
        async with stream.consume(name="audit", start="next") as events:
            await publish(cluster, 10)
            assert await take(events, 1) == [10]


async def first_of(events: StreamEvents[Line], count: int):  # type: ignore[no-untyped-def]
    for _ in range(count):
        event: Event[Line] = await anext(events)
        yield event


async def test_a_program_hears_of_a_gap_before_the_event_that_follows_until_it_can() -> None:
    seen: list[Gap] = []

    async def on_gap(gap: Gap) -> None:
        seen.append(gap)
        if len(seen) == 1:
            raise ZeroDivisionError

    async with cluster_of(1) as cluster:
        stream = cluster.stream(LINES, "s")
        async with stream.consume(on_gap=on_gap) as events:
            await publish(cluster, 1)
            assert await take(events, 1) == [1]
            provider = cluster.silos[0].services.part("default")
            agents = provider.manager.agents()
            for agent in agents:
                agent.subscribers.on_lost(Loss(None, Token(9, 1)))
            await publish(cluster, 2)
            with pytest.raises(ZeroDivisionError):
                await anext(events)
            assert await take(events, 1) == [2]
        first = seen[0].after
        assert first is not None and first.seq == 1
        assert seen == [Gap(stream.id, events.subscription, first, Token(9, 1))] * 2
