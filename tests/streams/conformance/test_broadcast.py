"""Broadcast channels (rows 141 to 145): no queue, no history, only current listeners."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.streams.conformance.adapters import PUBLISHES
from tests.streams.conformance.place import Place, conforms

from millstream.runtime import Grain
from millstream.streams import Broadcast, BroadcastChannel, BroadcastOptions, listen

NEWS = BroadcastChannel("news", int)
came: defaultdict[str, list[int]] = defaultdict(list)


class Desk(Grain):
    @listen(NEWS)
    async def on_news(self, item: int) -> None:
        came[f"desk/{self.key}"].append(item)


class Screen(Grain):
    @listen(NEWS)
    async def on_news(self, item: int) -> None:
        came[f"screen/{self.key}"].append(item)


class Cynic(Grain):
    """Fails at the second item."""

    @listen(NEWS)
    async def on_news(self, item: int) -> None:
        if item == 2:
            raise ValueError("no news is good news")
        came[f"cynic/{self.key}"].append(item)


def quickly() -> Broadcast:
    return Broadcast(BroadcastOptions(fire_and_forget=True))


def surely() -> Broadcast:
    return Broadcast(BroadcastOptions(fire_and_forget=False))


ANY: dict[str, Any] = {"needs": [PUBLISHES], "whichever": True, "silos": 2}
QUICKLY: dict[str, Any] = {**ANY, "others": {"broadcast": quickly}}
SURELY: dict[str, Any] = {**ANY, "others": {"broadcast": surely}}


@pytest.fixture(autouse=True)
def nothing_came() -> None:
    came.clear()


async def publish(place: Place, key: str, *items: int) -> None:
    for item in items:
        await place.client.stream(NEWS, key).publish(item)


@conforms(141, grains=[Desk], **QUICKLY)
async def test_what_is_sent_and_forgotten_arrives(place: Place) -> None:
    await publish(place, "a", 1, 2, 3)
    await place.until(lambda: sorted(came["desk/a"]) == [1, 2, 3])


@conforms(141, grains=[Desk], **SURELY)
async def test_what_is_waited_for_arrives_in_order(place: Place) -> None:
    for item in (1, 2, 3):
        await publish(place, "a", item)
        assert came["desk/a"] == list(range(1, item + 1)), "heard when publish returns"


@conforms(142, grains=[Desk, Screen], **SURELY)
async def test_every_grain_type_that_listens_hears_all(place: Place) -> None:
    await publish(place, "a", 1, 2, 3)
    assert came == {"desk/a": [1, 2, 3], "screen/a": [1, 2, 3]}


@conforms(143, grains=[Desk], **QUICKLY)
async def test_the_grain_of_each_channel_hears_its_own(place: Place) -> None:
    for number, key in enumerate("abcdef"):
        await publish(place, key, number)
    await place.until(lambda: len(came) == 6)
    await place.calm()
    assert came == {f"desk/{key}": [number] for number, key in enumerate("abcdef")}


@conforms(144, grains=[Desk, Cynic], **QUICKLY)
async def test_a_listener_that_fails_costs_the_others_nothing(place: Place) -> None:
    await publish(place, "a", 1, 2, 3)
    await place.until(lambda: len(came["desk/a"]) == 3 and len(came["cynic/a"]) == 2)
    assert sorted(came["desk/a"]) == [1, 2, 3] and sorted(came["cynic/a"]) == [1, 3]


@conforms(145, grains=[Desk, Cynic], **SURELY)
async def test_a_publish_that_waits_raises_what_the_one_bad_listener_raised(place: Place) -> None:
    await publish(place, "a", 1)
    with pytest.raises(ExceptionGroup) as raised:
        await publish(place, "a", 2)
    (error,) = raised.value.exceptions
    assert isinstance(error, ValueError) and "no news is good news" in str(error)
    await publish(place, "a", 3)
    assert came == {"desk/a": [1, 2, 3], "cynic/a": [1, 3]}
