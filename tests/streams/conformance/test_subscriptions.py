"""Subscriptions (rows 26 to 53): several at once, ended, resumed; explicit and implicit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.streams.conformance.actors import (
    LINES,
    Listener,
    Living,
    ears,
    hear,
)
from tests.streams.conformance.adapters import EXACT, NUMBERS, PUBLISHES
from tests.streams.conformance.place import Place, conforms

from millstream.runtime import ConfigError, StreamError
from millstream.streams import Event, StreamNamespace, Subscription, subscribe

TEN = list(range(10))


def of(subscription: str) -> list[int]:
    """Return the items that came by one subscription, to any consumer."""
    return [
        one.item for found in ears.by.values() for one in found if one.subscription == subscription
    ]


@conforms(26, needs=EXACT, silos=2)
async def test_two_subscriptions_of_one_grain_each_get_all_items_in_order(place: Place) -> None:
    ids = [await place.grain(Listener, "a").listen("s", name) for name in ("one", "two")]
    assert len(set(ids)) == 2
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", sorted(2 * TEN), in_order=False)
    assert [of(found) for found in ids] == [TEN, TEN]


@conforms(27, needs=[PUBLISHES])
async def test_what_is_published_between_unsubscribing_and_subscribing_again_is_not_heard(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    await listener.listen("s")
    await place.publish(LINES, "s", *range(5))
    await place.until_heard("a", range(5))
    assert await listener.leave("s") == 1
    await place.publish(LINES, "s", *range(5, 10))
    await place.calm()
    await listener.listen("s")
    await place.publish(LINES, "s", *range(10, 15))
    await place.until_heard("a", [*range(5), *range(10, 15)])


@conforms(28, needs=EXACT, silos=2)
async def test_adding_one_subscription_and_ending_the_other_keeps_the_count_of_each_phase(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    first = await listener.listen("s", "first")
    await place.publish(LINES, "s", *range(5))
    await place.until(lambda: of(first) == list(range(5)))
    second = await listener.listen("s", "second")
    await place.publish(LINES, "s", *range(5, 10))
    await place.until(lambda: of(first) == list(range(10)) and of(second) == list(range(5, 10)))
    await listener.leave("s", "first")
    await place.publish(LINES, "s", *range(10, 15))
    await place.until(lambda: of(second) == list(range(5, 15)))
    await place.calm()
    assert (of(first), of(second)) == (list(range(10)), list(range(5, 15)))


@conforms(28, needs=[PUBLISHES], silos=2)
async def test_subscriptions_come_and_go_while_events_flow(place: Place) -> None:
    """One subscription exists all the time, and misses no event because of the others."""
    steady = await place.grain(Listener, "steady").listen("s")
    publishing = asyncio.ensure_future(place.publish(LINES, "s", *range(60)))
    for n in range(10):
        await place.grain(Listener, "a").listen("s", f"n{n}")
        if n:
            await place.grain(Listener, "a").leave("s", f"n{n - 1}")
    await publishing
    await place.until_heard("steady", range(60))
    assert steady


@conforms(29, needs=[PUBLISHES])
async def test_a_resumed_subscription_is_the_same_and_neither_loses_nor_repeats(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    found = await listener.listen("s")
    await place.publish(LINES, "s", *range(5))
    await place.until_heard("a", range(5))
    assert await listener.resume("s") == [found]
    await place.publish(LINES, "s", *range(5, 10))
    await place.until_heard("a", range(10))


class Keeper(Living):
    """Keeps its subscription in a field, and resumes it through another object of the same
    subscription."""

    async def listen(self) -> str:
        self.kept: Subscription[int] = await self.stream(LINES, "s").subscribe(self._on_line)
        return self.kept.id

    async def resume_by_another(self) -> bool:
        (found,) = await self.stream(LINES, "s").subscriptions(self)
        await found.resume()
        again = await self.stream(LINES, "s").subscriptions(self)
        return again == [found] and again[0].id == found.id

    async def _on_line(self, event: Event[int]) -> None:
        await hear(self.key, event)


@conforms(30, needs=[PUBLISHES], grains=[Keeper], silos=2)
async def test_a_subscription_is_taken_up_by_the_next_activation(place: Place) -> None:
    keeper = place.grain(Keeper, "a")
    found = await keeper.listen()
    await place.publish(LINES, "s", 0)
    await place.until_heard("a", [0])
    await keeper.end()
    await place.calm()
    assert await keeper.resume_by_another()
    await place.publish(LINES, "s", 1)
    await place.until_heard("a", [0, 1])
    assert {one.subscription for one in ears.by["a"]} == {found}
    assert ears.woken == ["Keeper/a", "Keeper/a"]


@conforms(31, needs=[PUBLISHES], whichever=True)
async def test_ten_subscriptions_made_at_once_are_ten_and_are_listed_until_they_end(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    ids = await asyncio.gather(*(listener.listen("s", f"n{n}") for n in range(10)))
    assert sorted(await listener.subscriptions("s")) == sorted(set(ids)) and len(set(ids)) == 10
    await listener.leave("s", "n3")
    assert len(await listener.subscriptions("s")) == 9 and ids[3] not in set(
        await listener.subscriptions("s")
    )
    assert await listener.leave("s") == 9
    assert await listener.subscriptions("s") == []


@conforms(32, needs=[PUBLISHES], whichever=True)
async def test_turns_of_two_streams_keep_their_counts(place: Place) -> None:
    for key in ("s", "t"):
        await place.grain(Listener, key).listen(key)
    for n in range(6):
        await place.publish(LINES, "st"[n % 2], *range(n * 5, n * 5 + 5))
    await place.until_heard("s", [n * 10 + i for n in range(3) for i in range(5)])
    await place.until_heard("t", [n * 10 + 5 + i for n in range(3) for i in range(5)])


@pytest.mark.parametrize("lists", [False, True], ids=["one by one", "in lists"])
@conforms(34, needs=EXACT, silos=2)
async def test_handlers_of_lists_follow_the_same_rules(place: Place, lists: bool) -> None:
    listener = place.grain(Listener, "a")

    async def listen() -> str:
        return await (listener.listen_in_lists("s") if lists else listener.listen("s"))

    first = await listen()
    other = await listener.listen("s", "other")
    await place.stream(LINES, "s").publish_many(range(20))
    await place.until(lambda: of(first) == of(other) == list(range(20)))
    assert await listener.leave("s", "lists" if lists else "") == 1
    await place.stream(LINES, "s").publish_many(range(20, 30))
    await place.until(lambda: len(of(other)) == 30)
    assert await listen() == first
    await place.stream(LINES, "s").publish_many(range(30, 40))
    await place.until(lambda: len(of(other)) == 40)
    await place.calm()
    assert of(first) == [*range(20), *range(30, 40)] and of(other) == list(range(40))


@pytest.mark.parametrize("first", ["consumer", "producer"])
@conforms(35, needs=[PUBLISHES])
async def test_subscribing_again_and_again_is_one_subscription(place: Place, first: str) -> None:
    listener = place.grain(Listener, "a")
    if first == "producer":
        await place.publish(LINES, "s", -1)
        await place.calm()
    ids = set[str]()
    for n in range(5):
        ids.add(await listener.listen("s"))
        await place.publish(LINES, "s", n)
    assert len(ids) == 1
    await place.until_heard("a", range(5))


@conforms(36, needs=[PUBLISHES], whichever=True)
async def test_nobody_subscribes_for_a_grain_but_itself(place: Place) -> None:
    """Each consumer has a method to subscribe; there is no subscription manager."""
    stranger = Listener.__new__(Listener)
    for stream in (place.stream(LINES, "s"), place.silo().stream(LINES, "s")):
        with pytest.raises(ConfigError):
            await stream.subscribe(stranger._on_line)
    assert await place.grain(Listener, "a").subscriptions("s") == []


@conforms(36, 39, 40, needs=[PUBLISHES], silos=2)
async def test_anybody_lists_pauses_resumes_and_ends_the_subscriptions_of_a_stream(
    place: Place,
) -> None:
    ids = [await place.grain(Listener, key).listen("s") for key in "abc"]
    stream = place.stream(LINES, "s")
    found = {one.consumer: one for one in await stream.subscriptions()}
    assert [found[f"Listener/{key}"].id for key in "abc"] == ids and len(found) == 3
    await found["Listener/a"].pause()
    await found["Listener/b"].unsubscribe()
    await place.publish(LINES, "s", *TEN)
    await place.until_came("c", *TEN)
    await place.calm()
    assert ears.items("a") == ears.items("b") == []
    states = {one.consumer: one.state for one in await stream.subscriptions()}
    assert states == {"Listener/a": "paused", "Listener/c": "active"}
    await found["Listener/a"].resume()
    await place.until_came("a", *TEN)


@pytest.mark.row(37)
def test_a_stream_has_a_namespace() -> None:
    with pytest.raises(ConfigError):
        StreamNamespace("", int)
    with pytest.raises(TypeError):
        StreamNamespace(None, int)  # type: ignore[call-overload]


@conforms(38, 40, needs=[PUBLISHES], silos=2)
async def test_ten_grains_that_somebody_else_asks_to_subscribe_hear_everything(
    place: Place,
) -> None:
    listeners = [place.grain(Listener, f"l{n}") for n in range(10)]
    ids = [await listener.listen("s") for listener in listeners]
    assert [await one.subscriptions("s") for one in listeners] == [[found] for found in ids]
    await place.publish(LINES, "s", *TEN)
    for n in range(10):
        await place.until_heard(f"l{n}", TEN)


@conforms(39, 40, needs=[PUBLISHES], silos=2)
async def test_one_that_was_removed_hears_nothing_more_and_the_others_go_on(place: Place) -> None:
    listeners = [place.grain(Listener, f"l{n}") for n in range(3)]
    ids = [await listener.listen("s") for listener in listeners]
    await place.publish(LINES, "s", 0)
    await place.until_heard("l0", [0])
    await place.until_heard("l1", [0])
    assert await listeners[1].leave("s") == 1
    assert [await one.subscriptions("s") for one in listeners] == [[ids[0]], [], [ids[2]]]
    await place.publish(LINES, "s", 1)
    await place.until_heard("l0", [0, 1])
    await place.until_heard("l2", [0, 1])
    assert set(ears.items("l1")) == {0}


class Fickle(Living):
    """Ends each subscription at once, or in its handler."""

    async def try_it(self) -> None:
        subscription = await self.stream(LINES, "s").subscribe(self._on_line)
        await subscription.unsubscribe()

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def subscriptions(self) -> int:
        return len(await self.stream(LINES, "s").subscriptions(self))

    async def _on_line(self, event: Event[int]) -> None:
        await hear(self.key, event)
        for subscription in await self.stream(LINES, "s").subscriptions(self):
            await subscription.unsubscribe()


@conforms(41, needs=[PUBLISHES], grains=[Fickle], whichever=True)
async def test_a_consumer_that_unsubscribes_at_once_has_no_subscription(place: Place) -> None:
    fickle = place.grain(Fickle, "a")
    await fickle.try_it()
    assert await fickle.subscriptions() == 0
    await place.publish(LINES, "s", 0)
    await place.calm()
    assert ears.items("a") == []


@conforms(41, needs=[PUBLISHES], grains=[Fickle])
async def test_a_consumer_that_unsubscribes_in_its_handler_hears_one_event(place: Place) -> None:
    fickle = place.grain(Fickle, "a")
    await fickle.listen()
    await place.stream(LINES, "s").publish_many(TEN)
    await place.until_heard("a", [0])
    assert await fickle.subscriptions() == 0


TEXTS = StreamNamespace("texts", str)
texts: list[str] = []


class Versatile(Living):
    """Handles streams of two types."""

    @subscribe(NUMBERS)
    async def on_number(self, event: Event[int]) -> None:
        await hear(self.key, event)

    @subscribe(TEXTS)
    async def on_text(self, event: Event[str]) -> None:
        texts.append(event.item)


@conforms(42, needs=[PUBLISHES], grains=[Versatile])
async def test_one_grain_hears_two_streams_of_different_types(place: Place) -> None:
    texts.clear()
    await place.publish(NUMBERS, "v", 1, 2)
    await place.publish(TEXTS, "v", "one", "two")
    await place.until(lambda: set(texts) == {"one", "two"})
    await place.until(lambda: set(ears.items("v")) == {1, 2})


@dataclass(frozen=True)
class Came:
    who: str


@dataclass(frozen=True)
class Went:
    who: str


UNIONS = StreamNamespace[Came | Went]("unions")
unions: list[Came | Went] = []


class Broad(Living):
    @subscribe(UNIONS)
    async def on_either(self, event: Event[Came | Went]) -> None:
        unions.append(event.item)


@conforms(42, needs=[PUBLISHES], grains=[Broad], whichever=True)
async def test_items_of_a_union_type_reach_the_handler_as_what_they_were(place: Place) -> None:
    unions.clear()
    await place.publish(UNIONS, "v", Came("ada"), Went("ada"))
    await place.until(lambda: len(unions) >= 2)
    assert unions == [Came("ada"), Went("ada")]


class Between(Living):
    """Handles streams of one name from two providers, with a handler for each."""

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)
        await self.stream(FAR_LINES, "s").subscribe(self._on_far_line)

    async def _on_line(self, event: Event[int]) -> None:
        await hear("near", event)

    async def _on_far_line(self, event: Event[int]) -> None:
        await hear("far", event)


FAR_LINES = StreamNamespace("lines", int, provider="other", subscriptions="explicit")


@conforms(43, needs=[PUBLISHES], grains=[Between], providers=("default", "other"))
async def test_one_grain_hears_streams_of_two_providers_each_by_itself(place: Place) -> None:
    await place.grain(Between, "a").listen()
    await place.publish(LINES, "s", *range(5))
    await place.publish(FAR_LINES, "s", *range(5, 10))
    await place.until_heard("near", range(5))
    await place.until_heard("far", range(5, 10))


ONLY = StreamNamespace("only", int, subscriptions="implicit")
FAR = StreamNamespace("far", int, provider="other", subscriptions="implicit")


class Marked(Living):
    """Has marked handlers for two implicit namespaces, and a method that tries to subscribe."""

    @subscribe(ONLY)
    async def on_only(self, event: Event[int]) -> None:
        await hear(f"only/{self.key}", event)

    @subscribe(FAR)
    async def on_far(self, event: Event[int]) -> None:
        await hear(f"far/{self.key}", event)

    async def listen(self) -> None:
        await self.stream(ONLY, "other").subscribe(self._on_line)

    async def leave(self) -> int:
        return len(await self.stream(ONLY, self.key).subscriptions(self))

    async def _on_line(self, event: Event[int]) -> None:
        await hear("explicit", event)


@pytest.mark.parametrize("namespaces", [[ONLY], [ONLY, FAR]], ids=["one", "two"])
@conforms(44, needs=[PUBLISHES], grains=[Marked], providers=("default", "other"), whichever=True)
async def test_an_implicit_consumer_hears_one_stream_and_two_and_lists_no_subscription(
    place: Place, namespaces: list[StreamNamespace[int]]
) -> None:
    for namespace in namespaces:
        await place.publish(namespace, "m", *range(5))
    for namespace in namespaces:
        await place.until_heard(f"{namespace.name}/m", range(5))
    assert await place.grain(Marked, "m").leave() == 0


@conforms(45, needs=[PUBLISHES], grains=[Marked], providers=("default", "other"), whichever=True)
async def test_subscribing_to_an_implicit_namespace_says_what_it_takes(place: Place) -> None:
    with pytest.raises(StreamError, match="takes implicit subscriptions only"):
        await place.grain(Marked, "m").listen()


@pytest.mark.parametrize("key", ["42", "-7", "a/b", "ü ", "x" * 500])
@conforms(46, needs=[PUBLISHES], whichever=True)
async def test_the_key_of_the_stream_is_the_key_of_the_grain_that_it_wakes(
    place: Place, key: str
) -> None:
    await place.publish(NUMBERS, key, 1)
    await place.until_heard(key, [1])
    assert ears.woken == [f"Hearer/{key}"]


@conforms(48)
async def test_an_implicit_subscription_has_the_same_id_for_every_event_and_owner(
    place: Place,
) -> None:
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_heard(key, place.setting.feed.items)
        assert len({one.subscription for one in ears.by[key]}) == 1


@conforms(48, needs=[PUBLISHES], whichever=True)
async def test_ids_of_explicit_subscriptions_are_none_of_implicit_ones(place: Place) -> None:
    found = await place.grain(Listener, "a").listen("a")
    await place.publish(LINES, "a", 1)
    await place.publish(NUMBERS, "b", 2)
    await place.until_heard("a", [1])
    await place.until_heard("b", [2])
    assert ears.by["a"][0].subscription == found != ears.by["b"][0].subscription
