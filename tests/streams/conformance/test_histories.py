"""Whole histories are judged: order, at least once, and no loss after `subscribe`.

The tests run over each adapter that promises this, while silos stop, crash and restart as a seed
decides.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.streams.conformance.actors import LINES, Counter, Listener, ears
from tests.streams.conformance.adapters import EXACT, PUBLISHES, SURVIVES, UNORDERED
from tests.streams.conformance.judged import ITEMS, KEYS, Run
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.watched import watch

from millstream.streams import DeliveryOptions, StreamOptions

TROUBLED: dict[str, Any] = {"silos": 3, "queues": 3, "wrap": watch.over}


async def judged(place: Place, *, crashes: bool) -> None:
    run = Run(place)
    await run.play(crashes=crashes)
    assert run.findings() == []
    assert len(run.accepted) > ITEMS * len(KEYS), "most of what was published was accepted"


@conforms(seeds=[2], needs=EXACT, grains=[Counter], **TROUBLED)
async def test_in_order_and_once_counted_while_silos_stop_and_come_back(place: Place) -> None:
    await judged(place, crashes=False)


@conforms(seeds=[1, 2], needs=[*EXACT, SURVIVES], grains=[Counter], **TROUBLED)
async def test_in_order_and_once_counted_while_silos_crash_and_come_back(place: Place) -> None:
    await judged(place, crashes=True)


@conforms(seeds=[1, 2], needs=[PUBLISHES, SURVIVES, UNORDERED], **TROUBLED)
async def test_nothing_that_was_accepted_is_lost_while_silos_crash_and_come_back(
    place: Place,
) -> None:
    await judged(place, crashes=True)


@conforms(
    needs=EXACT,
    silos=2,
    up=1,
    queues=1,
    options=StreamOptions(calls_out_max=1, delivery=DeliveryOptions(max_batch=1)),
)
async def test_who_was_ahead_of_another_when_its_queue_moved_is_told_what_comes_again(
    place: Place,
) -> None:
    """One subscription has done the event that the other was not sent yet; both continue
    elsewhere."""
    ears.gates[3] = asyncio.Event()
    for key in ("a", "b"):
        await place.grain(Listener, key).listen("s")
    await place.publish(LINES, "s", *range(6))
    await place.until(lambda: bool(ears.waiting))
    await place.join(1)
    leaving = asyncio.ensure_future(place.leave(0))
    await place.calm()
    ears.gates.pop(3).set()
    await leaving
    for key in ("a", "b"):
        await place.until_came(key, *range(6))
        seen = set[int]()
        for one in ears.by[key]:
            assert one.item not in seen or one.is_redelivered, f"{key} was not told of {one.item}"
            seen.add(one.item)
