"""Acknowledging by hand in the grain's silo: accepted and refused calls, and answers to the
agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    DefinitionError,
    Grain,
    MemoryStateStore,
    Silo,
    state,
)
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

KEPT = StreamNamespace("kept", int)
LISTS = StreamNamespace("lists", int)
PLAIN = StreamNamespace("plain", int)
SEEN: list[int] = []
BAD: set[int] = set()
EVENTS: dict[int, Event[int]] = {}
GATE: list[asyncio.Event] = []
BESIDE: list[int] = []  # acknowledged in the background of the next handler call
KEY = "a"


@dataclass
class Tally:
    items: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BAD.clear()
    EVENTS.clear()
    GATE.clear()
    BESIDE.clear()


class Keeper(Grain):
    @subscribe(KEPT, ack="manual")
    async def on_kept(self, event: Event[int]) -> None:
        SEEN.append(event.item)
        EVENTS[event.item] = event
        if event.item in BAD:
            raise ValueError(event.item)
        if event.item % 5 == 0:
            await self.context.ack(event)
        if BESIDE:
            self.context.create_task(self._acknowledge(BESIDE.pop()))
            await asyncio.sleep(0)
        if GATE:
            await GATE[0].wait()

    @subscribe(LISTS, ack="manual", batch=True)
    async def on_lists(self, events: list[Event[int]]) -> None:
        SEEN.extend(event.item for event in events)
        await self.context.ack(events[-1])

    @subscribe(PLAIN)
    async def on_plain(self, event: Event[int]) -> None:
        EVENTS[event.item] = event

    async def acknowledge(self, item: int) -> None:
        await self._acknowledge(item)

    async def _acknowledge(self, item: int) -> None:
        await self.context.ack(EVENTS[item])

    async def acknowledge_what_never_came(self) -> None:
        await self.context.ack(msgspec.structs.replace(EVENTS[1], token=Token(9, 9)))


class Desk:
    """A silo, and deliveries to one of its grains, like those of an agent in another silo."""

    def __init__(self, silo: Silo) -> None:
        self.silo = silo
        self.keeper = silo.grain(Keeper, KEY)
        self.told: list[int] = []

    async def deliver(
        self,
        *seqs: int,
        after: int | None = None,
        namespace: str = "kept",
        queue: str = "q",
        era: int = 1,
        **more: Any,
    ) -> Delivered:
        by_hand = ByHand(self.silo.address, "default", None if after is None else Token(era, after))
        batch = WireBatch(
            f"implicit/{namespace}/Keeper/on_{namespace}",
            f"on_{namespace}",
            namespace,
            KEY,
            queue,
            1,
            1,
            False,
            [Item(Token(era, seq), msgspec.msgpack.encode(seq)) for seq in seqs],
            by_hand=None if namespace == "plain" else by_hand,
            **more,
        )
        deliver = self.silo.services.extensions.method("Keeper", ConsumerExtension.deliver, 5.0)
        found: Delivered = await deliver(KEY, batch)
        return found


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    stores = {"default": MemoryStateStore()}
    async with Silo(grains=[Keeper], stores=stores, streams={"default": streams}) as silo:
        desk = Desk(silo)

        async def tell(silo: str, queue: str, stream: Any, subscription: str, upto: Token) -> bool:
            desk.told.append(upto.seq)
            await asyncio.sleep(0)
            return True

        monkeypatch.setattr(streams.ack_calls, "tell", tell)
        yield desk


async def test_what_is_acknowledged_while_the_handler_runs_goes_with_the_reply(desk: Desk) -> None:
    reply = await desk.deliver(1, 2, 3)
    assert (reply.done, reply.acked) == (3, None)
    reply = await desk.deliver(4, 5, 6, after=1)
    assert (reply.done, reply.acked) == (3, Token(1, 5))
    assert desk.told == []


async def test_what_is_acknowledged_later_is_told_once_and_the_newest_wins(desk: Desk) -> None:
    await desk.deliver(1, 2, 3, 4)
    await asyncio.gather(*(desk.keeper.acknowledge(item) for item in (1, 2, 3, 1, 2)))
    await until(lambda: desk.told[-1:] == [3])
    await desk.keeper.acknowledge(3)
    await desk.keeper.acknowledge(2)
    await asyncio.sleep(0)
    assert desk.told == sorted(set(desk.told)) and len(desk.told) <= 3


async def test_what_is_acknowledged_by_another_turn_while_one_runs_goes_with_the_reply(
    desk: Desk,
) -> None:
    await desk.deliver(1, 2)
    GATE.append(asyncio.Event())
    running = asyncio.create_task(desk.deliver(3, after=1))
    await until(lambda: 3 in SEEN)
    consumer_ack = asyncio.create_task(desk.keeper.acknowledge(2))
    GATE[0].set()
    await consumer_ack
    reply = await running
    assert reply.acked in (None, Token(1, 2))
    await until(lambda: reply.acked is not None or desk.told == [2])


async def test_what_is_acknowledged_is_answered_without_running_and_the_rest_runs_again(
    desk: Desk,
) -> None:
    await desk.deliver(4, 5, 6)
    reply = await desk.deliver(4, 5)
    assert (reply.done, reply.acked) == (2, Token(1, 5))
    reply = await desk.deliver(5, 6, 7, after=5)
    assert (reply.done, reply.acked) == (3, Token(1, 5))
    assert SEEN == [4, 5, 6, 6, 7]


async def test_what_is_acknowledged_while_it_comes_again_is_left_out_of_the_rest(
    desk: Desk,
) -> None:
    await desk.deliver(1, 2, 3, 4)
    BESIDE.append(3)
    reply = await desk.deliver(1, 2, 3, 4)
    assert SEEN == [1, 2, 3, 4, 1, 4]
    assert (reply.done, reply.acked) == (4, Token(1, 3))


async def test_an_activation_takes_nothing_in_the_middle_of_what_another_one_had(
    desk: Desk,
) -> None:
    for _ in range(2):  # even if the first answer is lost
        reply = await desk.deliver(3, after=1)
        assert (reply.done, reply.is_anew, reply.error) == (0, True, b"")
    assert SEEN == []
    assert (await desk.deliver(1, 2, 3)).done == 3 and SEEN == [1, 2, 3]


async def test_a_handler_that_fails_tells_what_was_acknowledged_before(desk: Desk) -> None:
    BAD.add(6)
    reply = await desk.deliver(4, 5, 6)
    assert (reply.done, bool(reply.error), reply.acked) == (2, True, Token(1, 5))


async def test_lists_are_acknowledged_too(desk: Desk) -> None:
    reply = await desk.deliver(1, 2, 3, namespace="lists")
    assert (reply.done, reply.acked) == (3, Token(1, 3))


async def test_a_move_back_forgets_what_was_acknowledged(desk: Desk) -> None:
    await desk.deliver(4, 5)
    reply = await desk.deliver(4, rewinds=True)
    assert (reply.done, reply.acked) == (1, None) and SEEN == [4, 5, 4]


async def test_an_event_of_a_later_queue_acknowledges_those_of_the_former_one(desk: Desk) -> None:
    await desk.deliver(1, 2, queue="old")
    await desk.deliver(3, queue="new", era=2)
    await desk.keeper.acknowledge(3)
    await until(lambda: sorted(desk.told) == [2, 3])


async def test_what_is_not_its_own_is_refused_by_name(desk: Desk) -> None:
    await desk.deliver(1)
    with pytest.raises(ValueError, match="was not delivered to this activation"):
        await desk.keeper.acknowledge_what_never_came()
    await desk.deliver(7, namespace="plain")
    with pytest.raises(ValueError, match="implicit/plain/Keeper/on_plain has no manual"):
        await desk.keeper.acknowledge(7)


# --- definitions


def test_what_does_not_go_with_acknowledging_by_hand_is_refused() -> None:
    def with_commit() -> None:
        class Bad(Grain):
            tally = state(Tally)

            @subscribe(KEPT, ack="manual", commit_with=tally)
            async def on_kept(self, event: Event[int]) -> None: ...

    def with_where() -> None:
        class Bad(Grain):
            @subscribe(KEPT, ack="manual", where=lambda event: event.item > 3)
            async def on_kept(self, event: Event[int]) -> None: ...

    def unknown() -> None:
        class Bad(Grain):
            @subscribe(KEPT, ack="later")  # type: ignore[call-overload, untyped-decorator]
            async def on_kept(self, event: Event[int]) -> None: ...

    for define, word in (
        (with_commit, "commit_with acknowledges the events that it has written"),
        (with_where, "the events that the filter drops"),
        (unknown, "ack is 'later': write 'auto' or 'manual'"),
    ):
        with pytest.raises(DefinitionError, match=word):
            define()


class Unordered(MemoryQueues):
    capabilities = frozenset({Capability.OWN_POSITION, Capability.ITEM_ACK})


async def test_a_provider_without_positions_is_refused() -> None:
    streams = PersistentStreams(Unordered(), balancer=DeploymentBalancer())
    silo = Silo(
        grains=[Keeper], stores={"default": MemoryStateStore()}, streams={"default": streams}
    )
    with pytest.raises(ConfigError, match='Keeper.on_.*ack="manual" needs ORDERED and STABLE'):
        await silo.start()
