"""Subscriptions that only the agent or only the store knows are found and repaired."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Grain,
    LocalCluster,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    StateStore,
    StorageUnavailable,
)
from millstream.runtime.testing import FailingStore
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams import DeliveryOptions as Limits
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.audience.newcomers import Newcomers
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.reconciliation import repairs
from millstream.streams.api.subscription_rows import (
    Held,
    SubscriptionRow,
    rows_under,
)
from millstream.streams.provider.agents import AgentCalls
from millstream.streams.provider.known_subscriptions import KnownSubscriptions

NOTES = StreamNamespace("notes", int)
STREAM = StreamId("notes", "s")
LEAVE_AND_COME = 99
SEEN: dict[str, list[int]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Reader(Grain):
    async def listen(self, name: str = "") -> None:
        await self.stream(NOTES, "s").subscribe(self._on_note, name=name)

    async def leave(self) -> None:
        for subscription in await self.stream(NOTES, "s").subscriptions(self):
            await subscription.unsubscribe()

    async def _on_note(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)
        if event.item == LEAVE_AND_COME:
            with pytest.raises(StorageUnavailable):
                await self.leave()
            await self.listen()


class Marked(Grain):
    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        SEEN["marked"].append(event.item)


class Other(Grain):
    async def ping(self) -> None: ...


def provider_with(**options: Any) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.02),
        options=StreamOptions(
            delivery=DeliveryOptions(backoff=Backoff(0.01, 1.0, 0.01)),
            **{"reconcile_s": 0.02, **options},
        ),
    )


def cluster_of(store: StateStore | None = None) -> LocalCluster:
    return LocalCluster(
        silos=1,
        grains=[Reader, Marked],
        streams={"default": provider_with},
        stores={"default": store or MemoryStateStore()},
    )


def agent_of(silo: Silo) -> PullingAgent:
    (agent,) = silo.services.part("default").manager.agents()
    found: PullingAgent = agent
    return found


def known(silo: Silo) -> list[str]:
    """Return the keys of grains whose explicit subscriptions the agent knows."""
    found = agent_of(silo).subscribers.of(STREAM) or ()
    return sorted(one.grain_key for one in found if one.is_explicit)


async def publish(silo: Silo, item: int) -> None:
    await silo.stream(NOTES, "s").publish(item)
    await until(lambda: item in SEEN["marked"])


class Lost:
    """Loses messages to agents, although their sender counts them as delivered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self._monkeypatch = monkeypatch
        for name in names:
            monkeypatch.setattr(AgentCalls, name, self._nothing)

    async def _nothing(self, *args: Any) -> None: ...

    def no_more(self) -> None:
        self._monkeypatch.undo()


async def test_one_that_the_agent_was_never_told_of_hears_what_comes_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await publish(silo, 1)
        Lost(monkeypatch, "attach")
        await cluster.grain(Reader, "a").listen()
        await until(lambda: known(silo) == ["a"])
        await publish(silo, 2)
        await until(lambda: SEEN["a"] == [2])
    assert "is stored, but was not known here" in caplog.text


async def test_one_whose_end_the_agent_was_not_told_of_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        Lost(monkeypatch, "detach")
        await cluster.grain(Reader, "a").leave()
        await until(lambda: known(silo) == [])
        await publish(silo, 2)
        assert SEEN["a"] == [1]
    assert "is not stored any more" in caplog.text


@pytest.mark.parametrize("consumer", ["Reader/a", "Marked/s"])
async def test_a_pause_and_its_end_that_the_agent_was_not_told_of_hold(
    consumer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        listed = await cluster.stream(NOTES, "s").subscriptions()
        (handle,) = [one for one in listed if one.consumer == consumer]

        def is_held() -> bool:
            found = agent_of(silo).subscribers.of(STREAM) or ()
            return [one.held for one in found if one.id == handle.id] == ["paused"]

        lost = Lost(monkeypatch, "pause")
        await handle.pause()
        await until(is_held)
        lost.no_more()
        Lost(monkeypatch, "attach")
        await handle.resume()
        await until(lambda: not is_held())
        await silo.stream(NOTES, "s").publish(2)
        await until(lambda: SEEN["a"] == SEEN["marked"] == [1, 2])


async def test_a_store_that_is_away_ends_nothing() -> None:
    store = FailingStore()
    async with cluster_of(store) as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        store.fail("scan", "subscription/", times=20)
        before = store.failed_count
        await until(lambda: store.failed_count >= before + 20)
        store.fail("read", "subscription/", times=3)
        await publish(silo, 2)
        await until(lambda: SEEN["a"] == [1, 2])
        assert known(silo) == ["a"]


async def test_a_store_that_raises_anything_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def odd(self: KnownSubscriptions, stream: StreamId) -> Sequence[SubscriptionRow]:
        raise KeyError("odd")

    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await publish(silo, 1)
        patched = pytest.MonkeyPatch()
        patched.setattr(KnownSubscriptions, "read_stored", odd)
        await until(lambda: "could not be compared with the store: KeyError" in caplog.text)
        patched.undo()
        Lost(monkeypatch, "attach")
        await cluster.grain(Reader, "a").listen()
        await until(lambda: known(silo) == ["a"])


async def test_what_is_made_while_the_rows_are_read_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = asyncio.Event()
    reading = asyncio.Event()

    async def late(self: KnownSubscriptions, stream: StreamId) -> Sequence[SubscriptionRow]:
        rows = await stored(self, stream)
        reading.set()
        await answer.wait()
        return rows

    stored = KnownSubscriptions.read_stored
    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        monkeypatch.setattr(KnownSubscriptions, "read_stored", late)
        await until(reading.is_set)
        await cluster.grain(Reader, "b").listen()
        await cluster.grain(Reader, "a").leave()
        answer.set()
        await spin(100)
        assert known(silo) == ["b"]


async def test_an_unsubscribe_that_was_not_stored_is_seen_through_at_the_next_event() -> None:
    store = FailingStore()
    async with cluster_of(store) as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        store.fail("clear", "subscription/", times=2)
        with pytest.raises(StorageUnavailable):
            await cluster.grain(Reader, "a").leave()
        await publish(silo, 2)
        await publish(silo, 3)
        await until(lambda: known(silo) == [])
        assert await rows_under(store, "subscription/") == [] and SEEN["a"] == [1]


async def test_who_subscribes_again_after_an_unsubscribe_that_failed_hears_everything() -> None:
    store = FailingStore()
    for is_done in (False, True):
        SEEN.clear()
        async with cluster_of(store) as cluster:
            (silo,) = cluster.silos
            await cluster.grain(Reader, "a").listen()
            await publish(silo, 1)
            store.fail("clear", "subscription/", is_done=is_done)
            with pytest.raises(StorageUnavailable):
                await cluster.grain(Reader, "a").leave()
            await cluster.grain(Reader, "a").listen()
            await publish(silo, 2)
            await publish(silo, 3)
            await until(lambda: SEEN["a"] == [1, 2, 3])
            await cluster.grain(Reader, "a").leave()


async def test_an_unsubscribe_that_fails_within_a_delivery_gives_back_what_is_behind() -> None:
    store = FailingStore()
    async with cluster_of(store) as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        store.fail("clear", "subscription/")
        await silo.stream(NOTES, "s").publish_many([LEAVE_AND_COME, 3, 4])
        await until(lambda: 4 in SEEN["marked"])
        await until(lambda: SEEN["a"] == [1, LEAVE_AND_COME, 3, 4])


# --- consumers that no silo hosts ----------------------------------------------------------------


class Places:
    def __init__(self) -> None:
        self.table, self.store = MemoryMembershipTable(), MemoryStateStore()

    def silo(self, *grains: type[Grain], retention_s: float, name: str = "") -> Silo:
        return Silo(
            grains=list(grains),
            membership=self.table,
            stores={"default": self.store},
            streams={"default": provider_with(absent_type_retention_s=retention_s)},
            membership_options=MembershipOptions(refresh_s=0.05),
            name=name,
        )

    async def rows(self) -> list[SubscriptionRow]:
        return [row for row, _ in await rows_under(self.store, "subscription/")]


async def test_one_whose_type_no_silo_hosts_is_forgotten_after_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = Places()
    async with places.silo(Other, Marked, retention_s=0.5) as stays:
        async with places.silo(Reader, retention_s=0.5) as goes:
            await goes.grain(Reader, "a").listen()
            await publish(stays, 1)
            await until(lambda: SEEN["a"] == [1])
        await publish(stays, 2)
        async with asyncio.timeout(20):
            while await places.rows():
                await asyncio.sleep(0)
        await until(lambda: known(stays) == [] and agent_of(stays).undone == 0)
    assert "no silo has hosted grain type Reader for absent" in caplog.text


async def test_one_whose_type_comes_back_in_time_goes_on() -> None:
    places = Places()
    async with places.silo(Other, Marked, retention_s=3600.0) as stays:
        async with places.silo(Reader, retention_s=3600.0) as goes:
            await goes.grain(Reader, "a").listen()
            await publish(stays, 1)
            await until(lambda: SEEN["a"] == [1])
        await publish(stays, 2)
        await spin(200)
        async with places.silo(Reader, retention_s=3600.0):
            await until(lambda: SEEN["a"] == [1, 2])


async def test_the_rendezvous_forgets_none_that_is_hosted_as_it_sees_it() -> None:
    async with cluster_of() as cluster:
        (silo,) = cluster.silos
        await cluster.grain(Reader, "a").listen()
        await publish(silo, 1)
        following: KnownSubscriptions = silo.services.part("default")._reading.following
        for row in await following.read_stored(STREAM):
            await following.forget(STREAM, row.id)
        assert len(await following.read_stored(STREAM)) == 1


# --- differences ---------------------------------------------------------------------------------


def row(name: str, state: Any = "active") -> SubscriptionRow:
    return SubscriptionRow(name, "Reader", "r", "_on", False, "next", state=state)


def subscriber(name: str, *, is_held: bool = False) -> Subscriber:
    made = Newcomers(Limits()).explicit(row(name), STREAM)
    made.is_explicit = not name.startswith("implicit/")
    made.held = "paused" if is_held else ""
    return made


def changed(one: Subscriber) -> Held:
    return "" if one.held else "paused"


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("has_changed", [False, True])
@pytest.mark.parametrize(
    ("here", "stored", "wanted"),
    [
        (None, "active", "attach"),
        (None, "pending", "attach"),
        (None, "paused", "hold"),
        (False, "active", ""),
        (False, "faulted", "hold"),
        (True, "paused", ""),
        (True, "active", "attach"),
        (True, None, "detach"),
        (False, None, "detach"),
    ],
)
def test_what_differs_is_repaired_unless_it_is_newer(
    here: bool | None, stored: Any, wanted: str, has_changed: bool, told: bool
) -> None:
    there = {} if here is None else {"one": subscriber("one", is_held=here)}
    before: dict[str, Held] = {}
    for name, one in there.items():
        before[name] = changed(one) if has_changed else one.held
    rows = [] if stored is None else [row("one", stored)]
    gone = there.keys() - {one.id for one in rows}
    found = repairs(there, before, rows, gone, {"one"} if told else ())
    if told or (has_changed and there):
        assert found == []
    else:
        kinds = ["detach" if one.row is None else ("attach", "hold")[one.is_held] for one in found]
        assert kinds == ([wanted] if wanted else [])


def test_an_implicit_one_has_a_row_only_while_it_is_held() -> None:
    held, free = subscriber("implicit/a", is_held=True), subscriber("implicit/b")
    there = {one.id: one for one in (held, free)}
    before: dict[str, Held] = {one.id: one.held for one in (held, free)}
    (found,) = repairs(there, before, [row("implicit/c", "paused")], there, ())
    assert found.subscription == "implicit/a" and found.row is not None and not found.is_held
