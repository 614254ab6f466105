"""The consumer's knowledge of handled events: by queue and epoch, if tokens are positions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, MemoryStateStore, Silo, state
from millstream.streams import (
    Capability,
    Event,
    PersistentStreams,
    StreamNamespace,
    Token,
    subscribe,
)
from millstream.streams.consumer.batch import ByHand, Delivered, WireBatch
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.contracts.item import Item

SEEN: dict[str, list[Any]] = defaultdict(list)
BAD: set[int] = set()
KEY = "a"


@dataclass
class Started:
    at: int


@dataclass
class Ended:
    after: int


PLAIN = StreamNamespace("plain", int)
COUNTED = StreamNamespace("counted", int)
OTHERS = StreamNamespace("others", int)
WRITTEN = StreamNamespace("written", str)
MOVES = StreamNamespace[Started | Ended]("moves")


@dataclass
class Tally:
    items: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BAD.clear()


class Reader(Grain):
    tally = state(Tally)

    @subscribe(PLAIN)
    async def on_plain(self, event: Event[int]) -> None:
        if event.item in BAD:
            raise ValueError(event.item)
        SEEN["plain"].append(event.item)

    @subscribe(COUNTED, commit_with=tally)
    async def on_counted(self, event: Event[int]) -> None:
        self.tally.value.items.append(event.item)
        if event.item in BAD:
            raise ValueError(event.item)

    @subscribe(OTHERS, commit_with=tally)
    async def on_other(self, event: Event[int]) -> None:
        self.tally.value.items.append(event.item)

    @subscribe(WRITTEN, commit_with=tally)
    async def on_written(self, event: Event[str]) -> None:
        self.tally.value.items.append(1)
        try:
            match event.item:
                case "write":
                    await self.tally.write()
                case "changed":
                    await self.tally.write_if_changed()
                case "clear":
                    await self.tally.clear()
                case "task":
                    await self.context.create_task(self.tally.write())
        except ConfigError as error:
            SEEN["refused"].append(str(error))

    @subscribe(MOVES)
    async def on_move(self, event: Event[Started | Ended]) -> None:
        SEEN["moves"].append(event.item)

    async def tallied(self) -> list[int]:
        return self.tally.value.items

    async def clear(self) -> None:
        await self.tally.clear()

    async def stop(self) -> None:
        self.context.deactivate_when_idle()


class Desk:
    """A silo, and deliveries to one of its grains, like those of an agent."""

    def __init__(self, silo: Silo, store: MemoryStateStore) -> None:
        self.silo, self.store = silo, store
        self.reader = silo.grain(Reader, KEY)

    async def deliver(
        self,
        *items: tuple[int, Any],
        handler: str = "on_counted",
        namespace: str = "counted",
        queue: str = "q1",
        epoch: int = 1,
        **more: Any,
    ) -> Delivered:
        """Deliver items, each given by its number in the queue and its value."""
        batch = WireBatch(
            f"implicit/{namespace}/Reader/{handler}",
            handler,
            namespace,
            KEY,
            queue,
            epoch,
            1,
            False,
            [Item(Token(1, seq), msgspec.msgpack.encode(value)) for seq, value in items],
            **more,
        )
        deliver = self.silo.services.extensions.method("Reader", ConsumerExtension.deliver, 5.0)
        return await deliver(KEY, batch)

    async def tallied(self) -> list[int]:
        return await self.reader.tallied()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    store = MemoryStateStore()
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    async with Silo(
        grains=[Reader], stores={"default": store}, streams={"default": streams}
    ) as silo:
        yield Desk(silo, store)


# --- within one queue


async def test_an_item_that_comes_again_in_one_delivery_takes_effect_once(desk: Desk) -> None:
    reply = await desk.deliver((1, 1), (2, 2), (1, 1), (2, 2), (3, 3), (3, 3))
    assert (reply.done, await desk.tallied()) == (6, [1, 2, 3])


async def test_an_older_item_between_newer_ones_is_acknowledged_without_running(
    desk: Desk,
) -> None:
    await desk.deliver((9, 9))
    reply = await desk.deliver((10, 10), (5, 5), (11, 11))
    assert (reply.done, await desk.tallied()) == (3, [9, 10, 11])


async def test_what_is_known_counts_as_done_up_to_the_item_that_fails(desk: Desk) -> None:
    await desk.deliver((1, 1))
    BAD.add(3)
    reply = await desk.deliver((1, 1), (2, 2), (1, 1), (3, 3), (4, 4))
    assert (reply.done, bool(reply.error)) == (3, True)
    assert await desk.tallied() == [1, 2]


async def test_what_was_done_before_a_failing_item_does_not_run_again_after_a_lost_reply(
    desk: Desk,
) -> None:
    BAD.add(3)
    items = [(n, n) for n in range(1, 5)]
    plain: dict[str, Any] = {"handler": "on_plain", "namespace": "plain"}
    assert (await desk.deliver(*items, **plain)).done == 2
    BAD.clear()
    assert (await desk.deliver(*items, **plain)).done == 4
    assert SEEN["plain"] == [1, 2, 3, 4]


async def test_without_positions_nothing_is_dropped_as_known(desk: Desk) -> None:
    plain: dict[str, Any] = {"handler": "on_plain", "namespace": "plain", "has_positions": False}
    await desk.deliver((5, 5), (3, 3), (3, 30), **plain)
    await desk.deliver((1, 1), (5, 50), **plain)
    assert SEEN["plain"] == [5, 3, 30, 1, 50]


async def test_a_delivery_of_an_older_epoch_is_refused(desk: Desk) -> None:
    assert not (await desk.deliver((1, 1), epoch=2)).is_fenced
    assert (await desk.deliver((2, 2), epoch=1)) == Delivered(0, is_fenced=True)
    assert not (await desk.deliver((1, 1), queue="q2", epoch=1)).is_fenced
    assert await desk.tallied() == [1, 1]


# --- several queues


@pytest.mark.parametrize("wakes_anew", [False, True])
async def test_a_stream_that_came_into_another_queue_loses_nothing(
    desk: Desk, wakes_anew: bool
) -> None:
    await desk.deliver((100, 1), (101, 2), queue="of 8/5")
    if wakes_anew:
        await desk.reader.stop()
    await desk.deliver((1, 3), (2, 4), queue="of 16/13", epoch=1)
    await desk.deliver((101, 2), (102, 5), queue="of 8/5")
    assert await desk.tallied() == [1, 2, 3, 4, 5]


async def test_plain_handlers_have_a_position_in_each_queue_too(desk: Desk) -> None:
    plain: dict[str, Any] = {"handler": "on_plain", "namespace": "plain"}
    await desk.deliver((100, 1), queue="q1", **plain)
    await desk.deliver((1, 2), queue="q2", **plain)
    await desk.deliver((100, 1), (101, 3), queue="q1", **plain)
    assert SEEN["plain"] == [1, 2, 3]


async def test_a_rewind_goes_back_in_its_own_queue_only(desk: Desk) -> None:
    plain: dict[str, Any] = {"handler": "on_plain", "namespace": "plain"}
    await desk.deliver((1, 1), queue="q1", **plain)
    await desk.deliver((1, 2), queue="q2", **plain)
    await desk.deliver((1, 1), queue="q1", rewinds=True, **plain)
    await desk.deliver((1, 2), queue="q2", **plain)
    assert SEEN["plain"] == [1, 2, 1]


# --- stored positions


@pytest.mark.parametrize("how", ["write", "changed", "clear", "task"])
async def test_a_handler_cannot_write_the_state_that_is_committed_with_its_position(
    desk: Desk, how: str
) -> None:
    """The write would store the effect of the event without its position."""
    await desk.deliver((1, how), handler="on_written", namespace="written")
    (text,) = SEEN["refused"]
    assert text.startswith("state `tally`: Reader.on_written has commit_with=tally")
    assert await desk.tallied() == [1]
    await desk.reader.clear()  # the handler has ended
    assert await desk.tallied() == []


async def test_two_streams_into_one_state_keep_each_others_position(desk: Desk) -> None:
    other: dict[str, Any] = {"handler": "on_other", "namespace": "others"}
    await desk.deliver((1, 1))
    await desk.deliver((1, 10), **other)
    await desk.deliver((2, 2))
    await desk.reader.stop()
    await desk.deliver((1, 1), (2, 2), (3, 3))
    await desk.deliver((1, 10), (2, 20), **other)
    assert await desk.tallied() == [1, 10, 2, 3, 20]


async def test_clear_keeps_the_positions_of_every_handler(desk: Desk) -> None:
    other: dict[str, Any] = {"handler": "on_other", "namespace": "others"}
    await desk.deliver((1, 1), (2, 2))
    await desk.deliver((1, 10), **other)
    await desk.reader.clear()
    await desk.deliver((1, 1), (2, 2), (3, 3))
    await desk.reader.stop()
    await desk.deliver((3, 3), (4, 4))
    await desk.deliver((1, 10), (2, 20), **other)
    assert await desk.tallied() == [3, 4, 20]


async def test_a_position_in_the_older_form_of_the_row_holds_for_the_queue_that_comes(
    desk: Desk,
) -> None:
    subscription = "implicit/counted/Reader/on_counted"
    await desk.deliver((5, 5))
    ((key, row),) = [
        found
        for found in await desk.store.scan("", "", 100)
        if subscription.encode() in found[1].data
    ]
    value, cursors = msgspec.msgpack.decode(row.data)
    assert cursors == {subscription: {"q1": [1, 5, 0]}}
    await desk.reader.stop()
    old = msgspec.msgpack.encode([value, {subscription: [1, 5, 0]}])
    await desk.store.write(key, old, row.etag, row.fence)
    await desk.deliver((4, 4), (5, 5), (6, 6))
    assert await desk.tallied() == [5, 6]
    found = await desk.store.read(key)
    assert found is not None
    assert msgspec.msgpack.decode(found.data)[1] == {subscription: {"q1": [1, 6, 0]}}


# --- items of handlers


async def test_items_of_a_union_arrive_as_what_they_are(desk: Desk) -> None:
    items: Sequence[Started | Ended] = [Started(1), Ended(2)]
    await desk.silo.stream(MOVES, KEY).publish_many(items)
    while len(SEEN["moves"]) < 2:
        await desk.silo.grain(Reader, KEY).tallied()
    assert SEEN["moves"] == items


# --- necessary promises of a provider


class Unsure(MemoryQueues):
    """Promises less than it keeps."""

    lacking: frozenset[Capability] = frozenset()

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        known = {*MemoryQueues().capabilities, Capability.OWN_POSITION}
        return frozenset(known - self.lacking - {Capability.REWIND})  # which needs both


@pytest.mark.parametrize("lacking", [Capability.ORDERED, Capability.STABLE_TOKENS])
async def test_commit_with_is_refused_where_tokens_are_no_positions(lacking: Capability) -> None:
    queues = Unsure()
    queues.lacking = frozenset({lacking})
    streams = PersistentStreams(queues, balancer=DeploymentBalancer())
    match = rf"Reader\.on_counted: commit_with .* 'default' lacks {lacking.name}"
    with pytest.raises(ConfigError, match=match):
        async with Silo(grains=[Reader], streams={"default": streams}):
            raise AssertionError("started")


# --- an activation that moves to another silo

HELD = StreamNamespace("held", int)
EVENTS: dict[int, Event[int]] = {}


class Traveller(Grain):
    tally = state(list[int])

    @subscribe(PLAIN)
    async def on_plain(self, event: Event[int]) -> None:
        SEEN["travels"].append(event.item)

    @subscribe(COUNTED, commit_with=tally)
    async def on_counted(self, event: Event[int]) -> None:
        self.tally.value.append(event.item)

    @subscribe(HELD, ack="manual")
    async def on_held(self, event: Event[int]) -> None:
        SEEN["travels"].append(event.item)
        EVENTS[event.item] = event

    async def acknowledge(self, item: int) -> None:
        await self.context.ack(EVENTS[item])

    async def tallied(self) -> list[int]:
        return self.tally.value

    async def silo(self) -> str:
        return self.context.silo

    async def leave(self, *, is_moving: bool) -> None:
        if is_moving:
            self.context.migrate_when_idle()
        else:
            self.context.deactivate_when_idle()


class Journey:
    """A cluster of two silos, and deliveries to the grain `Traveller/a`, like those of an agent."""

    def __init__(self, silo: Silo) -> None:
        self._silo = silo
        self.reader = silo.grain(Traveller, "a")

    async def deliver(self, name: str, *items: int, **more: Any) -> Delivered:
        batch = WireBatch(
            f"implicit/{name}/Traveller/on_{name}",
            f"on_{name}",
            name,
            "a",
            "q1",
            more.pop("epoch", 1),
            1,
            False,
            [Item(Token(1, item), msgspec.msgpack.encode(item)) for item in items],
            **more,
        )
        deliver = self._silo.services.extensions.method("Traveller", ConsumerExtension.deliver, 5.0)
        return await deliver("a", batch)

    async def leave(self, *, is_moving: bool) -> None:
        before = await self.reader.silo()
        await self.reader.leave(is_moving=is_moving)
        if is_moving:
            assert await self.reader.silo() != before
        else:
            await until(lambda: not self._silo.assembly.catalog.find("Traveller", "a"))


@pytest.fixture
async def journey() -> AsyncIterator[Journey]:
    def streams() -> PersistentStreams:
        return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())

    async with LocalCluster(silos=2, grains=[Traveller], streams={"default": streams}) as cluster:
        yield Journey(cluster.silos[0])


@pytest.mark.parametrize("is_moving", [True, False])
async def test_handled_events_are_not_handled_again(journey: Journey, is_moving: bool) -> None:
    """Another activation has no positions of plain handlers."""
    await journey.deliver("plain", 1, 2)
    await journey.leave(is_moving=is_moving)
    assert (await journey.deliver("plain", 1, 2, 3)).done == 3
    assert SEEN["travels"] == ([1, 2, 3] if is_moving else [1, 2, 1, 2, 3])


async def test_positions_move_twice_even_if_nothing_was_delivered_between(journey: Journey) -> None:
    await journey.deliver("plain", 1, 2)
    await journey.leave(is_moving=True)
    await journey.leave(is_moving=True)
    assert (await journey.deliver("plain", 1, 2, 3)).done == 3
    assert SEEN["travels"] == [1, 2, 3]


async def test_the_epochs_of_queues_move(journey: Journey) -> None:
    await journey.deliver("plain", 1, epoch=5)
    await journey.leave(is_moving=True)
    assert (await journey.deliver("plain", 2, epoch=4)).is_fenced


async def test_positions_in_a_state_move_with_the_state(journey: Journey) -> None:
    await journey.deliver("counted", 1, 2)
    await journey.leave(is_moving=True)
    assert (await journey.deliver("counted", 1, 2, 3)).done == 3
    assert await journey.reader.tallied() == [1, 2, 3]


async def test_events_that_are_not_acknowledged_by_hand_are_delivered_again(
    journey: Journey,
) -> None:
    by_hand = ByHand("", "default")
    await journey.deliver("held", 1, 2, 3, by_hand=by_hand)
    await journey.reader.acknowledge(1)
    await journey.leave(is_moving=True)
    anew = ByHand("", "default", unacked_from=Token(1, 2))
    assert (await journey.deliver("held", 4, by_hand=anew)).is_anew
    reply = await journey.deliver("held", 1, 2, 3, 4, by_hand=by_hand)
    assert (reply.done, reply.acked) == (4, Token(1, 1))
    assert SEEN["travels"] == [1, 2, 3, 2, 3, 4]
