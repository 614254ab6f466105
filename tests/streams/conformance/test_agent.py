"""The pulling agent (rows 84 to 97): its calls to an adapter, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.streams.conformance.actors import LINES, Listener, Living, ears, hear
from tests.streams.conformance.adapters import (
    EXACT,
    HOLDS,
    NUMBERS,
    PUBLISHES,
    SURVIVES,
)
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.stores import TroubledStore
from tests.streams.conformance.watched import Read, watch

from millstream.streams import (
    Capability,
    DeliveryOptions,
    Event,
    QueueId,
    QueueMessage,
    StreamId,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.testing import owners

TEN = list(range(10))


def store_of(place: Place) -> TroubledStore:
    assert isinstance(place.store, TroubledStore)
    return place.store


def acknowledged(token: Token) -> bool:
    """Did the adapter get an acknowledgement of this message?"""
    start = Token(token.era, token.seq)
    return any(
        start in ack.tokens or (ack.upto is not None and ack.upto >= start)
        for ack in watch.of("ack")
    )


@conforms(84, needs=[PUBLISHES], queues=1, store=TroubledStore)
async def test_other_streams_are_read_and_heard_while_the_subscribers_of_one_are_looked_up(
    place: Place,
) -> None:
    for key in ("s", "cold"):
        await place.grain(Listener, key).listen(key)
    store_of(place).away.add("cold")
    # ends all activations, so that the rendezvous grain reads the stored subscriptions
    await place.restart()
    await place.publish(LINES, "cold", *TEN)
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("s", TEN)
    assert ears.items("cold") == []
    store_of(place).away.clear()
    await place.until_heard("cold", TEN)


@conforms(85, needs=[PUBLISHES], queues=1, whichever=True)
async def test_a_stream_is_known_once_its_first_event_was_read(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    for n in range(3):
        await place.publish(LINES, "s", n)
        await place.until_heard("a", range(n + 1))
        assert sum(row.streams for row in place.stats()) == 1


@conforms(86, needs=[PUBLISHES], silos=2, wrap=watch.over)
async def test_nothing_is_read_by_a_receiver_that_was_closed(place: Place) -> None:
    await place.until(lambda: len(set(owners(place.cluster).values())) == 2)
    await place.grain(Listener, "a").listen("s")
    publishing = asyncio.ensure_future(place.publish(LINES, "s", *range(100)))
    await place.leave(1)
    await publishing
    await place.calm()
    gone = [one for one in watch.asked if one.silo.startswith("silo-1")]
    closed = {one.queue: at for at, one in enumerate(gone) if one.what == "close"}
    assert closed, "silo-1 read a queue"
    for at, one in enumerate(gone):
        if one.what in ("read", "start") and one.queue in closed:
            assert at < closed[one.queue]
    assert gone[-1].what == "close adapter"


@pytest.mark.parametrize("answer", [None, [None], "text"], ids=["none", "a list of none", "text"])
@conforms(87, needs=[PUBLISHES], queues=1, wrap=watch.over)
async def test_an_answer_that_is_no_list_of_messages_costs_a_pause_and_loses_nothing(
    place: Place, answer: Any
) -> None:
    wrong = 2

    async def read_by(queue: QueueId, read: Read) -> Sequence[QueueMessage]:
        nonlocal wrong
        if wrong:
            wrong -= 1
            found: Sequence[QueueMessage] = answer
            return found
        return await read()

    watch.read_by = read_by
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", TEN)
    assert wrong == 0


@conforms(88, needs=[PUBLISHES, HOLDS], queues=1, store=TroubledStore)
async def test_a_stream_whose_subscribers_cannot_be_looked_up_is_asked_for_again(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    store_of(place).away.add("subscription/")
    await place.restart()
    await place.publish(LINES, "s", *TEN)
    await place.calm(10)
    assert ears.items("a") == []
    store_of(place).away.clear()
    await place.until_heard("a", TEN)


@conforms(89, needs=[PUBLISHES], queues=1, store=TroubledStore)
async def test_a_silo_stops_though_the_subscribers_of_a_stream_are_still_looked_up(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.restart()
    store_of(place).away.add("subscription/")
    await place.publish(LINES, "s", *TEN)
    await place.calm()
    async with asyncio.timeout(30):
        await place.cluster.stop_silo("silo-0")
    store_of(place).away.clear()
    if not place.adapter.lacks([SURVIVES]):
        await place.until_heard("a", TEN)


@conforms(91, needs=[PUBLISHES, HOLDS], queues=1, wrap=watch.over)
async def test_a_message_is_acknowledged_when_both_of_its_consumers_are_done_with_it(
    place: Place,
) -> None:
    ears.held["slow"] = asyncio.Event()
    for key in ("slow", "fast"):
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", 0, 1)
    await place.until_heard("fast", [0, 1])
    await place.calm(10)
    tokens = [one.token for one in ears.by["fast"]]
    assert not any(acknowledged(token) for token in tokens)
    ears.held["slow"].set()
    await place.until_heard("slow", [0, 1])
    await place.until(lambda: all(acknowledged(token) for token in tokens))


@conforms(92, needs=EXACT, queues=1)
async def test_one_event_after_everything_was_acknowledged_comes_once(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    for n in range(4):
        await place.publish(LINES, "s", n)
        await place.until_heard("a", range(n + 1))
        await place.calm(30)
    assert not any(one.is_redelivered for one in ears.by["a"])


class Sleepy(Living):
    """Fails at its first two activations."""

    tries = 0

    async def on_activate(self) -> None:
        Sleepy.tries += 1
        if Sleepy.tries <= 2:
            raise ValueError("not yet")

    @subscribe(NUMBERS)
    async def on_number(self, event: Event[int]) -> None:
        await hear("sleepy", event)


@conforms(94, needs=[PUBLISHES], grains=[Sleepy])
async def test_events_wait_for_a_consumer_that_does_not_wake_at_first(place: Place) -> None:
    Sleepy.tries = 0
    await place.publish(NUMBERS, "z", *TEN)
    await place.until_heard("sleepy", TEN)
    assert Sleepy.tries == 3 and sum(row.streams for row in place.stats()) == 1


@conforms(95, needs=[PUBLISHES, HOLDS], silos=2, wrap=watch.over)
async def test_a_stop_waits_for_what_is_handled_and_closes_each_receiver_once(
    place: Place,
) -> None:
    ears.held["a"] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until(lambda: bool(ears.waiting))
    (owner,) = {name for queue, name in owners(place.cluster).items() if _is_of(place, queue)}
    silo = place.cluster.silo(owner)
    assert silo is not None
    stops = [asyncio.ensure_future(silo.stop()) for _ in range(3)]
    await place.calm(1.0)
    assert not any(stop.done() for stop in stops)
    ears.held["a"].set()
    await asyncio.gather(*stops)
    made = [one for one in watch.of("receiver") if one.silo.startswith(owner)]
    closed = [one for one in watch.of("close") if one.silo.startswith(owner)]
    assert sorted(one.queue for one in made) == sorted(one.queue for one in closed)
    assert set(ears.items("a")) == {0}


def _is_of(place: Place, queue: QueueId) -> bool:
    mapper = place.adapter.mapper(place.setting.queues)
    return mapper.queue_for(StreamId("lines", "s")) == queue


@conforms(96, needs=[PUBLISHES], silos=2, wrap=watch.over)
async def test_a_queue_that_went_and_came_back_is_read_again(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    for n in range(4):
        await place.publish(LINES, "s", n)
        await place.until_came("a", n)
        await place.restart(n % 2)
        await place.calm(10)
    assert set(ears.items("a")) == set(range(4))
    assert len({one.epoch for one in watch.of("receiver")}) >= 3


OWN = Capability.OWN_POSITION
SLOW_OK = StreamOptions(delivery=DeliveryOptions(handler_timeout_s=10_000))


@conforms(97, 129, needs=[PUBLISHES, SURVIVES, Capability.ORDERED], silos=2, options=SLOW_OK)
async def test_the_stored_position_is_that_of_the_slowest_consumer(place: Place) -> None:
    """The fast consumer may see its events again, and the slow one sees them at last."""
    ears.held["slow"] = asyncio.Event()
    for key in ("slow", "fast"):
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("fast", TEN)
    await place.calm(10)
    for number in (0, 1):
        place.crash(number)
        await place.calm(20)
        await place.join(number)
    ears.held["slow"].set()
    await place.until(lambda: set(ears.items("slow")) == set(TEN))
    assert set(ears.items("fast")) == set(TEN)


@conforms(97, needs=[PUBLISHES, HOLDS], queues=1, wrap=watch.over)
async def test_nothing_is_acknowledged_past_an_event_whose_subscribers_are_not_known_yet(
    place: Place,
) -> None:
    ears.gates[5] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until(lambda: bool(ears.waiting))
    await place.calm(5)
    upto = [ack.upto for ack in watch.of("ack") if ack.upto is not None]
    done = [one.token for one in ears.by["a"]]
    assert all(token <= max(done, default=token) for token in upto)
    ears.gates[5].set()
    await place.until_heard("a", TEN)
