"""A stream whose subscriptions are being looked up: later changes win over the answer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Collection
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.conditions import spin, until
from tests.streams.agent.cursors import restored

from millstream.runtime.extending import Tasks
from millstream.runtime.repeated import LINES_MAX
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, StreamId, Token
from millstream.streams.agent.audience import cold_streams
from millstream.streams.agent.audience.newcomers import Newcomers
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.losses import Loss
from millstream.streams.agent.subscribers import Subscribers
from millstream.streams.api.implicit import ImplicitSet, ImplicitSubscription
from millstream.streams.api.subscription_rows import SubscriptionRow, stream_row
from millstream.streams.ownership.record import ListedSubscription

STREAM = StreamId("notes", "a")
MESSAGE = QueueMessage(STREAM, Token(1, 1), [b"\x01"])


def row(subscription: str) -> SubscriptionRow:
    return SubscriptionRow(
        id=subscription,
        grain_type="Reader",
        grain_key="r",
        handler="_on_note",
        is_batch=False,
        start="next",
    )


class Desk:
    """Subscribers of one queue whose rendezvous grain answers when the test decides."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[SubscriptionRow]] = (
            asyncio.get_running_loop().create_future()
        )
        self.offered: list[str] = []
        self.moved: list[Token | None] = []
        self.released: list[int] = []
        self.implicit = ImplicitSet()
        clock: Any = SimpleNamespace(now=asyncio.get_running_loop().time, wall_s=lambda: 0.0)
        cache: Any = SimpleNamespace(release=self.release, unheard={}, unheard_count=0)
        deliveries: Any = self
        dispatch: Any = self
        self.laggards = LaggingCursors(QueueCache(CacheLimits()), is_used=True)
        self.subscribers = Subscribers(
            cache,
            self.laggards,
            deliveries,
            dispatch,
            self,
            Newcomers(DeliveryOptions()),
            progressed=lambda: None,
            clock=clock,
            tasks=Tasks(asyncio.get_running_loop(), Context),
        )

    def release(self, slot: Slot) -> None:
        self.released.append(slot.index)

    async def rows_of(self, streams: Collection[StreamId]) -> dict[StreamId, list[SubscriptionRow]]:
        rows = await self.answer
        return {stream: rows for stream in streams}

    async def read_held(self, namespace: str) -> list[tuple[StreamId, SubscriptionRow]]:
        return []

    def offer(self, subscriber: Subscriber, slot: Slot) -> None:
        self.offered.append(subscriber.id + " held" * subscriber.is_held)

    def retry(self, subscriber: Subscriber) -> None: ...

    def move(self, subscriber: Subscriber, after: Token | None) -> None:
        self.moved.append(after)

    def begin(self, subscriber: Subscriber, start: Token) -> None: ...

    def restore(self, subscriber: Subscriber) -> None: ...

    def start_lagging(self, subscriber: Subscriber) -> None: ...

    def on_acked(self, subscriber: Subscriber, upto: Token) -> None: ...
    def follow(self, subscriber: Subscriber, made_anew: Subscriber) -> None:
        subscriber.follow(made_anew)

    def hold(self, subscriber: Subscriber) -> None: ...

    def pump(self) -> None: ...

    async def answers(self, *rows: SubscriptionRow) -> list[str]:
        """Let the rendezvous grain answer; return the subscriptions that are offered the
        message."""
        self.answer.set_result(list(rows))
        for _ in range(5):
            await asyncio.sleep(0)
        self.subscribers.close()
        assert self.released == [0]
        return self.offered


async def test_a_cold_stream_waits_for_its_subscriptions() -> None:
    desk = Desk()
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await asyncio.sleep(0)
    assert desk.offered == [] and desk.released == []
    assert await desk.answers(row("one"), row("two")) == ["one", "two"]


class Watched(QueueMessage, frozen=True, weakref=True):
    """A message whose last reference can be observed."""


async def test_an_idle_stream_does_not_keep_its_last_event() -> None:
    desk = Desk()
    message = Watched(STREAM, Token(1, 1), (b"x" * 1_000, b"y"), {})
    seen = weakref.ref(message)
    desk.subscribers.route(Slot(message, 0, None))
    del message
    assert await desk.answers(row("one")) == ["one"]
    gc.collect()
    assert seen() is None
    desk.subscribers.attach(STREAM, msgspec.structs.replace(row("one"), start="next"))
    assert desk.moved == [Token(1, 1, 1)]  # after the last of its items


@pytest.mark.parametrize(
    ("told", "is_to_hear"),
    [("here", True), ("held", True), ("next", False), ("earliest", False)],
)
async def test_what_is_told_of_while_it_is_asked_for_hears_of_a_loss_unless_it_goes_elsewhere(
    told: str, is_to_hear: bool
) -> None:
    desk = Desk()
    desk.subscribers.on_lost(loss := Loss(Token(1, 0), Token(1, 1)))
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await asyncio.sleep(0)
    if told == "held":
        desk.subscribers.hold(STREAM, row("one"))
    else:
        desk.subscribers.attach(STREAM, msgspec.structs.replace(row("one"), start=told))
    await desk.answers(row("one"), row("two"))
    subscribers = desk.subscribers.of(STREAM)
    assert subscribers is not None
    assert {one.id: one.gaps for one in subscribers} == {
        "one": (loss,) if is_to_hear else (),
        "two": (loss,),
    }


async def test_what_was_removed_while_it_was_asked_for_stays_removed() -> None:
    desk = Desk()
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await asyncio.sleep(0)
    desk.subscribers.detach(STREAM, "one")
    assert await desk.answers(row("one"), row("two")) == ["two"]


async def test_what_was_removed_and_made_again_meanwhile_is_there() -> None:
    desk = Desk()
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await asyncio.sleep(0)
    desk.subscribers.detach(STREAM, "one")
    desk.subscribers.attach(STREAM, row("one"))
    assert await desk.answers(row("one")) == ["one"]


async def test_what_was_paused_while_it_was_asked_for_is_paused() -> None:
    desk = Desk()
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await asyncio.sleep(0)
    desk.subscribers.hold(STREAM, row("one"))
    desk.subscribers.hold(STREAM, row("two"))
    desk.subscribers.attach(STREAM, msgspec.structs.replace(row("two"), start="here"))
    paused = msgspec.structs.replace(row("two"), state="paused")
    assert await desk.answers(row("one"), paused) == ["one held", "two"]


async def test_what_was_paused_is_not_held_when_it_goes_on_with_the_next_event() -> None:
    desk = Desk()
    restored(desk.laggards, ListedSubscription(*STREAM, "one", Token(0, 1)), Token(0, 1))
    desk.subscribers.expect()
    desk.answer.set_result([msgspec.structs.replace(row("one"), state="paused")])
    await spin(10)
    known = desk.subscribers.of(STREAM)
    assert known is not None and [one.is_held for one in known] == [True]
    desk.subscribers.attach(STREAM, row("one"))
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    assert desk.offered == ["one"]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_all_of_a_stream_is_held_while_it_is_paused_and_until_that_is_known(
    is_stored: bool,
) -> None:
    desk = Desk()
    desk.subscribers.attach(STREAM, msgspec.structs.replace(row("one"), start="earliest"))
    stream = stream_row(STREAM)
    if not is_stored:
        desk.subscribers.hold(STREAM, stream)
        assert desk.subscribers.of(STREAM) is None
    pause = [msgspec.structs.replace(stream, state="paused")] if is_stored else []
    desk.answer.set_result([row("one"), *pause, row("two")])
    await spin(10)
    desk.subscribers.attach(STREAM, row("three"))
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    assert desk.offered == ["one held", "two held", "three held"]
    desk.subscribers.attach(STREAM, stream)
    await desk.subscribers.follow(STREAM)
    desk.offered.clear()
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    assert desk.offered == ["one", "two", "three"]
    await desk.subscribers.follow(StreamId("nobody", "knows"))


async def test_a_lookup_that_raises_anything_is_asked_again_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_streams, "ASK_RETRY_S", 0)
    desk = Desk()
    answers: list[Exception | list[SubscriptionRow]] = [
        KeyError("other"),
        *(RuntimeError("no such provider") for _ in range(100)),
        [row("one")],
    ]

    async def rows_of(streams: Collection[StreamId]) -> dict[StreamId, list[SubscriptionRow]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {stream: answer for stream in streams}

    monkeypatch.setattr(desk, "rows_of", rows_of)
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await until(lambda: desk.offered == ["one"])
    desk.subscribers.close()
    said = [r.getMessage() for r in caplog.records if "notes/a" in r.getMessage()]
    assert "KeyError: 'other'" in said[0] and "RuntimeError: no such provider" in said[1]
    assert len(said) == LINES_MAX


async def test_a_mark_that_says_other_limits_is_followed_by_those_that_it_has_made() -> None:
    desk = Desk()

    def mark(retries: int | None) -> ImplicitSet:
        one = ImplicitSubscription("default", "notes", "both", "Reader", "on", retries, True)
        return ImplicitSet({"notes": {one.subscription: one}})

    desk.implicit = mark(None)
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await desk.answers()
    (subscriber,) = list(desk.subscribers.of(STREAM) or ())
    assert subscriber.options.retries == DeliveryOptions().retries
    desk.implicit = mark(9)
    desk.subscribers.follow_implicit()
    assert list(desk.subscribers.of(STREAM) or ()) == [subscriber]
    assert subscriber.options.retries == 9


async def test_a_question_that_is_never_answered_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_streams, "ASK_LIMIT_S", 0.001)
    monkeypatch.setattr(cold_streams, "ASK_RETRY_S", 0.0)
    desk = Desk()
    asked: list[StreamId] = []

    async def rows_of(streams: Collection[StreamId]) -> dict[StreamId, list[SubscriptionRow]]:
        asked.extend(streams)
        if len(asked) < 3:
            await asyncio.Event().wait()
        return {stream: [row("s")] for stream in streams}

    monkeypatch.setattr(desk, "rows_of", rows_of)
    desk.subscribers.route(Slot(MESSAGE, 0, None))
    await until(lambda: desk.offered == ["s"])
    assert asked == [STREAM] * 3
    desk.subscribers.close()


async def test_streams_that_are_met_in_one_turn_are_asked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_streams, "ASK_RETRY_S", 0)
    desk, asked = Desk(), list[list[str]]()

    async def rows_of(streams: Collection[StreamId]) -> dict[StreamId, list[SubscriptionRow]]:
        asked.append([stream.key for stream in streams])
        if any(stream.key == "b" for stream in streams) and len(asked) < 6:
            raise ValueError("a row of b cannot be decoded")
        return {stream: [row(f"{stream.key}-reader")] for stream in streams}

    monkeypatch.setattr(desk, "rows_of", rows_of)
    for index, key in enumerate("abc"):
        message = QueueMessage(StreamId("notes", key), Token(1, index), [b"x"])
        desk.subscribers.route(Slot(message, index, None))
    await until(lambda: len(desk.offered) == 3)
    desk.subscribers.close()
    assert asked[:4] == [["a", "b", "c"], ["a"], ["b"], ["c"]] and desk.released == [0, 2, 1]
    assert desk.offered == ["a-reader", "c-reader", "b-reader"]


async def test_stopped_subscriptions_of_namespaces_are_read_in_the_order_of_the_messages() -> None:
    """The order must not depend on hashes of names, because simulated runs are repeated."""
    desk = Desk()
    names = [f"notes-{number}" for number in range(9)]
    marks = [
        ImplicitSubscription("default", name, "implicit", "Reader", "on", None, True)
        for name in names
    ]
    desk.implicit = ImplicitSet({one.namespace: {one.subscription: one} for one in marks})
    read: list[str] = []

    async def read_held(namespace: str) -> list[tuple[StreamId, SubscriptionRow]]:
        read.append(namespace)
        return []

    desk.read_held = read_held  # type: ignore[method-assign]
    for index, name in enumerate(names):
        message = QueueMessage(StreamId(name, "a"), Token(1, index + 1), [b"\x01"])
        desk.subscribers.route(Slot(message, index, None))
    await until(lambda: len(desk.offered) == len(names))
    assert read == names
    desk.subscribers.close()
