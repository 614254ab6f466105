"""The cooperation of the runtime and an adapter (rows 130 to 140)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contract.adapters.tags import LEASE_S
from tests.streams.conformance.actors import LINES, Listener, Living, ears, hear
from tests.streams.conformance.adapters import EXACT, HOLDS, NUMBERS, PUBLISHES, SURVIVES
from tests.streams.conformance.place import Place, conforms
from tests.streams.conformance.watched import watch

from millstream.providers.generator import GeneratorOptions
from millstream.providers.memory import MemoryOptions
from millstream.runtime import ConfigError
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    Event,
    FlowOptions,
    HashRingMapper,
    OutMessage,
    OwnershipOptions,
    StreamId,
    StreamOptions,
    dead_letters,
    subscribe,
)
from millstream.streams.testing import owners

TEN = list(range(10))
KEYS = [f"k{n}" for n in range(8)]
QUICK = StreamOptions(delivery=DeliveryOptions(retries=2, backoff=Backoff(0.05, 2, 0.1)))


@conforms(130, needs=[PUBLISHES], queues=4)
async def test_what_was_heard_and_acknowledged_does_not_come_again(place: Place) -> None:
    for n in range(10):
        for key in KEYS:
            await place.publish(NUMBERS, key, n)
    for key in KEYS:
        await place.until_heard(key, TEN)
    before = [ears.count(key) for key in KEYS]
    await place.calm(5)
    await place.restart()
    await place.calm(10)
    assert [ears.count(key) for key in KEYS] == before
    await place.provider().measure()
    assert sum(row.backlog + row.cached for row in place.stats()) == 0


@conforms(131, needs=[PUBLISHES])
async def test_headers_arrive_with_each_event_of_the_publish(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    headers = {"trace": "7", "ünïcode": "日本", "empty": "", "long": "x" * 2000}
    await place.stream(LINES, "s").publish_many([0, 1], headers=headers)
    await place.stream(LINES, "s").publish(2)
    await place.until_heard("a", range(3))
    by_item = {one.item: one.headers for one in ears.by["a"]}
    assert by_item == {0: headers, 1: headers, 2: {}}


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (MemoryOptions, {"capacity_events": 0}),
    (MemoryOptions, {"capacity_bytes": -1}),
    (MemoryOptions, {"enqueue_wait_s": float("nan")}),
    (GeneratorOptions, {"streams": 0}),
    (GeneratorOptions, {"events_per_s": 0.0}),
    (GeneratorOptions, {"events_per_stream": -1}),
    (HashRingMapper, {"queues": 0}),
    (HashRingMapper, {"queues": 65_537}),
    (CacheLimits, {"events_max": 0}),
    (FlowOptions, {"read_events_max": 0}),
    (DeliveryOptions, {"retries": -1}),
    (DeliveryOptions, {"handler_timeout_s": 0.0}),
    (OwnershipOptions, {"lease_s": 0.5}),
    (StreamOptions, {"read_wait_s": "5"}),
]


@pytest.mark.row(132)
@pytest.mark.parametrize(
    ("kind", "fields"), WRONG, ids=[f"{kind.__name__}-{next(iter(f))}" for kind, f in WRONG]
)
def test_an_option_that_cannot_work_is_refused_by_its_name(
    kind: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        kind(**fields)


@conforms(133, needs=[PUBLISHES, HOLDS], silos=2, queues=1)
async def test_what_an_owner_read_and_did_not_acknowledge_comes_to_the_next_one(
    place: Place,
) -> None:
    ears.gates[5] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *range(5))
    await place.until_heard("a", range(5))
    await place.calm(5)
    await place.publish(LINES, "s", *range(5, 10))
    await place.until(lambda: ears.waiting == [5])
    ((_, owner),) = owners(place.cluster).items()
    await place.leave(int(owner[-1]))
    ears.gates.pop(5).set()
    await place.until_came("a", *TEN)
    await place.calm()
    assert [item for item in ears.items("a") if item < 5] == list(range(5))


@conforms(134, needs=EXACT, options=QUICK, queues=1)
async def test_an_event_whose_attempts_are_used_up_is_a_dead_letter_and_the_others_are_none(
    place: Place,
) -> None:
    ears.failing.update({3: 10**9, 7: 2})
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", [item for item in TEN if item != 3])
    letters = dead_letters(place.client)
    (letter,) = [one async for one in letters.all()]
    assert LINES.codec.decode(letter.failure.body) == 3 and letter.failure.attempts == 3
    assert letter.failure.stream == StreamId("lines", "s")
    assert [one.attempt for one in ears.by["a"] if one.item == 7] == [3]


@conforms(134, needs=EXACT, options=QUICK, queues=1)
async def test_every_dead_letter_of_a_subscription_is_kept_and_comes_back_by_hand(
    place: Place,
) -> None:
    ears.failing.update({2: 3, 3: 3, 8: 10**9})
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", *TEN)
    await place.until_heard("a", [0, 1, 4, 5, 6, 7, 9])
    letters = dead_letters(place.client)
    found = {LINES.codec.decode(one.failure.body): one.id async for one in letters.all()}
    assert set(found) == {2, 3, 8}
    for item in (2, 3):
        await letters.redrive(found[item])
    with pytest.raises(ValueError, match="8 fails"):
        await letters.redrive(found[8])
    await place.until_heard("a", [0, 1, 4, 5, 6, 7, 9, 2, 3])
    assert [one.id async for one in letters.all()] == [found[8]]
    assert await letters.delete(found[8]) and not await letters.delete(found[8])


@conforms(135, only="leased")
async def test_a_letter_whose_lease_ran_out_comes_again_and_none_is_lost(place: Place) -> None:
    ears.gates[5] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await asyncio.gather(*(place.publish(LINES, "s", n * 10 + i) for n in range(4) for i in TEN))
    await place.until(lambda: 5 in ears.waiting)
    await place.calm(LEASE_S * 3)
    ears.gates[5].set()
    await place.until_came("a", *range(40))
    await place.calm(5)
    queues = place.grounds["default"].leases.queues.values()
    assert not any(queue.letters for queue in queues), "every one is settled"


@conforms(135, only="leased", queues=3, silos=2)
async def test_leased_queues_that_many_publish_to_and_silos_leave_lose_nothing(
    place: Place,
) -> None:
    for n in range(6):
        await place.grain(Listener, f"l{n}").listen(f"s{n}")
    publishing = asyncio.gather(
        *(place.publish(LINES, f"s{n}", *range(i * 10, i * 10 + 10)) for n in range(6) for i in TEN)
    )
    await place.restart(1)
    await publishing
    await place.restart(0)
    for n in range(6):
        await place.until_came(f"l{n}", *range(100))


@conforms(135, only="leased", queues=1)
async def test_a_letter_whose_handler_takes_longer_than_its_lease_is_handled_once(
    place: Place,
) -> None:
    ears.gates[0] = asyncio.Event()
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until(lambda: bool(ears.waiting))
    await place.calm(LEASE_S * 10)
    ears.gates[0].set()
    await place.calm(5)
    assert ears.items("a") == [0]


@conforms(136, needs=EXACT, queues=1)
async def test_the_events_of_one_message_have_its_number_and_their_place_in_it(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.stream(LINES, "s").publish_many(range(5))
    await place.publish(LINES, "s", 5)
    await place.until_heard("a", range(6))
    tokens = [one.token for one in ears.by["a"]]
    assert [token.index for token in tokens] == [0, 1, 2, 3, 4, 0]
    assert len({(token.era, token.seq) for token in tokens[:5]}) == 1
    assert tokens == sorted(tokens)


@conforms(137, only="partitions", queues=1, options=QUICK)
async def test_what_somebody_else_wrote_is_heard_if_it_can_be_decoded_and_else_given_up(
    place: Place,
) -> None:
    partition = place.grounds["default"].partitions.partitions[0]
    stream = StreamId("numbers", "a")
    for items in ([NUMBERS.codec.encode(1)], [b"\xc1 no item"], [NUMBERS.codec.encode(2)]):
        partition.append(OutMessage(stream, items, {"from": "elsewhere"}), 0.0)
    await place.until_heard("a", [1, 2])
    assert all(one.headers == {"from": "elsewhere"} for one in ears.by["a"])
    (letter,) = [one async for one in dead_letters(place.client).all()]
    assert letter.failure.body == b"\xc1 no item"


@conforms(138, needs=[PUBLISHES], providers=("default", "other"), wrap=watch.over)
async def test_a_silo_that_stops_closes_each_adapter_once_and_after_its_receivers(
    place: Place,
) -> None:
    await place.publish(NUMBERS, "a", *TEN)
    await place.until_came("a", *TEN)
    await place.restart()
    first = [one for one in watch.asked if one.silo == watch.asked[0].silo]
    ends = [at for at, one in enumerate(first) if one.what == "close adapter"]
    closes = [at for at, one in enumerate(first) if one.what == "close"]
    assert len(ends) == 2 and len(closes) == 4 and max(closes) < min(ends)


@conforms(139, only="partitions", queues=2, wrap=watch.over)
async def test_a_read_brings_no_more_than_the_limits_and_goes_on_where_it_was(
    place: Place,
) -> None:
    await place.restart()
    for n in range(5):
        await place.stream(LINES, "s").publish_many(range(n * 50, n * 50 + 50))
    await place.grain(Listener, "a").listen("s")
    for n in range(5, 40):
        await place.stream(LINES, "s").publish_many(range(n * 50, n * 50 + 50))
    await place.until_came("a", *range(250, 2000))
    assert ears.items("a")[-1750:] == list(range(250, 2000))


@conforms(139, only="partitions", queues=1)
async def test_a_position_that_retention_has_passed_begins_at_the_first_that_is_left(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    await place.publish(LINES, "s", 0)
    await place.until_heard("a", [0])
    await place.calm(5)
    broker = place.grounds["default"].partitions
    await place.cluster.stop_silo("silo-0")
    for item in range(1, 10):
        body = LINES.codec.encode(item)
        broker.partitions[0].append(OutMessage(StreamId("lines", "s"), [body], {}), 0.0)
    await broker.forget("p0", 6)
    await place.until_came("a", *range(6, 10))
    assert ears.items("a") == [0, 6, 7, 8, 9]
    assert sum(row.gaps for row in place.stats()) == 1


ODD = ["", " ", "a/b", "日本", "x" * 1000, "line\nbreak", "\x1f", "\x00"]


class Odd(Living):
    @subscribe(NUMBERS)
    async def on_number(self, event: Event[int]) -> None:
        assert event.key == self.key
        await hear(f"odd/{self.key}", event)


@pytest.mark.parametrize("key", ODD, ids=[f"key {n}" for n in range(len(ODD))])
@conforms(140, needs=[PUBLISHES, SURVIVES], grains=[Odd])
async def test_a_key_of_any_text_arrives_as_it_was_after_a_restart_too(
    place: Place, key: str
) -> None:
    await place.publish(NUMBERS, key, 1)
    await place.until_came(f"odd/{key}", 1)
    await place.restart()
    await place.publish(NUMBERS, key, 2)
    await place.until_came(f"odd/{key}", 1, 2)
