"""Stored subscriptions and the members of a cluster (rows 100 to 113): the store fails, and silos
join, leave and crash."""

from __future__ import annotations

import asyncio

import pytest
from tests.streams.conformance.actors import LINES, Listener, Producer, ears
from tests.streams.conformance.adapters import NUMBERS, PUBLISHES, SURVIVES
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.stores import TroubledStore

from millstream.runtime import ConfigError, RuntimeOptions, StorageUnavailable
from millstream.streams import Capability, StreamNamespace
from millstream.streams.testing import owners

TEN = list(range(10))


def store_of(place: Place) -> TroubledStore:
    assert isinstance(place.store, TroubledStore)
    return place.store


@conforms(100, 101, needs=[PUBLISHES], store=TroubledStore)
async def test_a_store_that_takes_no_subscription_fails_the_call_and_the_next_one_works(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    store_of(place).read_only.add("subscription/")
    with pytest.raises(StorageUnavailable):
        await listener.listen("s")
    store_of(place).read_only.clear()
    assert await listener.subscriptions("s") == []
    found = await listener.listen("s")
    assert await listener.subscriptions("s") == [found]
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", TEN)


@conforms(100, 105, needs=[PUBLISHES], store=TroubledStore, whichever=True)
async def test_a_store_that_loses_the_answer_leaves_a_count_that_is_right(place: Place) -> None:
    listener = place.grain(Listener, "a")
    store_of(place).losing["subscription/"] = 1
    with pytest.raises(StorageUnavailable):
        await listener.listen("s")
    await listener.listen("s")
    assert len(await listener.subscriptions("s")) == 1
    assert await listener.leave("s") == 1
    assert await listener.subscriptions("s") == []


@conforms(101, needs=[PUBLISHES], store=TroubledStore)
async def test_a_store_that_cannot_be_read_fails_the_subscriber_and_loses_no_subscription(
    place: Place,
) -> None:
    first = await place.grain(Listener, "a").listen("s")
    await place.restart()
    store_of(place).away.add("subscription/")
    with pytest.raises(StorageUnavailable):
        await place.grain(Listener, "b").listen("s")
    store_of(place).away.clear()
    second = await place.grain(Listener, "b").listen("s")
    assert await place.grain(Listener, "a").subscriptions("s") == [first]
    assert await place.grain(Listener, "b").subscriptions("s") == [second]
    await place.publish(LINES, "s", *TEN)
    for key in "ab":
        await place.until_heard(key, TEN)


@conforms(103, needs=[PUBLISHES], whichever=True)
async def test_a_consumer_has_a_subscription_and_a_producer_has_none(place: Place) -> None:
    consumer, other = place.grain(Listener, "a"), place.grain(Listener, "b")
    await place.grain(Producer, "p").publish("s", TEN)
    assert await consumer.subscriptions("s") == []
    await consumer.listen("s")
    assert len(await consumer.subscriptions("s")) == 1
    assert await other.subscriptions("s") == [] == await consumer.subscriptions("t")


@conforms(105, needs=[PUBLISHES], whichever=True)
async def test_each_subscription_that_is_made_and_ended_is_one_more_and_one_less(
    place: Place,
) -> None:
    listener, counts = place.grain(Listener, "a"), list[int]()
    for n in range(4):
        await listener.listen("s", f"n{n}")
        counts.append(len(await listener.subscriptions("s")))
    for n in range(4):
        assert await listener.leave("s", f"n{n}") == 1
        assert await listener.leave("s", f"n{n}") == 0, "again is harmless"
        counts.append(len(await listener.subscriptions("s")))
    assert counts == [1, 2, 3, 4, 3, 2, 1, 0]
    assert len(await place.store.scan("subscription/", "", 10)) == 0


@pytest.mark.parametrize("how", ["stop", "crash"])
@conforms(106, needs=[PUBLISHES, SURVIVES], silos=2)
async def test_explicit_subscriptions_outlive_a_restart_of_every_silo(
    place: Place, how: str
) -> None:
    found = await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until_came("a", 0)
    for number in (0, 1):
        await place.leave(number) if how == "stop" else place.crash(number)
    await place.calm(30)
    for number in (0, 1):
        place.cluster.boot(f"silo-{number}")
    await place.until(lambda: len(place.cluster.silos()) == 2)
    await place.calm(15)
    assert await place.grain(Listener, "a").subscriptions("s") == [found]
    await place.publish(LINES, "s", *range(1, 10))
    await place.until_came("a", *TEN)


@conforms(107, needs=[PUBLISHES], silos=3, up=1, queues=4)
async def test_silos_join_under_traffic_and_nothing_is_lost(place: Place) -> None:
    for n in range(8):
        await place.grain(Listener, f"l{n}").listen(f"s{n}")

    async def publish(n: int) -> None:
        for item in range(20):
            await place.publish(LINES, f"s{n}", item)
            await place.calm(0.9)

    publishing = asyncio.gather(*(publish(n) for n in range(8)))
    for number in (1, 2):
        await place.join(number)
        await place.calm(4)
    await publishing
    for n in range(8):
        await place.until_came(f"l{n}", *range(20))
    await place.until(lambda: len(set(owners(place.cluster).values())) == 3)


@pytest.mark.parametrize("who", ["consumer", "producer"])
@conforms(108, needs=[PUBLISHES, SURVIVES], silos=3)
async def test_who_was_in_a_silo_that_died_goes_on_elsewhere(place: Place, who: str) -> None:
    grains = {"consumer": place.grain(Listener, "a"), "producer": place.grain(Producer, "p")}
    found = await place.grain(Listener, "a").listen("s")
    await place.grain(Producer, "p").publish("s", [0])
    await place.until_came("a", 0)
    dying = (await grains[who].where()).split(":")[0]
    place.simulation.crash(dying)
    await place.calm(20)
    assert await place.grain(Listener, "a").subscriptions("s") == [found]
    await place.grain(Producer, "p").publish("s", [1])
    await place.until_came("a", 0, 1)
    await place.join(int(dying[-1]))
    await place.grain(Producer, "p").publish("s", [2])
    await place.until_came("a", 0, 1, 2)


@conforms(109, needs=[PUBLISHES, SURVIVES], silos=2)
async def test_a_consumer_unsubscribes_after_a_restart_of_every_silo(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.grain(Listener, "b").listen("s")
    for number in (0, 1):
        place.crash(number)
    await place.calm(30)
    for number in (0, 1):
        place.cluster.boot(f"silo-{number}")
    await place.until(lambda: len(place.cluster.silos()) == 2)
    await place.calm(15)
    assert await place.grain(Listener, "a").leave("s") == 1
    await place.publish(LINES, "s", *TEN)
    await place.until_came("b", *TEN)
    assert ears.items("a") == []


@conforms(
    110,
    needs=[PUBLISHES],
    runtime=RuntimeOptions(idle_after_s=30, collect_every_s=5),
    whichever=True,
)
async def test_everything_that_was_collected_comes_back_with_the_next_event(place: Place) -> None:
    """Rendezvous grain, producer and consumer have ended, one after the other."""
    found = await place.grain(Listener, "a").listen("s")
    for n in range(3):
        await place.grain(Producer, "p").publish("s", [n])
        await place.until_came("a", n)
        await place.calm(90)
    assert await place.grain(Listener, "a").subscriptions("s") == [found]
    assert ears.ended.count("Listener/a") >= 2 and ears.ended.count("Producer/p") >= 3
    assert set(ears.items("a")) == {0, 1, 2}


@conforms(113, needs=[PUBLISHES], whichever=True)
async def test_a_provider_that_nobody_has_is_refused_by_name(place: Place) -> None:
    unknown = StreamNamespace("numbers", int, provider="unknown")
    with pytest.raises(ConfigError, match="unknown"):
        await place.silo().stream(unknown, "s").publish(1)


@conforms(113, needs=[Capability.ORDERED], silos=2)
async def test_streams_are_where_they_were_when_every_silo_is_another_one(place: Place) -> None:
    """The address of a silo changes with each start; the queue of a stream does not."""
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_came(key, *place.setting.feed.items)
    for number in (0, 1):
        await place.restart(number)
    if PUBLISHES in place.adapter.also:
        await place.publish(NUMBERS, "a", 1000)
        await place.until_came("a", 1000)
    for key in place.setting.feed.keys:
        tokens = [one.token for one in ears.by[key]]
        assert tokens == sorted(set(tokens))
