"""A subscription that is resumed or made again continues where it is, unless told otherwise."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Literal

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Conflict,
    Etag,
    Grain,
    LocalCluster,
    MemoryStateStore,
    StorageUnavailable,
    grain,
)
from millstream.streams import (
    CacheLimits,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    Start,
    StreamNamespace,
    StreamOptions,
)

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: dict[str, list[int]] = defaultdict(list)
GATES: dict[int, asyncio.Event] = {}
BAD: set[int] = set()
RUNNING: dict[str, int] = defaultdict(int)
MOST: dict[str, int] = defaultdict(int)


@pytest.fixture(autouse=True)
def clean() -> None:
    for one in (SEEN, GATES, BAD, RUNNING, MOST):
        one.clear()


async def handle(key: str, item: int) -> None:
    RUNNING[key] += 1
    MOST[key] = max(MOST[key], RUNNING[key])
    try:
        if item in GATES:
            await GATES[item].wait()
        if item in BAD:
            raise ValueError(f"{item} is bad")
        SEEN[key].append(item)
    finally:
        RUNNING[key] -= 1


class Hearer(Grain):
    async def listen(self, start: Start | None = None) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, start=start)

    async def leave(self) -> None:
        for subscription in await self.stream(LINES, "s").subscriptions(self):
            await subscription.unsubscribe()

    async def resume(self, start: Start | None = None) -> None:
        (subscription,) = await self.stream(LINES, "s").subscriptions(self)
        await subscription.resume(start=start)

    async def _on_line(self, event: Event[int]) -> None:
        await handle(self.key, event.item)

    async def stop(self) -> None:
        self.context.deactivate_when_idle()


class Returning(Grain):
    """Subscribes at each activation, as users of Orleans do."""

    async def on_activate(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def wake(self) -> None: ...

    async def stop(self) -> None:
        self.context.deactivate_when_idle()

    async def _on_line(self, event: Event[int]) -> None:
        await handle(self.key, event.item)


@grain(reentrant=True)
class Nimble(Hearer):
    """A reentrant grain."""


class Pause:
    def __init__(self) -> None:
        self.failures: list[DeliveryFailure] = []

    async def give_up(self, failure: DeliveryFailure, /) -> Literal["pause"]:
        self.failures.append(failure)
        return "pause"


def cluster_of(
    handler: Pause | None = None,
    store: MemoryStateStore | None = None,
    cache: CacheLimits | None = None,
) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(),
            options=StreamOptions(
                delivery=DeliveryOptions(retries=0, max_batch=1), cache=cache or CacheLimits()
            ),
            on_give_up=handler,
        )

    return LocalCluster(
        grains=[Hearer, Returning, Nimble],
        streams={"default": provider},
        stores={"default": store or MemoryStateStore()},
    )


async def publish(cluster: LocalCluster, *items: int) -> None:
    await cluster.stream(LINES, "s").publish_many(items)


@pytest.mark.parametrize("again", ["resume", "listen"])
async def test_a_subscription_with_a_backlog_goes_on_where_it_is(again: str) -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        hearer = cluster.grain(Nimble, "a")
        await hearer.listen()
        await publish(cluster, *range(30))
        await until(lambda: RUNNING["a"] == 1)
        await (hearer.resume() if again == "resume" else hearer.listen())
        GATES[0].set()
        await until(lambda: len(SEEN["a"]) >= 30)
        await spin()
    assert SEEN["a"] == list(range(30)) and MOST["a"] == 1


@pytest.mark.parametrize("again", ["resume", "listen"])
async def test_a_faulted_subscription_goes_on_with_the_event_that_failed(again: str) -> None:
    BAD.add(9)
    handler = Pause()
    async with cluster_of(handler) as cluster:
        hearer = cluster.grain(Hearer, "a")
        await hearer.listen()
        await publish(cluster, *range(30))
        await until(lambda: bool(handler.failures))
        await spin(100)
        BAD.clear()
        await (hearer.resume() if again == "resume" else hearer.listen())
        await until(lambda: len(SEEN["a"]) >= 30)
    assert SEEN["a"] == list(range(30))


async def test_a_resume_while_the_failure_handler_still_thinks_is_not_lost() -> None:
    BAD.add(1)
    asked, answered = asyncio.Event(), asyncio.Event()

    class Slow:
        async def give_up(self, failure: DeliveryFailure, /) -> Literal["pause"]:
            asked.set()
            await answered.wait()
            return "pause"

    slow: Pause = Slow()  # type: ignore[assignment]
    async with cluster_of(slow) as cluster:
        hearer = cluster.grain(Hearer, "a")
        await hearer.listen()
        await publish(cluster, 0, 1, 2)
        await asked.wait()
        BAD.clear()
        await hearer.resume()
        answered.set()
        await until(lambda: SEEN["a"] == [0, 1, 2])


async def test_a_grain_that_subscribes_whenever_it_wakes_misses_nothing() -> None:
    BAD.add(5)
    handler = Pause()
    async with cluster_of(handler) as cluster:
        returning = cluster.grain(Returning, "a")
        await returning.wake()
        await publish(cluster, *range(10))
        await until(lambda: bool(handler.failures))
        await spin(100)
        BAD.clear()
        await returning.stop()
        await spin(100)
        await returning.wake()
        await publish(cluster, *range(10, 20))
        await until(lambda: len(SEEN["a"]) >= 20)
    assert SEEN["a"] == list(range(20))


@pytest.mark.parametrize("again", ["resume", "listen"])
async def test_what_waits_is_left_out_only_where_next_is_said(again: str) -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        hearer = cluster.grain(Nimble, "a")
        await hearer.listen()
        await publish(cluster, *range(10))
        await until(lambda: RUNNING["a"] == 1)
        await (hearer.resume("next") if again == "resume" else hearer.listen("next"))
        GATES[0].set()
        await publish(cluster, 10, 11)
        await until(lambda: SEEN["a"] == [0, 10, 11])


SMALL = CacheLimits(events_max=16, stream_events_max=4)


def behind_in(cluster: LocalCluster) -> int:
    """Count the subscriptions whose events have left the cache."""
    found = 0
    for silo in cluster.silos:
        streams = silo.services.part("default")
        assert isinstance(streams, PersistentStreams)
        found += sum(one.behind for one in streams.stats())
    return found


async def test_what_comes_after_a_move_to_the_next_event_is_kept_for_one_that_was_behind() -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of(cache=SMALL) as cluster:
        hearer = cluster.grain(Nimble, "a")
        await hearer.listen()
        await publish(cluster, *range(10))
        await publish(cluster, *range(10, 40))
        await until(lambda: RUNNING["a"] == 1 and behind_in(cluster) == 1)
        await hearer.resume("next")
        await publish(cluster, 100, 101)
        await spin(500)
        GATES[0].set()
        await until(lambda: SEEN["a"][-1:] == [101])
    assert SEEN["a"] == [0, 100, 101]


async def test_a_move_back_while_a_handler_runs_survives_a_crowded_cache() -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of(cache=SMALL) as cluster:
        hearer = cluster.grain(Nimble, "a")
        await hearer.listen()
        await publish(cluster, 0, 1)
        await until(lambda: RUNNING["a"] == 1)
        await hearer.resume("earliest")
        await publish(cluster, *range(2, 12))
        await publish(cluster, *range(12, 40))
        await spin(500)
        GATES[0].set()
        await until(lambda: SEEN["a"][-1:] == [39])
    assert SEEN["a"] == [0, *range(40)]


@pytest.mark.parametrize("how", ["resume", "leave and listen"])
async def test_one_call_at_a_time_also_to_a_reentrant_grain(how: str) -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        hearer = cluster.grain(Nimble, "a")
        await hearer.listen()
        await publish(cluster, *range(3))
        await until(lambda: RUNNING["a"] == 1)
        if how == "resume":
            await hearer.resume("earliest")
        else:
            await hearer.leave()
            await hearer.listen()
            await publish(cluster, 3)
        await spin(200)
        assert MOST["a"] == 1
        GATES[0].set()
        last = 2 if how == "resume" else 3
        await until(lambda: SEEN["a"][-1:] == [last])
    assert MOST["a"] == 1
    assert SEEN["a"] == ([0, 0, 1, 2] if how == "resume" else [0, 3])


class Forgetful(MemoryStateStore):
    """A store that writes subscriptions but loses the answers."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        etag = await super().write(key, data, expect, fence)
        self._lose(key)
        return etag

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        await super().clear(key, expect, fence)
        self._lose(key)

    def _lose(self, key: str) -> None:
        if self.lost and key.startswith("subscription/"):
            self.lost -= 1
            raise StorageUnavailable("the answer was lost")


async def test_a_write_whose_answer_was_lost_does_not_wedge_a_subscription() -> None:
    store = Forgetful(lost=1)
    async with cluster_of(store=store) as cluster:
        hearer = cluster.grain(Hearer, "a")
        with pytest.raises(StorageUnavailable):
            await hearer.listen()
        await hearer.listen()
        await publish(cluster, 1)
        await until(lambda: SEEN["a"] == [1])
        store.lost = 1
        with pytest.raises(StorageUnavailable):
            await hearer.leave()
        await hearer.leave()
        await publish(cluster, 2)
        await hearer.listen()
        await publish(cluster, 3)
        await until(lambda: SEEN["a"] == [1, 3])


async def test_a_row_that_another_has_changed_ends_the_activation() -> None:
    store = MemoryStateStore()
    async with cluster_of(store=store) as cluster:
        hearer = cluster.grain(Hearer, "a")
        await hearer.listen()
        ((key, row),) = await store.scan("subscription/", "", 10)
        await store.write(key, row.data, row.etag, row.fence)
        with pytest.raises(Conflict):
            await hearer.resume()
        await hearer.resume()
        await publish(cluster, 1)
        await until(lambda: SEEN["a"] == [1])
