"""Programs outside of the cluster that consume and publish (rows 2 to 12, 33, 104, 111, 112)."""

from __future__ import annotations

import asyncio

import pytest
from tests.streams.conformance.actors import LINES, Listener, Producer, ears
from tests.streams.conformance.adapters import PUBLISHES
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.programs import Outsider

from millstream.runtime import Client
from millstream.streams import dead_letters

TEN = list(range(10))


@pytest.mark.parametrize("first", ["consumer", "producer"])
@conforms(2, 33, needs=[PUBLISHES], silos=2)
async def test_a_program_hears_what_a_grain_publishes(place: Place, first: str) -> None:
    producer = place.grain(Producer, "p")
    if first == "producer":
        await producer.publish("s", [-1])
        await place.calm()
    program = Outsider(place, "program")
    await program.consume("s")
    await producer.publish("s", TEN)
    await place.until_heard("program", TEN)
    await program.leave()


@pytest.mark.parametrize("first", ["consumer", "producer"])
@conforms(4, needs=[PUBLISHES], silos=2)
async def test_a_program_hears_what_another_program_publishes(place: Place, first: str) -> None:
    if first == "producer":
        await place.publish(LINES, "s", -1)
        await place.calm()
    program = Outsider(place, "program")
    await program.consume("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("program", TEN)
    await program.leave()


@conforms(6, 8, needs=[PUBLISHES], silos=2)
async def test_every_program_hears_every_item_of_every_grain_and_program(place: Place) -> None:
    programs = [Outsider(place, f"program-{n}") for n in range(3)]
    for program in programs:
        await program.consume("s")
    await asyncio.gather(
        *(place.grain(Producer, f"p{n}").publish("s", [n * 10 + i for i in TEN]) for n in range(2)),
        place.publish(LINES, "s", *[20 + i for i in TEN]),
    )
    for program in programs:
        await place.until_heard(program.name, range(30), in_order=False)
        await program.leave()


@conforms(11, needs=[PUBLISHES], whichever=True)
async def test_two_consumers_of_one_program_each_hear_what_one_grain_publishes_twice(
    place: Place,
) -> None:
    program = Outsider(place, "program")
    for who in ("one", "two"):
        await program.consume("s", who)
    await asyncio.gather(
        place.grain(Producer, "p").publish("s", TEN),
        place.grain(Producer, "p").publish("s", [10 + i for i in TEN]),
    )
    for who in ("one", "two"):
        await place.until_heard(who, range(20), in_order=False)
    await program.leave()


@conforms(104, needs=[PUBLISHES], silos=2)
async def test_consumers_that_come_after_traffic_hear_what_comes_then_and_the_old_go_on(
    place: Place,
) -> None:
    await place.grain(Listener, "old").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("old", TEN)
    new = [f"new-{n}" for n in range(20)]
    for key in new:
        await place.grain(Listener, key).listen("s")
    program = Outsider(place, "program")
    await program.consume("s")
    await place.publish(LINES, "s", 10, *range(11, 20))
    await place.until_heard("old", range(20))
    for key in [*new, "program"]:
        await place.until_heard(key, range(10, 20))
    await program.leave()


@conforms(111, needs=[PUBLISHES], silos=2)
async def test_consumers_do_not_notice_that_a_publishing_program_was_killed(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")

    async def publish(client: Client) -> None:
        for item in TEN:
            await client.stream(LINES, "s").publish(item)

    first = Outsider(place, "first")
    await first.do(publish)
    await first.crash()

    async def publish_more(client: Client) -> None:
        for item in TEN:
            await client.stream(LINES, "s").publish(10 + item)

    await Outsider(place, "second").do(publish_more)
    await place.until_heard("a", range(20))


@conforms(112, needs=[PUBLISHES], silos=2)
async def test_the_subscription_of_a_killed_program_ends_and_a_new_program_hears_all(
    place: Place,
) -> None:
    killed, fresh = Outsider(place, "killed"), Outsider(place, "fresh")
    await killed.consume("s")
    await place.publish(LINES, "s", *range(5))
    await place.until_heard("killed", range(5))
    await killed.crash()
    await place.publish(LINES, "s", *range(5, 10))
    await fresh.consume("s")
    await place.publish(LINES, "s", *range(10, 15))
    await place.until_came("fresh", *range(10, 15))
    await place.calm(90)  # longer than `consumer_silence_s`
    assert [row async for row in dead_letters(place.client).all()] == []
    rows = await place.store.scan("subscription/", "", 10)
    assert len(rows) == 1, "that of the fresh one"
    assert sum(row.cached for row in place.stats()) == 0
    await fresh.leave()
    await place.calm()
    assert await place.store.scan("subscription/", "", 10) == []


@conforms(112, needs=[PUBLISHES], silos=2)
async def test_the_named_subscription_of_a_killed_program_waits_for_the_next_one(
    place: Place,
) -> None:
    killed, fresh = Outsider(place, "killed"), Outsider(place, "fresh")
    await killed.consume("s", "audit", "audit")
    await place.publish(LINES, "s", *range(5))
    await place.until_heard("audit", range(5))
    await killed.crash()
    await place.publish(LINES, "s", *range(5, 10))
    await place.calm(90)
    await fresh.consume("s", "audit", "audit")
    await place.until_came("audit", *TEN)
    await place.calm()
    assert ears.items("audit")[-5:] == list(range(5, 10)) or place.adapter.name == "leased"
    await fresh.leave()
