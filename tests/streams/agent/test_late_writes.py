"""Writes of subscriptions that reach the store after their callers got an error."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Etag,
    Grain,
    LocalCluster,
    MemoryStateStore,
    Silo,
    StorageError,
    StorageUnavailable,
)
from millstream.streams import (
    Backoff,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    GiveUpDecision,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.agent.subscribers import Subscribers
from millstream.streams.api.rendezvous import rendezvous_key, rendezvous_of
from millstream.streams.api.subscription_rows import SubscriptionRow, row_key, rows_under

LINES = StreamNamespace("lines", str)
ONLY = StreamNamespace("only", str, subscriptions="implicit")
STREAM = StreamId("lines", "s")
SEEN: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Reader(Grain):
    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def leave(self) -> None:
        for subscription in await self.stream(LINES, "s").subscriptions(self):
            await subscription.unsubscribe()

    async def _on_line(self, event: Event[str]) -> None:
        SEEN["Reader"].append(event.item)
        if event.item == "bad":
            raise ValueError("bad")


class Marked(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN["Marked"].append(event.item)
        if event.item == "bad":
            raise ValueError("bad")


class Only(Grain):
    @subscribe(ONLY)
    async def on_line(self, event: Event[str]) -> None:
        SEEN["Only"].append(event.item)
        if event.item == "bad":
            raise ValueError("bad")


class LateStore(MemoryStateStore):
    """Reports the first faults or clears as failed, and carries them out when `land` is called."""

    def __init__(self, late: int = 0, late_clears: int = 0) -> None:
        super().__init__()
        self.late = late
        self.late_clears = late_clears
        self.written = 0  # written rows of subscriptions
        self._waiting: list[Callable[[], object]] = []

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        put = super().put
        if key.startswith("subscription/") and b"faulted" in data and self.late:
            self.late -= 1
            self._waiting.append(lambda: put(key, data, expect, fence))
            raise StorageUnavailable("no answer in time")
        self.written += key.startswith("subscription/")
        return put(key, data, expect, fence)

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        remove = super().remove
        if key.startswith("subscription/") and self.late_clears:
            self.late_clears -= 1
            self._waiting.append(lambda: remove(key, expect, fence))
            raise StorageUnavailable("no answer in time")
        remove(key, expect, fence)

    def land(self) -> int:
        """Carry out the late writes; return the number of stored ones."""
        landed, before = 0, len(self._waiting)
        while self._waiting:
            with suppress(StorageError):  # nobody waits for the answer
                self._waiting.pop(0)()
                landed += 1
        assert before, "nothing was late"
        return landed

    async def rows(self) -> dict[str, SubscriptionRow]:
        return {row.grain_type: row for row, _ in await rows_under(self, "subscription/")}

    async def fault(self, subscription: SubscriptionRow) -> None:
        """Write as a caller that has ended, whose write comes late."""
        key = row_key(rendezvous_key("default", STREAM), subscription.id)
        stored = await self.read(key)
        assert stored is not None
        data = msgspec.msgpack.encode(msgspec.structs.replace(subscription, state="faulted"))
        await self.write(key, data, stored.etag, stored.fence)


class Wavering:
    """Pauses at the first call, then stores a dead letter."""

    def __init__(self) -> None:
        self.asked = 0

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        self.asked += 1
        return "pause" if self.asked == 1 else "dead_letter"


def cluster_of(
    store: LateStore, grain: type[Grain], handler: Wavering | None = None
) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.02),
            options=StreamOptions(
                delivery=DeliveryOptions(retries=0, backoff=Backoff(0.005)), reconcile_s=0.02
            ),
            on_give_up=handler or Wavering(),
        )

    return LocalCluster(
        silos=1, grains=[grain], streams={"default": provider}, stores={"default": store}
    )


def known(silo: Silo) -> Subscribers:
    (agent,) = silo.services.part("default").manager.agents()
    found: Subscribers = agent.subscribers
    return found


def is_held(silo: Silo) -> bool:
    return any(one.held for one in known(silo).of(STREAM) or ())


async def test_who_subscribes_again_after_a_fault_that_came_late_goes_on() -> None:
    store = LateStore()
    async with cluster_of(store, Reader) as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await cluster.stream(LINES, "s").publish("a")
        await until(lambda: SEEN["Reader"] == ["a"])
        await store.fault((await store.rows())["Reader"])
        await until(lambda: is_held(silo))
        await cluster.stream(LINES, "s").publish("b")
        (listed,) = await cluster.stream(LINES, "s").subscriptions()
        assert listed.state == "faulted"
        await cluster.grain(Reader, "a").listen()
        await until(lambda: SEEN["Reader"] == ["a", "b"])
        assert (await store.rows())["Reader"].state == "active"


async def test_a_fault_that_comes_late_does_not_undo_what_was_decided_after_it() -> None:
    store = LateStore(late=1)
    async with cluster_of(store, Reader, handler=Wavering()) as cluster:
        await cluster.grain(Reader, "a").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "bad", "b"])
        await until(lambda: SEEN["Reader"] == ["a", "bad", "b"])
        assert store.land() == 0
        assert (await store.rows())["Reader"].state == "active"


@pytest.mark.parametrize("consumer", [Reader, Marked])
async def test_a_fault_that_was_stored_without_an_answer_is_undone_by_the_next_decision(
    consumer: type[Grain],
) -> None:
    store = LateStore(late=1)

    class Landing(Wavering):
        async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
            answer = await super().give_up(failure)
            if answer == "dead_letter":
                assert store.land() == 1
            return answer

    async with cluster_of(store, consumer, handler=Landing()) as cluster:
        if consumer is Reader:
            await cluster.grain(Reader, "a").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "bad", "b"])
        await until(lambda: SEEN[consumer.__name__] == ["a", "bad", "b"])
        states = {name: row.state for name, row in (await store.rows()).items()}
        assert states == ({"Reader": "active"} if consumer is Reader else {})


@pytest.mark.parametrize("consumer", [Reader, Marked])
async def test_a_pause_by_hand_outlives_a_fault_that_is_undone(consumer: type[Grain]) -> None:
    store = LateStore(late=1)
    paused: list[str] = []

    class Pausing(Wavering):
        async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
            answer = await super().give_up(failure)
            if answer == "dead_letter":
                (listed,) = await cluster.stream(LINES, "s").subscriptions()
                await listed.pause()
                paused.append(listed.id)
            return answer

    async with cluster_of(store, consumer, handler=Pausing()) as cluster:
        if consumer is Reader:
            await cluster.grain(Reader, "a").listen()
        await cluster.stream(LINES, "s").publish_many(["a", "bad", "b"])
        await until(lambda: bool(paused))
        dead_letters = cluster.silos[0].services.part("default").dead_letters
        while not await dead_letters.list():
            await asyncio.sleep(0)
        assert store.land() == 0
        name = consumer.__name__
        assert (await store.rows())[name].state == "paused" and SEEN[name] == ["a", "bad"]


async def test_one_with_a_mark_that_is_resumed_has_no_row_that_came_late() -> None:
    store = LateStore(late=1)
    async with cluster_of(store, Only, handler=Wavering()) as cluster:
        stream = cluster.stream(ONLY, "s")
        await stream.publish_many(["a", "bad", "b"])
        await until(lambda: SEEN["Only"] == ["a", "bad", "b"])
        (listed,) = await stream.subscriptions()
        assert store.land() == 1
        await listed.resume()
        assert await store.rows() == {}


async def test_an_unsubscribe_that_comes_late_does_not_end_who_subscribed_again() -> None:
    store = LateStore(late_clears=1)
    async with cluster_of(store, Reader) as cluster:
        await cluster.grain(Reader, "a").listen()
        with pytest.raises(StorageUnavailable):
            await cluster.grain(Reader, "a").leave()
        await cluster.grain(Reader, "a").listen()
        assert store.land() == 0
        await cluster.stream(LINES, "s").publish("a")
        await until(lambda: SEEN["Reader"] == ["a"])
        assert (await store.rows())["Reader"].state == "active"


async def test_who_subscribes_again_and_again_is_written_once() -> None:
    store = LateStore(late_clears=1)
    async with cluster_of(store, Reader) as cluster:
        await cluster.grain(Reader, "a").listen()
        with pytest.raises(StorageUnavailable):
            await cluster.grain(Reader, "a").leave()  # another activation follows
        before = store.written
        for _ in range(5):
            await cluster.grain(Reader, "a").listen()
        assert store.written == before + 1


class SilentStore(LateStore):
    """Stores each write, but answers no write of a subscription while it is silent."""

    is_silent = False
    unanswered = 0

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        etag = await super().write(key, data, expect, fence)
        if self.is_silent and key.startswith("subscription/"):
            self.unanswered += 1
            await asyncio.Event().wait()
        return etag


async def test_a_write_whose_caller_was_cancelled_is_looked_up_before_the_next_one() -> None:
    """Seed 800184 of suite `memory`: the row said faulted, and subscribing again changed
    nothing."""
    store = SilentStore()
    async with cluster_of(store, Reader) as cluster:
        silo = cluster.silos[0]
        await silo.grain(Reader, "r").listen()
        (row,) = (await store.rows()).values()
        key = rendezvous_key("default", STREAM)
        rendezvous = silo.grain(rendezvous_of("default"), key)
        store.is_silent = True
        call = asyncio.ensure_future(rendezvous.change(row.id, "faulted", "why"))
        await until(lambda: store.unanswered == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.is_silent = False
        assert [one.state for one in await rendezvous.rows()] == ["faulted"]
        await silo.grain(Reader, "r").listen()
        assert [one.state for one in (await store.rows()).values()] == ["active"]
