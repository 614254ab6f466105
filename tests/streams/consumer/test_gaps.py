"""A gap is reported with the first event after it, to its handler, within the same commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import DefinitionError, Grain, MemoryStateStore, Silo, state
from millstream.streams import (
    Event,
    Gap,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    Token,
    on_gap,
    subscribe,
)
from millstream.streams.consumer.batch import Delivered, WireBatch
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.consumer.news import methods_of
from millstream.streams.consumer.on_gap import GapMark
from millstream.streams.contracts.item import Item

PLAIN = StreamNamespace("plain", int)
COUNTED = StreamNamespace("counted", int)
MUTE = StreamNamespace("mute", int)
TALK = StreamNamespace("talk", int)
ONLY_MARKS = StreamNamespace("only_marks", int, subscriptions="implicit")
SEEN: list[Any] = []
BAD: list[Any] = []
GIVEN_UP: list[str] = []
KEY = "a"


@dataclass
class Tally:
    items: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BAD.clear()


def note(what: Any) -> None:
    SEEN.append(what)
    if what in BAD:
        BAD.remove(what)
        raise ValueError(what)


class Reader(Grain):
    tally = state(Tally)

    @subscribe(PLAIN, give_up_on=(ValueError,))
    async def on_plain(self, event: Event[int]) -> None:
        note(event.item)

    @on_gap(PLAIN)
    async def plain_gap(self, gap: Gap) -> None:
        note(gap)

    @subscribe(COUNTED, commit_with=tally)
    async def on_counted(self, event: Event[int]) -> None:
        self.tally.value.items.append(str(event.item))
        note(event.item)

    @on_gap(COUNTED)
    async def counted_gap(self, gap: Gap) -> None:
        self.tally.value.items.append("gap")
        note(gap)

    @subscribe(MUTE)
    async def on_mute(self, event: Event[int]) -> None:
        note(event.item)

    async def tallied(self) -> list[str]:
        return self.tally.value.items


def token(seq: int) -> Token:
    return Token(1, seq)


def gap(after: int | None, first: int, namespace: str = "plain") -> Gap:
    subscription = f"implicit/{namespace}/Reader/on_{namespace}"
    place = None if after is None else token(after)
    return Gap(StreamId(namespace, KEY), subscription, place, token(first))


class Desk:
    """A silo, and deliveries to one of its grains, like those of an agent."""

    def __init__(self, silo: Silo) -> None:
        self.silo = silo
        self.reader = silo.grain(Reader, KEY)

    async def deliver(
        self, *seqs: int, gap: tuple[int | None, int], namespace: str = "plain", **more: Any
    ) -> Delivered:
        after, first = gap
        batch = WireBatch(
            f"implicit/{namespace}/Reader/on_{namespace}",
            f"on_{namespace}",
            namespace,
            KEY,
            "q",
            1,
            1,
            False,
            [Item(token(seq), msgspec.msgpack.encode(seq)) for seq in seqs],
            gap=(None if after is None else token(after), token(first)),
            **more,
        )
        deliver = self.silo.services.extensions.method("Reader", ConsumerExtension.deliver, 5.0)
        return await deliver(KEY, batch)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    stores = {"default": MemoryStateStore()}
    async with Silo(grains=[Reader], stores=stores, streams={"default": streams}) as silo:
        yield Desk(silo)


async def test_a_gap_is_told_before_the_event_that_follows(desk: Desk) -> None:
    assert (await desk.deliver(10, 11, gap=(4, 10))).done == 2
    assert SEEN == [gap(4, 10), 10, 11]


async def test_a_gap_handler_that_fails_gets_the_gap_again_with_the_event(desk: Desk) -> None:
    BAD.append(gap(4, 10))
    reply = await desk.deliver(10, 11, gap=(4, 10))
    assert reply.done == 0 and reply.error
    assert not reply.is_final  # `give_up_on` is for the event's own handler
    assert (await desk.deliver(10, 11, gap=(4, 10))).done == 2
    assert SEEN == [gap(4, 10), gap(4, 10), 10, 11]


async def test_an_event_that_fails_behind_a_gap_gets_both_again(desk: Desk) -> None:
    BAD.append(10)
    reply = await desk.deliver(10, gap=(4, 10))
    assert reply.done == 0 and reply.is_final
    await desk.deliver(10, gap=(4, 10))
    assert SEEN == [gap(4, 10), 10, gap(4, 10), 10]


async def test_what_was_told_is_not_told_again_after_a_lost_reply(desk: Desk) -> None:
    await desk.deliver(10, 11, gap=(4, 10))
    assert (await desk.deliver(10, 11, 12, gap=(4, 10))).done == 3
    assert SEEN == [gap(4, 10), 10, 11, 12]


async def test_a_gap_begins_behind_the_last_event_that_is_known(desk: Desk) -> None:
    await desk.deliver(2, gap=(None, 1))
    await desk.deliver(10, gap=(4, 10))
    assert SEEN == [gap(None, 1), 2, gap(2, 10), 10]


async def test_without_positions_every_gap_is_told(desk: Desk) -> None:
    await desk.deliver(10, gap=(None, 10), has_positions=False)
    await desk.deliver(3, gap=(None, 3), has_positions=False)
    assert SEEN == [gap(None, 10), 10, gap(None, 3), 3]


async def test_a_grain_without_a_gap_handler_goes_on(desk: Desk) -> None:
    assert (await desk.deliver(10, gap=(4, 10), namespace="mute")).done == 1
    assert SEEN == [10]


async def test_what_a_gap_handler_changes_is_written_with_the_events_behind(desk: Desk) -> None:
    told = gap(4, 10, "counted")
    BAD.append(told)
    assert (await desk.deliver(10, 11, gap=(4, 10), namespace="counted")).done == 0
    assert await desk.reader.tallied() == []
    BAD.append(10)
    assert (await desk.deliver(10, 11, gap=(4, 10), namespace="counted")).done == 0
    assert await desk.reader.tallied() == []
    BAD.append(11)
    assert (await desk.deliver(10, 11, gap=(4, 10), namespace="counted")).done == 1
    assert await desk.reader.tallied() == ["gap", "10"]
    await desk.deliver(11, gap=(4, 10), namespace="counted")
    assert await desk.reader.tallied() == ["gap", "10", "11"]


# --- definitions


def refused(define: Any, *words: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        define()
    text = str(caught.value)
    assert __file__ in text and all(word in text for word in words), text


def test_a_gap_handler_is_async_and_takes_a_gap() -> None:
    def not_async() -> None:
        class Bad(Grain):
            @on_gap(PLAIN)  # type: ignore[arg-type]
            def lost(self, gap: Gap) -> None: ...

    def takes_an_event() -> None:
        class Bad(Grain):
            @on_gap(PLAIN)  # type: ignore[arg-type]
            async def lost(self, gap: Event[int]) -> None: ...

    def takes_two() -> None:
        class Bad(Grain):
            @on_gap(PLAIN)  # type: ignore[arg-type]
            async def lost(self, gap: Gap, more: int) -> None: ...

    def says_nothing() -> None:
        class Bad(Grain):
            @on_gap(PLAIN)
            async def lost(self, gap) -> None: ...  # type: ignore[no-untyped-def]

    refused(not_async, "Bad.lost", "async def")
    refused(takes_an_event, "Bad.lost", "`gap: Gap`, not Event[int]")
    refused(takes_two, "Bad.lost", "one argument")
    refused(says_nothing, "Bad.lost", "`gap: Gap`, not nothing")


def test_a_class_has_one_gap_handler_for_streams_of_a_name() -> None:
    def twice() -> None:
        class Bad(Grain):
            @on_gap(PLAIN)
            async def lost(self, gap: Gap) -> None: ...

            @on_gap(PLAIN)
            async def lost_too(self, gap: Gap) -> None: ...

    refused(twice, "`lost_too` already handles gaps of streams named 'plain'")


def test_a_gap_handler_is_for_a_namespace_that_is_subscribed_to() -> None:
    def unheard() -> None:
        class Bad(Grain):
            @on_gap(ONLY_MARKS)
            async def lost(self, gap: Gap) -> None: ...

    def no_namespace() -> None:
        class Bad(Grain):
            @on_gap("plain")  # type: ignore[arg-type]
            async def lost(self, gap: Gap) -> None: ...

    def no_parentheses() -> None:
        class Bad(Grain):
            @on_gap  # type: ignore[arg-type]
            async def lost(self, gap: Gap) -> None: ...  # type: ignore[misc]

    refused(unheard, "Bad has no method with `@subscribe(StreamNamespace('only_marks'))`")
    refused(no_namespace, "takes a namespace")
    refused(no_parentheses, "`@on_gap(NAMESPACE)`")


class Base(Grain):
    @on_gap(TALK)
    async def lost(self, gap: Gap) -> None: ...


class Derived(Base):
    async def lost(self, gap: Gap) -> None: ...


def test_a_gap_handler_may_be_inherited_and_is_not_callable_from_outside() -> None:
    assert methods_of(Derived, GapMark, "talk") == ["lost"]
    assert methods_of(Derived, GapMark, "plain") == []
