"""Stored positions of queues (rows 125 to 129), for adapters that leave them to the runtime."""

from __future__ import annotations

import asyncio

import pytest
from tests.streams.conformance.actors import LINES, Listener, ears
from tests.streams.conformance.adapters import LEAVES_POSITION, PUBLISHES, SURVIVES
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.stores import TroubledStore
from tests.streams.conformance.watched import watch

from millstream.runtime import MillstreamError
from millstream.streams import DeliveryOptions, StreamOptions, Token
from millstream.streams.testing import owners

TEN = list(range(10))
LEFT = (PUBLISHES, LEAVES_POSITION)
PATIENT = StreamOptions(delivery=DeliveryOptions(handler_timeout_s=10_000))


def store_of(place: Place) -> TroubledStore:
    assert isinstance(place.store, TroubledStore)
    return place.store


def positions() -> list[Token | None]:
    """Return the start of each receiver of the queue, in order."""
    return [one.upto for one in watch.of("start")]


def message_of(token: Token) -> Token:
    return Token(token.era, token.seq)


@conforms(125, needs=LEFT, queues=1, store=TroubledStore, wrap=watch.over)
async def test_the_position_is_stored_now_and_then_and_the_last_one_when_the_silo_stops(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.calm(10)
    before = len(store_of(place).writes("queue/"))
    for item in range(100):
        await place.publish(LINES, "s", item)
        await place.calm(0.1)
    await place.until_heard("a", range(100))
    await place.calm(5)
    written = len(store_of(place).writes("queue/"))
    assert 5 <= written - before <= 16, "at most once a second"
    await place.calm(60)
    assert len(store_of(place).writes("queue/")) == written, "what did not change is not written"
    await place.publish(LINES, "s", 100)
    await place.until_came("a", 100)
    await place.restart()
    assert positions()[0] is None and positions()[-1] == message_of(ears.by["a"][-1].token)
    await place.until_heard("a", range(101))


@conforms(125, needs=LEFT, queues=1, store=TroubledStore, wrap=watch.over)
async def test_a_position_that_could_not_be_stored_is_stored_when_the_store_is_back(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    store_of(place).read_only.add("queue/")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", TEN)
    await place.calm(20)
    store_of(place).read_only.clear()
    await place.calm(20)
    await place.restart()
    assert positions()[-1] == message_of(ears.by["a"][-1].token)
    await place.until_heard("a", TEN)


@conforms(126, needs=[*LEFT, SURVIVES], silos=3, queues=1, wrap=watch.over)
async def test_an_owner_that_was_cut_off_cannot_move_the_position_back(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_came("a", *TEN)
    ((_, owner),) = owners(place.cluster).items()
    place.simulation.network.isolate(owner)
    for item in range(10, 20):
        await place.calm(3)
        await _publish_somehow(place, item)
    place.simulation.network.repair()
    await place.calm(30)
    await _publish_somehow(place, 20)
    await place.until_came("a", *range(21))
    found = [token for token in positions() if token is not None]
    assert found == sorted(found) and len(positions()) >= 2
    highest = Token(0, 0)
    for one in ears.by["a"]:
        assert one.token > highest or one.is_redelivered
        highest = max(highest, one.token)


async def _publish_somehow(place: Place, item: int) -> None:
    """Publish until a gateway accepts the item, which may then be stored twice."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await place.publish(LINES, "s", item)
            except MillstreamError:
                await asyncio.sleep(0.5)


@pytest.mark.row(127, 138)
def test_tokens_are_ordered_as_numbers_and_text_that_is_none_is_refused() -> None:
    ordered = [Token(1, 9), Token(1, 9, 1), Token(1, 10), Token(1, 2**63), Token(2, 0)]
    assert sorted(reversed(ordered)) == ordered
    assert sorted(map(str, reversed(ordered))) == list(map(str, ordered))
    assert [Token.parse(str(token)) for token in ordered] == ordered
    for text in ("", "7", "00000001-000000000000002a", "x" * 34):
        with pytest.raises(ValueError):
            Token.parse(text)


@conforms(128, needs=[PUBLISHES, SURVIVES], queues=1, store=TroubledStore)
async def test_an_owner_whose_record_was_changed_by_somebody_goes_on_and_loses_nothing(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    for n in range(3):
        store_of(place).conflicting["queue/"] = 1
        await place.publish(LINES, "s", *range(n * 10, n * 10 + 10))
        await place.calm(20)
    await place.until_came("a", *range(30))


@conforms(129, needs=LEFT, queues=1, options=PATIENT, wrap=watch.over)
async def test_the_position_waits_for_the_slowest_and_goes_on_when_that_one_leaves(
    place: Place,
) -> None:
    ears.gates[3] = asyncio.Event()
    slow, fast = place.grain(Listener, "slow"), place.grain(Listener, "fast")
    await slow.listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until(lambda: ears.waiting == [3])
    await place.calm(5)
    assert ears.items("slow") == [0, 1, 2]
    leaving = asyncio.ensure_future(slow.leave("s"))
    ears.gates.pop(3).set()
    await leaving
    await fast.listen("s")
    await place.publish(LINES, "s", 10)
    await place.until_came("fast", 10)
    await place.calm(5)
    await place.restart()
    assert positions()[-1] == message_of(ears.by["fast"][-1].token)


@conforms(129, needs=LEFT, queues=1, options=PATIENT, wrap=watch.over)
async def test_one_who_goes_back_does_not_move_the_position_back(place: Place) -> None:
    ears.held["slow"] = asyncio.Event()
    await place.grain(Listener, "slow").listen("s")
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", TEN)
    await place.grain(Listener, "a").resume("s", ears.by["a"][2].token)
    await place.until_came("a", *TEN)
    ears.held["slow"].set()
    await place.until_heard("slow", TEN)
    await place.calm(5)
    await place.restart()
    assert positions()[-1] == message_of(ears.by["slow"][-1].token)
    await place.calm(5)
    assert ears.items("slow") == TEN


@conforms(129, needs=LEFT, queues=1, wrap=watch.over)
async def test_the_position_goes_on_where_nobody_subscribes(place: Place) -> None:
    await place.publish(LINES, "s", *TEN)
    await place.until(lambda: sum(row.unheard for row in place.stats()) == 10)
    await place.calm(5)
    await place.restart()
    assert positions()[-1] is not None
    assert sum(row.read for row in place.stats()) == 0
