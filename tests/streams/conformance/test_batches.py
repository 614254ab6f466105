"""Batches (rows 54 to 56): single and listed publishes, single and listed handlers."""

from __future__ import annotations

import asyncio

from tests.streams.conformance.actors import LINES, Listener, Living, ears, hear
from tests.streams.conformance.adapters import IN_ORDER, NUMBERS, PUBLISHES, Feed
from tests.streams.conformance.place import Place, conforms

from millstream.streams import Event, subscribe


@conforms(54, needs=[PUBLISHES])
async def test_events_that_were_published_one_by_one_come_in_lists_to_a_handler_of_lists(
    place: Place,
) -> None:
    ears.gates[0] = asyncio.Event()
    await place.grain(Listener, "a").listen_in_lists("s")
    await place.publish(LINES, "s", 0)
    await place.until(lambda: bool(ears.waiting))
    await place.publish(LINES, "s", *range(1, 20))
    await place.calm(0.05)  # shorter than the leases of an adapter
    ears.gates[0].set()
    await place.until_heard("a", range(20))
    assert max(ears.sizes["a"]) >= 2


@conforms(55, needs=[PUBLISHES])
async def test_what_was_published_as_a_list_comes_one_by_one_to_a_handler_of_one(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    for n in range(3):
        await place.stream(LINES, "s").publish_many(range(n * 10, n * 10 + 10))
    await place.until_heard("a", range(30))
    assert set(ears.sizes["a"]) == {1}


@conforms(56, needs=IN_ORDER)  # without order each item is a message of its own
async def test_what_was_published_as_a_list_comes_as_one_to_a_handler_of_lists(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen_in_lists("s")
    for n in range(3):
        await place.stream(LINES, "s").publish_many(range(n * 10, n * 10 + 10))
    await place.until_heard("a", range(30))
    assert max(ears.sizes["a"]) >= 10


class Lister(Living):
    @subscribe(NUMBERS, batch=True, max_events=7)
    async def on_numbers(self, events: list[Event[int]]) -> None:
        ears.sizes[f"lists/{self.key}"].append(len(events))
        for event in events:
            await hear(f"lists/{self.key}", event)


@conforms(56, grains=[Lister], feed=Feed(count=50))
async def test_a_marked_handler_of_lists_gets_at_most_so_many_as_it_says(place: Place) -> None:
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_heard(f"lists/{key}", place.setting.feed.items)
        assert max(ears.sizes[f"lists/{key}"]) <= 7
