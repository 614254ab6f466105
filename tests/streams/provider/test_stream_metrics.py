"""The metrics of streams, in virtual time: each value is compared with what was published."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, Metrics, Silo
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    CacheLimits,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    pause_stream,
    subscribe,
)

LINES = StreamNamespace("lines", int)
NOBODY = StreamNamespace("nobody", int)
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
LABELS = ("default", "lines", "Reader", "on_line")
QUEUE = ("default", "queue-0")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    GATES.clear()
    yield


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if event.item < 0:
            raise ValueError("bad")
        await GATES[self.key].wait()


def provider(cache: CacheLimits | None = None) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
        options=StreamOptions(
            delivery=DeliveryOptions(retries=0, max_batch=1, handler_timeout_s=3_600.0),
            cache=cache or CacheLimits(),
        ),
    )


def in_silo(
    main: Callable[[Silo], Awaitable[None]],
    *,
    cache: CacheLimits | None = None,
    parts: dict[str, Any] | None = None,
) -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(
            sim,
            grains=[Reader],
            streams={"default": lambda: provider(cache)},
            parts={"metrics": Metrics} if parts is None else parts,
            skew_s=0.0,
        ) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None
            await sim.call(sim.host(cluster.names[0]), as_coroutine(main(silo)))
            for gate in GATES.values():
                gate.set()

    run(driver, seed=1)


async def as_coroutine(work: Awaitable[None]) -> None:
    await work


def values(silo: Silo, name: str) -> dict[tuple[str, ...], Any]:
    found = {metric.name: values for metric, values in silo.services.metrics.collect().items()}
    return dict(found[f"millstream_{name}"])


async def wait_owned(silo: Silo) -> None:
    while not values(silo, "queue_reading").get(QUEUE):
        await asyncio.sleep(0.1)


def test_the_lag_of_a_subscription_is_that_of_its_oldest_event() -> None:
    async def main(silo: Silo) -> None:
        await wait_owned(silo)
        began = asyncio.get_running_loop().time()
        await silo.stream(LINES, "a").publish_many([1, 2, 3])
        await asyncio.sleep(20.0)
        await silo.stream(LINES, "b").publish_many([1, 2])
        await asyncio.sleep(10.0)
        age_s = asyncio.get_running_loop().time() - began
        assert values(silo, "subscription_lag_events") == {LABELS: 5}
        assert values(silo, "subscription_streams") == {LABELS: 2}
        assert values(silo, "subscription_lag_seconds")[LABELS] == pytest.approx(age_s, abs=0.1)
        still = values(silo, "subscription_standstill_seconds")[LABELS]
        assert still == pytest.approx(age_s, abs=11.0)
        assert still > 15.0
        GATES["a"].set()
        await asyncio.sleep(10.0)
        assert values(silo, "subscription_lag_events") == {LABELS: 2}
        assert values(silo, "subscription_lag_seconds")[LABELS] == pytest.approx(20.0, abs=0.1)
        GATES["b"].set()
        await asyncio.sleep(10.0)
        for name in ("lag_events", "lag_seconds", "streams", "standstill_seconds"):
            assert values(silo, f"subscription_{name}") == {}

    in_silo(main)


def test_the_figures_of_a_queue_are_those_of_its_events() -> None:
    async def main(silo: Silo) -> None:
        await wait_owned(silo)
        GATES["a"].set()
        await silo.stream(LINES, "a").publish_many([1, 2, -1, 3])
        await silo.stream(NOBODY, "x").publish_many([1, 2])
        await silo.stream(LINES, "b").publish_many([1, 2, 3])
        await asyncio.sleep(8.0)
        assert values(silo, "queue_read_events_total") == {QUEUE: 9}
        assert values(silo, "queue_delivered_events_total") == {QUEUE: 3}
        assert values(silo, "queue_given_up_events_total") == {QUEUE: 1}
        assert values(silo, "queue_unheard_events_total") == {QUEUE: 2}
        assert values(silo, "queue_cached_events") == {QUEUE: 3}
        assert values(silo, "queue_cached_bytes")[QUEUE] > 0
        assert values(silo, "queue_backlog_events") == {QUEUE: 0}
        assert values(silo, "queue_deliveries") == {QUEUE: 1}
        assert values(silo, "queue_oldest_event_age_seconds")[QUEUE] == pytest.approx(8.0, abs=0.1)
        assert values(silo, "queue_lagging_subscriptions") == {QUEUE: 0}
        assert values(silo, "queue_streams")[QUEUE] >= 2

    in_silo(main)


def test_a_paused_subscription_is_seen() -> None:
    async def main(silo: Silo) -> None:
        await wait_owned(silo)
        GATES["a"].set()
        await pause_stream(silo, LINES, "a")
        await silo.stream(LINES, "a").publish_many([1, 2])
        await asyncio.sleep(8.0)
        assert values(silo, "subscription_streams") == {LABELS: 1}
        assert values(silo, "subscription_lag_seconds")[LABELS] == pytest.approx(8.0, abs=0.1)
        assert values(silo, "subscription_stopped_streams") == {(*LABELS, "paused"): 1}

    in_silo(main)


def test_a_lagging_subscription_has_the_age_of_the_event_that_it_needs() -> None:
    async def main(silo: Silo) -> None:
        await wait_owned(silo)
        began = asyncio.get_running_loop().time()
        for number in range(60):
            await silo.stream(LINES, "a").publish(number)
        GATES["b"].set()
        await asyncio.sleep(30.0)
        age_s = asyncio.get_running_loop().time() - began
        assert values(silo, "queue_lagging_subscriptions") == {QUEUE: 1}
        assert values(silo, "subscription_lag_seconds")[LABELS] == pytest.approx(age_s, abs=0.5)

    in_silo(main, cache=CacheLimits(events_max=20, stream_events_max=5))


def test_without_metrics_nobody_looks_at_lags() -> None:
    async def main(silo: Silo) -> None:
        await wait_owned(silo)
        await silo.stream(LINES, "a").publish_many([1, 2, 3])
        await asyncio.sleep(20.0)
        assert values(silo, "queue_read_events_total") == {QUEUE: 3}
        assert values(silo, "subscription_lag_events") == {}

    in_silo(main, parts={})
