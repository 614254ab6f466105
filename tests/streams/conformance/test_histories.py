"""Order, at least once, and nothing lost after `subscribe`, judged over whole histories.

Over every adapter that promises them, while silos stop, crash and come back as a seed has it.
"""

from __future__ import annotations

from typing import Any

from tests.streams.conformance.actors import Counter
from tests.streams.conformance.adapters import EXACT, PUBLISHES, SURVIVES, UNORDERED
from tests.streams.conformance.judged import ITEMS, KEYS, Run
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.watched import watch

TROUBLED: dict[str, Any] = {"silos": 3, "queues": 3, "wrap": watch.over}


async def judged(place: Place, *, crashes: bool) -> None:
    run = Run(place)
    await run.play(crashes=crashes)
    assert run.findings() == []
    assert len(run.accepted) > ITEMS * len(KEYS), "most of what was published was accepted"


@conforms(seeds=[1, 2], needs=EXACT, grains=[Counter], **TROUBLED)
async def test_in_order_and_once_counted_while_silos_stop_and_come_back(place: Place) -> None:
    await judged(place, crashes=False)


@conforms(seeds=[1, 2, 3, 4], needs=[*EXACT, SURVIVES], grains=[Counter], **TROUBLED)
async def test_in_order_and_once_counted_while_silos_crash_and_come_back(place: Place) -> None:
    await judged(place, crashes=True)


@conforms(seeds=[1, 2, 3], needs=[PUBLISHES, SURVIVES, UNORDERED], **TROUBLED)
async def test_nothing_that_was_accepted_is_lost_while_silos_crash_and_come_back(
    place: Place,
) -> None:
    await judged(place, crashes=True)
