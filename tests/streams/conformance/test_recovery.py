"""Recovery (rows 61 to 70, 82): errors, idle streams, ended activations, restarts."""

from __future__ import annotations

import asyncio

from tests.streams.conformance.actors import (
    LINES,
    Counter,
    Listener,
    Living,
    Tally,
    ears,
    note,
)
from tests.streams.conformance.adapters import EXACT, NUMBERS, PUBLISHES, SURVIVES, Feed
from tests.streams.conformance.place import Place, conforms

from millstream.streams import (
    Backoff,
    Capability,
    DeliveryOptions,
    Event,
    StreamOptions,
)

QUICK = StreamOptions(delivery=DeliveryOptions(retries=3, backoff=Backoff(0.05, 2, 0.2)))
HUNDRED = Feed(tuple("abcd"), 100)
STABLE = (Capability.ORDERED, Capability.STABLE_TOKENS)


async def counted(place: Place) -> dict[str, Tally]:
    return {key: await place.grain(Counter, key).counted() for key in place.setting.feed.keys}


async def until_counted(place: Place, count: int) -> None:
    keys = place.setting.feed.keys
    await place.until(lambda: all(len(set(ears.items(f"counter/{key}"))) >= count for key in keys))
    await place.calm()


NOW_AND_THEN = {20: 5, 50: 2, 51: 9, 99: 1}
POISON = {50: 10**9}


@conforms(
    61,
    63,
    needs=STABLE,
    grains=[Counter],
    feed=HUNDRED,
    options=QUICK,
    silos=2,
    failing=NOW_AND_THEN,
)
async def test_every_stream_counts_a_hundred_though_handlers_fail_now_and_then(
    place: Place,
) -> None:
    await place.fed(NUMBERS)
    await until_counted(place, 100)
    assert await counted(place) == {key: Tally(100, 4950, HUNDRED.items) for key in HUNDRED.keys}


@conforms(62, 63, needs=STABLE, grains=[Counter], feed=HUNDRED, options=QUICK, failing=POISON)
async def test_one_event_that_never_succeeds_is_the_only_one_that_is_missing(place: Place) -> None:
    await place.fed(NUMBERS)
    await until_counted(place, 99)
    rest = [item for item in HUNDRED.items if item != 50]
    assert await counted(place) == {key: Tally(99, 4900, rest) for key in HUNDRED.keys}
    letters = await place.provider().dead_letters.list(
        "implicit/numbers/Counter/on_number", limit=1000
    )
    assert {one.failure.stream.key for one in letters} == set(HUNDRED.keys)
    assert {NUMBERS.codec.decode(one.failure.body) for one in letters} == {50}


def no_errors(place: Place) -> bool:
    rows = place.stats()
    return all(row.faults == row.gaps == row.given_up == 0 for row in rows)


@conforms(64, 90, needs=[PUBLISHES], options=StreamOptions(stream_idle_s=200))
async def test_an_event_after_a_long_silence_is_delivered(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until_heard("a", [0])
    assert sum(row.streams for row in place.stats()) == 1
    await place.calm(300)
    assert sum(row.streams for row in place.stats()) == 0
    await place.publish(LINES, "s", 1)
    await place.until_heard("a", [0, 1])
    assert no_errors(place)


@conforms(65, 69, needs=[PUBLISHES], queues=1)
async def test_an_event_is_delivered_though_the_one_before_it_has_long_left_the_cache(
    place: Place,
) -> None:
    for key in ("s", "t"):
        await place.grain(Listener, key).listen(key)
    await place.publish(LINES, "s", 0)
    await place.until_heard("s", [0])
    for n in range(5):
        await place.stream(LINES, "t").publish_many(range(n * 100, n * 100 + 100))
    await place.until_heard("t", range(500))
    assert sum(row.cached for row in place.stats()) == 0
    await place.publish(LINES, "s", 1)
    await place.until_heard("s", [0, 1])
    assert no_errors(place)


@conforms(66, needs=[PUBLISHES], silos=2)
async def test_a_consumer_that_ended_between_two_events_hears_the_second(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until_heard("a", [0])
    await place.grain(Listener, "a").end()
    await place.until(lambda: "Listener/a" in ears.ended)
    await place.publish(LINES, "s", 1)
    await place.until_heard("a", [0, 1])
    assert no_errors(place)


class Mayfly(Living):
    """Ends with each event."""

    async def listen(self, key: str) -> None:
        await self.stream(LINES, key).subscribe(self._on_line)

    async def _on_line(self, event: Event[int]) -> None:
        note(self.key, event)
        self.context.deactivate_when_idle()


@conforms(67, needs=[PUBLISHES], grains=[Mayfly], queues=1)
async def test_a_consumer_that_ends_with_every_event_hears_all_while_other_streams_flow(
    place: Place,
) -> None:
    await place.grain(Mayfly, "m").listen("s")
    await place.grain(Listener, "a").listen("t")
    for n in range(3):
        await place.publish(LINES, "s", n)
        await place.publish(LINES, "t", *range(n * 10, n * 10 + 10))
    await place.until_heard("m", range(3))
    await place.until_heard("a", range(30))
    assert ears.woken.count("Mayfly/m") >= 2
    assert no_errors(place)


@conforms(68, needs=[PUBLISHES], queues=1)
async def test_a_slow_consumer_does_not_delay_the_second_event_of_a_fast_one(place: Place) -> None:
    ears.held["slow"] = asyncio.Event()
    for key in ("slow", "fast"):
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", 0, 1, 2)
    await place.until(lambda: set(ears.items("fast")) == {0, 1, 2}, within_s=5)
    assert ears.items("slow") == []
    ears.held["slow"].set()
    await place.until(lambda: set(ears.items("slow")) == {0, 1, 2})


@conforms(82, needs=[SURVIVES, *STABLE], grains=[Counter], silos=2, feed=HUNDRED, options=QUICK)
async def test_silos_that_crash_and_restart_count_every_event_once(place: Place) -> None:
    feeding = asyncio.ensure_future(place.fed(NUMBERS))
    await place.calm(1.0)
    await feeding  # otherwise a publish that is under way would have an unknown fate
    place.crash(1)
    await place.calm(20)
    await place.join(1)
    await until_counted(place, 100)
    assert await counted(place) == {key: Tally(100, 4950, HUNDRED.items) for key in HUNDRED.keys}


@conforms(82, needs=EXACT, grains=[Counter], silos=2, feed=HUNDRED, options=QUICK)
async def test_silos_that_stop_and_start_count_every_event_once(place: Place) -> None:
    feeding = asyncio.ensure_future(place.fed(NUMBERS))
    for number in (0, 1):
        await place.calm(1.0)
        await place.cluster.stop_silo(f"silo-{number}")
        await place.until(lambda: len(place.cluster.silos()) == 2)
    await feeding
    await until_counted(place, 100)
    assert await counted(place) == {key: Tally(100, 4950, HUNDRED.items) for key in HUNDRED.keys}
