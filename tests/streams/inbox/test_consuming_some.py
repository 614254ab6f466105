"""Programs outside the cluster read events that pass a filter; other events are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamEvents
from millstream.streams import StreamNamespace as Namespace
from millstream.streams.api import stream_events
from millstream.streams.api.filters.known import find_name

NUMBERS = Namespace("numbers", int)
FAILS_AT = 5


class Desk(Grain):
    sums = state(int)

    @staticmethod
    def is_even(event: Event[int]) -> bool:
        assert event.attempt == 1 and not event.redelivered
        return event.item % 2 == 0

    @classmethod
    def is_large(cls, event: Event[int]) -> bool:
        assert cls is Desk
        return event.item >= 100

    @staticmethod
    def is_weak(event: Event[int]) -> bool:
        if event.item == FAILS_AT:
            raise ZeroDivisionError
        return event.item > FAILS_AT

    @staticmethod
    def is_vague(event: Event[int]) -> Any:
        return None if event.item == FAILS_AT else True

    @staticmethod
    def of_text(event: Event[str]) -> bool:
        return bool(event.item)

    @staticmethod
    def unsaid(event: Any) -> bool:
        return bool(event.item)

    async def ping(self) -> None: ...


class Plain:
    @staticmethod
    def is_even(event: Event[int]) -> bool:
        return event.item % 2 == 0


def is_odd(event: Event[int]) -> bool:
    return event.item % 2 == 1


class Other(Grain):
    async def ping(self) -> None: ...


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
    )


def cluster_of(*, is_hosted: bool = True) -> LocalCluster:
    return LocalCluster(
        silos=1, grains=[Desk if is_hosted else Other], streams={"default": provider}
    )


def agent_of(cluster: LocalCluster) -> Any:
    (agent,) = cluster.silos[0].services.part("default").manager.agents()
    return agent


async def publish(cluster: LocalCluster, *numbers: int) -> None:
    await cluster.stream(NUMBERS, "s").publish_many(numbers)


async def take(events: StreamEvents[int], count: int) -> list[int]:
    return [(await anext(events)).item for _ in range(count)]


FILTERS: list[Callable[[Event[int]], bool]] = [lambda e: e.item % 2 == 0, Desk.is_even]


@pytest.mark.parametrize("where", FILTERS, ids=["asked in the program", "asked in the silo"])
@pytest.mark.parametrize("is_hosted", [True, False], ids=["hosted", "elsewhere"])
async def test_what_fits_is_handed_out_in_order_and_the_rest_is_done(
    where: Callable[[Event[int]], bool], is_hosted: bool
) -> None:
    async with cluster_of(is_hosted=is_hosted) as cluster:
        stream = cluster.stream(NUMBERS, "s")
        async with stream.consume(name="audit", where=where) as events:
            await publish(cluster, *range(300), 300)
            assert await take(events, 150) == list(range(0, 300, 2))
            assert await take(events, 1) == [300]
        await until(lambda: agent_of(cluster).undone == 0)
        async with stream.consume(name="audit") as events:
            await publish(cluster, 1)
            assert await take(events, 1) == [1], "what did not fit does not come again"


async def test_a_static_method_of_a_hosted_class_spares_the_way_to_the_program() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(NUMBERS, "s")
        for where in (Desk.is_even, Desk.is_large):
            async with stream.consume(where=where) as events:
                await publish(cluster, 1, 3, 5)
                await until(lambda: agent_of(cluster).undone == 0)  # nobody has asked for an event
                assert not events._page
                await publish(cluster, 100)
                assert await take(events, 1) == [100]


async def test_what_no_silo_can_ask_waits_for_the_program_to_ask() -> None:
    async with cluster_of(is_hosted=False) as cluster:
        async with cluster.stream(NUMBERS, "s").consume(where=Desk.is_even) as events:
            await publish(cluster, 1, 3, 4)
            await until(lambda: bool(events._page))
            assert await take(events, 1) == [4]


async def test_it_sees_the_event_as_it_was_published() -> None:
    async with cluster_of(is_hosted=False) as cluster:
        stream = cluster.stream(NUMBERS, "s")
        with pytest.raises(ZeroDivisionError):
            async with stream.consume(name="audit", where=Desk.is_even) as events:
                await publish(cluster, 2)
                await anext(events)
                raise ZeroDivisionError
        async with stream.consume(name="audit", where=Desk.is_even) as events:
            again = await anext(events)
            assert again.item == 2 and again.redelivered


@pytest.mark.parametrize("is_hosted", [True, False], ids=["hosted", "elsewhere"])
async def test_what_a_filter_raises_comes_out_of_the_loop_and_asking_again_passes_over_it(
    is_hosted: bool,
) -> None:
    async with cluster_of(is_hosted=is_hosted) as cluster:
        stream = cluster.stream(NUMBERS, "s")
        async with stream.consume(name="audit", where=Desk.is_weak) as events:
            await publish(cluster, *range(8))
            with pytest.raises(ZeroDivisionError):
                await anext(events)
            assert await take(events, 2) == [6, 7]
        await until(lambda: agent_of(cluster).undone == 0)


@pytest.mark.parametrize("is_hosted", [True, False], ids=["hosted", "elsewhere"])
async def test_a_loop_that_a_filter_ends_leaves_its_event_unacknowledged(is_hosted: bool) -> None:
    async with cluster_of(is_hosted=is_hosted) as cluster:
        stream = cluster.stream(NUMBERS, "s")
        with pytest.raises(ZeroDivisionError):
            async with stream.consume(name="audit", where=Desk.is_weak) as events:
                await publish(cluster, *range(8))
                async for _ in events:
                    pass
        async with stream.consume(name="audit", where=Desk.is_weak) as events:
            with pytest.raises(ZeroDivisionError):
                await anext(events)
            assert await take(events, 2) == [6, 7]


async def test_an_answer_that_is_none_is_a_failure() -> None:
    async with cluster_of() as cluster:
        async with cluster.stream(NUMBERS, "s").consume(where=Desk.is_vague) as events:
            await publish(cluster, FAILS_AT)
            with pytest.raises(TypeError, match="where returned None, not True or False"):
                await anext(events)


async def test_a_long_run_that_does_not_fit_leaves_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stream_events.SLICE_S <= 0.001
    monkeypatch.setattr(stream_events, "SLICE_S", 0.0)  # each answer takes longer
    async with cluster_of(is_hosted=False) as cluster:
        stream, rounds = cluster.stream(NUMBERS, "s"), 0

        def slowly(event: Event[int]) -> bool:
            return event.item == last

        async with stream.consume(where=slowly) as events:
            await publish(cluster, *range(200))
            await until(lambda: bool(events._page))
            last = len(events._page) - 1  # all requested events have arrived
            assert last >= 10
            reading = asyncio.create_task(anext(events))
            while not reading.done():
                rounds += 1
                await asyncio.sleep(0)
            assert (await reading).item == last
        assert rounds >= last


async def test_a_wait_that_is_cancelled_among_what_does_not_fit_loses_nothing() -> None:
    async with cluster_of(is_hosted=False) as cluster:
        stream = cluster.stream(NUMBERS, "s")
        async with stream.consume(where=is_odd, events_max=3) as events:
            await publish(cluster, *range(0, 40, 2), 41)
            for times in range(1, 40):
                waiting = asyncio.create_task(anext(events))
                await spin(times)
                waiting.cancel()
                try:
                    assert (await waiting).item == 41
                    break
                except asyncio.CancelledError:
                    pass
            else:
                assert await take(events, 1) == [41]


async def test_a_name_has_the_filter_of_who_came_last() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(NUMBERS, "s")
        async with stream.consume(name="audit", where=Desk.is_large):
            await publish(cluster, 1, 2)
            await until(lambda: agent_of(cluster).undone == 0)
        async with stream.consume(name="audit", where=Desk.is_even) as events:
            await publish(cluster, 3, 4, 100)
            assert await take(events, 2) == [4, 100]


async def test_what_is_no_filter_is_refused() -> None:
    async def later(event: Event[int]) -> bool:
        return True

    wrong: Any
    async with cluster_of() as cluster:
        stream = cluster.stream(NUMBERS, "s")
        for wrong, said in ((3, "give a function"), (later, "is async"), (lambda: True, "one arg")):
            with pytest.raises(ConfigError, match=said):
                stream.consume(where=wrong)


def test_silos_know_only_what_is_the_same_there_by_its_name() -> None:
    class Local(Grain):
        @staticmethod
        def is_even(event: Event[int]) -> bool:
            return event.item % 2 == 0

    known: list[tuple[Any, object, str]] = [
        (Desk.is_even, int, "Desk.is_even"),
        (Desk.is_large, int, "Desk.is_large"),
        (Desk.is_even, bool, ""),
        (Desk.of_text, int, ""),
        (Desk.unsaid, int, ""),
        (Desk.ping, int, ""),
        (Plain.is_even, int, ""),
        (Local.is_even, int, ""),
        (is_odd, int, ""),
        (lambda event: True, int, ""),
        (int, int, ""),
    ]
    for where, item, name in known:
        assert find_name(where, item) == name, where
