"""Basic delivery (rows 1 to 25): publishers, consumers, and the order of events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pytest
from tests.streams.conformance.actors import (
    LINES,
    Listener,
    Living,
    Producer,
    ears,
    hear,
)
from tests.streams.conformance.adapters import EXACT, NUMBERS, PUBLISHES, Feed
from tests.streams.conformance.place import Place, conforms

from millstream.runtime import Client, ConfigError, Grain, RuntimeOptions, grain
from millstream.runtime.testing import Activated, Deactivated
from millstream.streams import Event, StreamNamespace, subscribe
from millstream.streams.testing import owners, wait_owned

TEN = list(range(10))


@conforms(1, needs=[PUBLISHES])
async def test_a_grain_hears_what_a_grain_publishes_one_by_one_together_and_in_lists(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    producer = place.grain(Producer, "p")
    await producer.publish("s", TEN)
    await producer.publish_together("s", [10 + item for item in TEN])
    await producer.publish_many("s", [20 + item for item in TEN])
    await place.until_heard("a", range(30), in_order=False)


@conforms(1, 23, needs=[PUBLISHES])
async def test_a_consumer_that_comes_after_the_producer_hears_what_is_published_from_then_on(
    place: Place,
) -> None:
    producer = place.grain(Producer, "p")
    await producer.publish("s", [-1, -2])
    await place.calm()
    await place.grain(Listener, "a").listen("s")
    await producer.publish("s", TEN)
    await place.until_heard("a", TEN)


@pytest.mark.parametrize("first", ["consumer", "producer"])
@conforms(3, 22, needs=[PUBLISHES], silos=2)
async def test_a_grain_hears_what_a_client_publishes(place: Place, first: str) -> None:
    if first == "producer":
        await place.publish(LINES, "s", -1)
        await place.calm()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.stream(LINES, "s").publish_many([10 + item for item in TEN])
    await place.until_heard("a", range(20))


@conforms(5, needs=[PUBLISHES], silos=2)
async def test_every_consumer_hears_every_item_of_every_producer(place: Place) -> None:
    for key in "abc":
        await place.grain(Listener, key).listen("s")
    await asyncio.gather(
        *(place.grain(Producer, f"p{n}").publish("s", [n * 10 + i for i in TEN]) for n in range(3))
    )
    for key in "abc":
        await place.until_heard(key, range(30), in_order=False)


@conforms(5, needs=EXACT, silos=2)
async def test_what_one_producer_awaits_comes_in_its_order_beside_others(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await asyncio.gather(
        *(place.grain(Producer, f"p{n}").publish("s", [n * 10 + i for i in TEN]) for n in range(3))
    )
    await place.until_heard("a", range(30), in_order=False)
    for n in range(3):
        own = [item for item in ears.items("a") if item // 10 == n]
        assert own == [n * 10 + i for i in TEN]


@conforms(7, needs=[PUBLISHES], silos=2, whichever=True)
async def test_every_consumer_hears_every_item_of_every_client(place: Place) -> None:
    for key in "abc":
        await place.grain(Listener, key).listen("s")
    async with place.new_client() as second:
        await asyncio.gather(
            *(second.stream(LINES, "s").publish(item) for item in TEN),
            *(place.stream(LINES, "s").publish(10 + item) for item in TEN),
        )
    for key in "abc":
        await place.until_heard(key, range(20), in_order=False)


@conforms(9, needs=[PUBLISHES])
async def test_one_grain_that_publishes_and_then_subscribes_twice_hears_everything_twice(
    place: Place,
) -> None:
    await place.grain(Producer, "p").publish("s", [-1])
    await place.calm()
    for name in ("one", "two"):
        await place.grain(Listener, "a").listen("s", name)
    await asyncio.gather(
        *(place.grain(Producer, "p").publish("s", [n * 5 + i for i in range(5)]) for n in (0, 1))
    )
    await place.until(lambda: len(ears.items("a")) >= 20)
    assert set(ears.items("a")) == set(TEN)
    assert len({one.subscription for one in ears.by["a"]}) == 2


@conforms(10, needs=EXACT)
async def test_one_grain_that_subscribes_twice_before_the_producer_hears_everything_twice(
    place: Place,
) -> None:
    ids = [await place.grain(Listener, "a").listen("s", name) for name in ("one", "two")]
    await place.grain(Producer, "p").publish("s", TEN)
    await place.until_heard("a", sorted(2 * TEN), in_order=False)
    for found in ids:
        assert [one.item for one in ears.by["a"] if one.subscription == found] == TEN


@conforms(12, needs=[PUBLISHES], whichever=True)
async def test_two_subscriptions_of_one_grain_hear_two_clients(place: Place) -> None:
    for name in ("one", "two"):
        await place.grain(Listener, "a").listen("s", name)
    async with place.new_client() as second:
        await second.stream(LINES, "s").publish_many(TEN)
    await place.stream(LINES, "s").publish_many([10 + item for item in TEN])
    await place.until(lambda: len(ears.items("a")) >= 40)
    assert set(ears.items("a")) == set(range(20))


class Echo(Living):
    """Consumes and publishes one stream, even in its handler."""

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def say(self, items: list[int]) -> None:
        for item in items:
            await self.stream(LINES, "s").publish(item)

    async def _on_line(self, event: Event[int]) -> None:
        await hear(self.key, event)
        if event.item < 10:
            await self.stream(LINES, "s").publish(event.item + 10)


@grain(reentrant=True)
class ReentrantEcho(Echo):
    """The same, as a reentrant grain."""


@pytest.mark.parametrize("cls", [Echo, ReentrantEcho])
@conforms(13, needs=[PUBLISHES], grains=[Echo, ReentrantEcho])
async def test_a_grain_that_hears_its_own_stream_does_not_wait_for_itself(
    place: Place, cls: type[Echo]
) -> None:
    echo = place.grain(cls, "e")
    await echo.listen()
    await echo.say(TEN)
    await place.until_heard("e", range(20), in_order=False)


@pytest.mark.parametrize("cls", [Echo, ReentrantEcho])
@conforms(14, needs=[PUBLISHES], grains=[Echo, ReentrantEcho], whichever=True)
async def test_a_grain_that_published_first_may_hear_its_own_stream_later(
    place: Place, cls: type[Echo]
) -> None:
    echo = place.grain(cls, "e")
    await echo.say([-1])
    await place.calm()
    await echo.listen()
    await echo.say(TEN)
    await place.until_heard("e", range(20), in_order=False)


class Inviting(Living):
    """Publishes a stream, and asks a listener to subscribe to it inside of that call."""

    async def invite(self, who: str, items: list[int]) -> None:
        await self.stream(LINES, self.key).publish(-1)
        await self.grain(Listener, who).listen(self.key)
        for item in items:
            await self.stream(LINES, self.key).publish(item)


@conforms(15, needs=[PUBLISHES], grains=[Inviting], silos=2)
async def test_a_consumer_subscribes_inside_a_call_of_the_producer(place: Place) -> None:
    await place.grain(Inviting, "s").invite("a", TEN)
    await place.until(lambda: set(ears.items("a")) >= set(TEN))


@conforms(16, needs=[PUBLISHES], runtime=RuntimeOptions(idle_after_s=60, collect_every_s=10))
async def test_an_event_wakes_a_consumer_that_was_collected_with_its_producer(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.grain(Producer, "p").publish("s", [0])
    await place.until_heard("a", [0])
    await place.calm(300)
    assert sorted(ears.ended) == ["Listener/a", "Producer/p"]
    await place.grain(Producer, "p").publish("s", [1])
    await place.until_heard("a", [0, 1])
    assert ears.woken.count("Listener/a") == 2


@conforms(
    16,
    needs=[PUBLISHES],
    runtime=RuntimeOptions(idle_after_s=60, collect_every_s=10),
    whichever=True,
)
async def test_nothing_stays_active_for_a_stream_on_which_nothing_happens(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until_heard("a", [0])
    await place.calm(300)
    history = place.simulation.history
    active = {event.grain for _, event in history.of(Activated)}
    active -= {event.grain for _, event in history.of(Deactivated)}
    assert {name for name in active if not name.startswith("millstream.MemoryQueue")} == set()


@conforms(17, silos=2)
async def test_an_implicit_consumer_hears_every_event_of_its_key(place: Place) -> None:
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_heard(key, place.setting.feed.items)


@conforms(18, needs=[PUBLISHES], silos=2)
async def test_an_implicit_consumer_hears_what_a_grain_publishes(place: Place) -> None:
    await place.grain(Producer, "p").publish_numbers("a", TEN)
    await place.until_heard("a", TEN)


T = TypeVar("T")


class Hearing(Living, Generic[T]):
    """A generic base class with a marked handler; hosted grains derive from it."""

    @subscribe(NUMBERS)
    async def on_number(self, event: Event[int]) -> None:
        await hear(f"generic/{self.key}", event)


class HearingText(Hearing[str]):
    """A grain type of the generic class."""


@conforms(19, grains=[HearingText], whichever=True)
async def test_a_mark_of_a_generic_base_class_is_that_of_each_kind_of_it(place: Place) -> None:
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_heard(f"generic/{key}", place.setting.feed.items)


@dataclass
class Basket:
    things: list[str] = field(default_factory=list)


BASKETS = StreamNamespace("baskets", Basket)
baskets: dict[str, list[str]] = {}


class Eater(Grain):
    """Changes the item that it gets."""

    @subscribe(BASKETS)
    async def on_basket(self, event: Event[Basket]) -> None:
        baskets["eater"] = list(event.item.things)
        event.item.things.clear()


class Looker(Grain):
    @subscribe(BASKETS)
    async def on_basket(self, event: Event[Basket]) -> None:
        baskets["looker"] = list(event.item.things)


@conforms(20, needs=[PUBLISHES], grains=[Eater, Looker], whichever=True)
async def test_consumers_and_publisher_share_no_object(place: Place) -> None:
    baskets.clear()
    basket = Basket(["bread"])
    publishing = asyncio.ensure_future(place.silo().stream(BASKETS, "a").publish(basket))
    await asyncio.sleep(0)
    basket.things.append("nothing more")
    await publishing
    await place.until(lambda: len(baskets) == 2)
    assert baskets["looker"] == baskets["eater"] == ["bread"]
    assert basket.things == ["bread", "nothing more"]


MANY = Feed(tuple(f"k{number}" for number in range(30)), 10)


@conforms(21, silos=2, up=1, feed=MANY, queues=4)
async def test_many_streams_lose_nothing_while_a_silo_joins(place: Place) -> None:
    feeding = asyncio.ensure_future(place.fed(NUMBERS))
    await place.calm(0.5)
    await place.join(1)
    await feeding
    for key in MANY.keys:
        await place.until_heard(key, MANY.items)


async def on_a_line(event: Event[int]) -> None: ...


class Lambda(Grain):
    """Tries to subscribe with a function that belongs to no grain."""

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(on_a_line)

    async def subscriptions(self) -> int:
        return len(await self.stream(LINES, "s").subscriptions(self))


@conforms(24, needs=[PUBLISHES], grains=[Lambda], whichever=True)
async def test_a_handler_that_is_no_method_of_the_grain_is_refused_and_not_stored(
    place: Place,
) -> None:
    with pytest.raises(ConfigError, match="give a method of the subscribing grain"):
        await place.grain(Lambda, "a").listen()
    assert await place.grain(Lambda, "a").subscriptions() == 0


@conforms(25, needs=[PUBLISHES], silos=3, queues=6, whichever=True)
async def test_a_client_of_one_gateway_reaches_streams_of_every_silo(place: Place) -> None:
    await wait_owned(place.cluster)
    keys = [f"k{number}" for number in range(20)]
    gateway = place.silo(0).gateway
    host = place.simulation.host("tester")
    async with Client(
        [gateway],
        cluster="sim",
        env=place.simulation.env(host),
        transport=place.simulation.transport(host),
    ) as client:
        for key in keys:
            await client.grain(Listener, key).listen(key)
            await client.stream(LINES, key).publish_many(TEN)
    for key in keys:
        await place.until_heard(key, TEN)
    assert len(set(owners(place.cluster).values())) == 3
