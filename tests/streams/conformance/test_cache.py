"""The cache, seen from outside (rows 71 to 81, 83): no event is skipped, memory is bounded."""

from __future__ import annotations

import asyncio

import pytest
from tests.streams.conformance.actors import LINES, Listener, ears
from tests.streams.conformance.adapters import EXACT, HOLDS, PUBLISHES
from tests.streams.conformance.place import Place, conforms

from millstream.runtime import Grain
from millstream.streams import (
    CacheLimits,
    DeliveryOptions,
    Event,
    FlowOptions,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

TEN = list(range(10))
PATIENT = DeliveryOptions(handler_timeout_s=100_000)


def cached(place: Place) -> int:
    return sum(row.cached for row in place.stats())


@conforms(71, needs=[PUBLISHES], queues=1)
async def test_two_streams_that_take_turns_are_heard_and_leave_the_cache_and_begin_again(
    place: Place,
) -> None:
    for key in ("s", "t"):
        await place.grain(Listener, key).listen(key)
    for begin in (0, 50):
        for item in range(begin, begin + 50):
            await place.publish(LINES, "st"[item % 2], item)
        await place.until_heard("s", range(0, begin + 50, 2))
        await place.until_heard("t", range(1, begin + 50, 2))
        assert cached(place) == 0


BODIES = StreamNamespace("bodies", bytes)
bodies: list[bytes] = []


class Weigher(Grain):
    @subscribe(BODIES)
    async def on_body(self, event: Event[bytes]) -> None:
        bodies.append(event.item)


def body(number: int, size_bytes: int) -> bytes:
    return bytes([number]) * size_bytes


@conforms(72, needs=[PUBLISHES], grains=[Weigher])
async def test_bodies_of_every_size_arrive_as_they_were(place: Place) -> None:
    bodies.clear()
    sent = [body(number, size) for number, size in enumerate([0, 1, 999, 70_000, 300_000, 3, 1])]
    await place.publish(BODIES, "b", *sent)
    await place.until(lambda: set(bodies) == set(sent))
    await place.calm()
    assert set(bodies) == set(sent)


@conforms(73, needs=[PUBLISHES], grains=[Weigher], options=StreamOptions(message_bytes_max=50_000))
async def test_a_message_that_is_too_large_is_refused_and_leaves_nothing_behind(
    place: Place,
) -> None:
    bodies.clear()
    with pytest.raises(ValueError, match="50,?000"):
        await place.publish(BODIES, "b", body(1, 60_000))
    await place.publish(BODIES, "b", body(2, 40_000))
    await place.until(lambda: bodies == [body(2, 40_000)])
    await place.calm()
    assert cached(place) == 0 and set(bodies) == {body(2, 40_000)}


@pytest.mark.parametrize("others", [0, 200], ids=["alone", "beside a busy stream"])
@conforms(74, needs=[PUBLISHES], queues=1)
async def test_an_idle_subscription_misses_nothing_when_what_it_had_is_gone(
    place: Place, others: int
) -> None:
    for key in ("s", "t"):
        await place.grain(Listener, key).listen(key)
    for n in range(3):
        await place.publish(LINES, "s", n)
        await place.stream(LINES, "t").publish_many(range(n * others, n * others + others))
        await place.calm(5)
    await place.until_heard("s", range(3))
    await place.until_heard("t", range(3 * others))
    assert all(row.gaps == row.faults == 0 for row in place.stats())


SMALL = CacheLimits(events_max=8, stream_events_max=4)


@conforms(
    75,
    only="partitions",
    queues=1,
    options=StreamOptions(cache=SMALL, flow=FlowOptions(read_events_max=4), delivery=PATIENT),
)
async def test_events_that_retention_took_before_they_were_read_are_a_gap_that_is_counted(
    place: Place,
) -> None:
    ears.gates[0] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *range(40))
    await place.until(lambda: bool(ears.waiting))
    await place.calm()
    await place.grounds["default"].partitions.forget("p0", 30)
    ears.gates[0].set()
    await place.until(lambda: ears.items("a")[-10:] == list(range(30, 40)))
    assert ears.items("a") == sorted(set(ears.items("a"))) and len(ears.items("a")) < 40
    assert sum(row.gaps for row in place.stats()) >= 1


@conforms(76, needs=EXACT, options=StreamOptions(delivery=PATIENT), queues=1)
async def test_a_subscription_is_sent_to_the_token_that_is_said_and_hears_that_event_first(
    place: Place,
) -> None:
    ears.held["slow"] = asyncio.Event()
    await place.grain(Listener, "slow").listen("s")
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", TEN)
    token = ears.by["a"][6].token
    await place.grain(Listener, "a").resume("s", token)
    await place.until_heard("a", [*TEN, 6, 7, 8, 9])
    ears.held["slow"].set()
    await place.until_heard("slow", TEN)


@conforms(76, needs=EXACT, options=StreamOptions(delivery=PATIENT), queues=1)
async def test_one_that_is_on_its_way_goes_on_where_it_is_when_it_subscribes_again(
    place: Place,
) -> None:
    listener = place.grain(Listener, "a")
    await listener.listen("s")
    for n in range(5):
        await place.stream(LINES, "s").publish_many(range(n * 10, n * 10 + 10))
        await listener.resume("s")
        await listener.listen("s")
    await place.until_heard("a", range(50))


@conforms(77, only="partitions", queues=1)
async def test_numbers_may_jump_as_far_as_they_like(place: Place) -> None:
    partition = place.grounds["default"].partitions.partitions[0]
    for key in ("s", "t"):
        await place.grain(Listener, key).listen(key)
    for n in range(4):
        await place.publish(LINES, "s", n)
        await place.publish(LINES, "t", n)
        await place.until_heard("s", range(n + 1))
        await place.calm()
        partition.end += 2**40
    await place.until_heard("t", range(4))
    assert ears.by["s"][-1].token.seq > 2**41


@conforms(79, needs=[PUBLISHES, HOLDS], options=StreamOptions(delivery=PATIENT), queues=1)
async def test_age_takes_nothing_that_is_not_done(place: Place) -> None:
    ears.held["slow"] = asyncio.Event()
    for key in ("slow", "fast"):
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("fast", TEN)
    await place.calm(400)
    await place.publish(LINES, "s", 10)
    ears.held["slow"].set()
    await place.until_heard("slow", range(11))
    await place.until_heard("fast", range(11))


TIGHT = StreamOptions(cache=CacheLimits(events_max=20, stream_events_max=20), delivery=PATIENT)


@conforms(80, needs=[PUBLISHES, HOLDS], options=TIGHT, queues=1)
async def test_a_full_cache_is_not_read_into_and_goes_on_when_there_is_room(place: Place) -> None:
    ears.held["slow"] = asyncio.Event()
    await place.grain(Listener, "slow").listen("s")
    await place.publish(LINES, "s", *range(60))
    await place.calm(5)
    assert 0 < cached(place) <= 20
    ears.held["slow"].set()
    await place.until_heard("slow", range(60))
    assert cached(place) == 0


@conforms(81, needs=[PUBLISHES], options=TIGHT, queues=1)
async def test_thirty_healthy_consumers_go_on_when_the_one_that_held_the_cache_leaves(
    place: Place,
) -> None:
    ears.held["slow"] = asyncio.Event()
    slow = place.grain(Listener, "slow")
    await slow.listen("s")
    healthy = [f"h{n}" for n in range(30)]
    for key in healthy:
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", *range(60))
    await place.calm(5)
    assert all(len(ears.items(key)) >= 20 for key in healthy)
    leaving = asyncio.ensure_future(slow.leave("s"))
    ears.held["slow"].set()
    await leaving
    for key in healthy:
        await place.until_heard(key, range(60))


@conforms(83, needs=EXACT, queues=1)
async def test_the_figures_of_a_queue_are_those_of_what_happened(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.stream(LINES, "unheard").publish_many(range(5))
    await place.until_heard("a", TEN)
    await place.until(lambda: sum(row.read for row in place.stats()) == 15)
    (row,) = place.stats()
    assert (row.read, row.delivered, row.unheard) == (15, 10, 5)
    assert (row.given_up, row.cached, row.calls_out, row.faults, row.gaps) == (0, 0, 0, 0, 0)
    assert row.is_reading and row.epoch == 1 and row.streams == 2
