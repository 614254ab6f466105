"""Streams as a user writes them: namespaces, handlers, publishing, explicit subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_type

from millstream.runtime import (
    Acknowledgeable,
    Grain,
    PublishUnknown,
    QueueFull,
    Runtime,
    State,
    StreamError,
    state,
)
from millstream.streams import (
    Backoff,
    Broadcast,
    BroadcastChannel,
    BroadcastOptions,
    Channel,
    DeliveryFailure,
    Event,
    Gap,
    GiveUpDecision,
    Start,
    Stream,
    StreamEvents,
    StreamId,
    StreamNamespace,
    Subscription,
    Token,
    listen,
    on_error,
    on_gap,
    subscribe,
)


@dataclass
class Move:
    plane: str


@dataclass
class Landed(Move):
    delay_min: int = 0


@dataclass
class Diverted:
    plane: str
    to: str


@dataclass
class Tally:
    flights: int = 0


LANDINGS = StreamNamespace("landings", Landed)
WORDS = StreamNamespace("words", str, provider="memory", subscriptions="explicit")
COUNTS = StreamNamespace("counts", dict[str, int])
ENDS = StreamNamespace[Landed | Diverted]("ends")

assert_type(LANDINGS, StreamNamespace[Landed])
assert_type(WORDS, StreamNamespace[str])
assert_type(COUNTS, StreamNamespace[dict[str, int]])
assert_type(ENDS, StreamNamespace[Landed | Diverted])
assert_type(LANDINGS.name, str)


# --- handlers ------------------------------------------------------------------------------------


class Airport(Grain):
    tally = state(Tally)

    @subscribe(
        LANDINGS,
        commit_with=tally,
        retries=3,
        dead_letter=False,
        backoff=Backoff(0.5),
        give_up_on=(ValueError,),
        on_give_up="pause",
    )
    async def on_landing(self, event: Event[Landed]) -> None:
        assert_type(event, Event[Landed])
        assert_type(event.item, Landed)
        assert_type(event.item.delay_min, int)
        assert_type(event.token, Token)
        assert_type(event.key, str)
        assert_type(event.attempt, int)
        assert_type(event.headers, Mapping[str, str])
        assert_type(event.redelivered, bool)
        assert_type(event.redriven, bool)
        self.stream(WORDS, event.key).publish_with(self.tally, "x", headers={"trace": "1"})
        self.tally.value.flights += 1

    @subscribe(ENDS)
    async def on_end(self, event: Event[Landed | Diverted]) -> None:
        if isinstance(event.item, Diverted):
            assert_type(event.item.to, str)
        else:
            assert_type(event.item, Landed)


def is_late(event: Event[Landed]) -> bool:
    return event.item.delay_min > 15


class Late(Grain):
    @staticmethod
    def _is_long(event: Event[str]) -> bool:
        return len(event.item) > 5

    @subscribe(LANDINGS, where=is_late)
    async def on_late(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, batch=True, where=lambda event: event.item.delay_min > 5)
    async def on_lates(self, events: list[Event[Landed]]) -> None: ...

    @staticmethod
    def _is_early(event: Event[Landed]) -> bool:
        return event.item.delay_min < 0

    @subscribe(LANDINGS, where=_is_early)
    async def on_early(self, event: Event[Landed]) -> None: ...

    async def listen(self, key: str) -> None:
        await self.stream(WORDS, key).subscribe(self._on_word, where=self._is_long)
        await self.stream(WORDS, key).subscribe(self._on_word, where=Late._is_long)

    async def _on_word(self, event: Event[str]) -> None: ...


class Gauge(Grain):
    """A state that is declared by its annotation."""

    level: State[int | None] = state(default=lambda: None)

    @subscribe(COUNTS, commit_with=level)
    async def on_counts(self, event: Event[dict[str, int]]) -> None:
        self.level.value = event.item["level"]


class Plane(Grain):
    @subscribe(LANDINGS, batch=True, max_events=50)
    async def on_landings(self, events: list[Event[Landed]]) -> None:
        assert_type([event.item.plane for event in events], list[str])

    @subscribe(COUNTS, batch=True, key="eu-*")
    async def on_counts(self, events: Sequence[Event[dict[str, int]]]) -> None:
        for event in events:
            assert_type(event.item["a"], int)


class Careful(Grain):
    """Hears of failures and gaps."""

    @subscribe(COUNTS)
    async def on_counts(self, event: Event[dict[str, int]]) -> None: ...

    @on_error(COUNTS)
    async def failed(self, failure: DeliveryFailure) -> None:
        assert_type(failure.decision, GiveUpDecision | None)

    @on_gap(COUNTS)
    async def lost(self, gap: Gap) -> None:
        assert_type(gap.after, Token | None)
        assert_type((gap.stream, gap.subscription, gap.first), tuple[StreamId, str, Token])


class ByHand(Grain):
    """Acknowledges by hand."""

    @subscribe(LANDINGS, ack="manual")
    async def on_landing(self, event: Event[Landed]) -> None:
        one: Acknowledgeable = event
        await self.context.ack(one)

    @subscribe(COUNTS, ack="manual", batch=True)
    async def on_counts(self, events: list[Event[dict[str, int]]]) -> None:
        await self.context.ack(events[-1])


class Wide(Grain):
    """Has handlers of a wider item than that of the namespace."""

    @subscribe(LANDINGS)
    async def on_move(self, event: Event[Move]) -> None:
        assert_type(event.item.plane, str)

    @subscribe(LANDINGS)
    async def on_anything(self, event: Event[object]) -> None: ...

    @subscribe(LANDINGS)
    async def on_end(self, event: Event[Landed | Diverted]) -> None: ...

    @subscribe(COUNTS)
    async def on_counts(self, event: Event[Mapping[str, float]]) -> None: ...


class Hub(Airport):
    """An override without a mark is a handler, too."""

    async def on_landing(self, event: Event[Landed]) -> None:
        await super().on_landing(event)


class Direct(Airport):
    async def repeat(self) -> None:
        await self.on_landing(Event(Landed("N1"), Token(0, 1), self.key, 1, {}))


# --- publishing ----------------------------------------------------------------------------------


async def publish(runtime: Runtime) -> None:
    landings = runtime.stream(LANDINGS, "BOS")
    assert_type(landings, Stream[Landed])
    assert_type(landings.key, str)
    assert_type(landings.id, StreamId)
    token = await landings.publish(Landed("N1", 5), headers={"trace": "1"})
    assert_type(token, Token | None)
    if token is not None:
        assert_type((token.era, token.seq, token.index), tuple[int, int, int])
        assert Token.parse(str(token)) <= token
    assert_type(await landings.publish_many(Landed(f"N{n}") for n in range(5)), Token | None)
    ends = runtime.stream(ENDS, "BOS")
    await ends.publish(Landed("N1"))
    await ends.publish_many([Landed("N1"), Diverted("N2", "EWR")])


async def publish_and_recover(stream: Stream[str]) -> bool:
    try:
        await stream.publish("one")
    except QueueFull:
        return False
    except PublishUnknown as error:
        unknown: StreamError = error
        raise unknown from None
    return True


class Relay(Grain):
    """Publishes from inside a grain, and passes streams as values."""

    async def relay(self, target: Stream[Landed], plane: str) -> Stream[Landed]:
        await target.publish(Landed(plane))
        await self.stream(WORDS, self.key).publish(plane)
        return target


async def pass_a_stream(runtime: Runtime) -> None:
    relay = runtime.grain(Relay, "a")
    landings = runtime.stream(LANDINGS, "BOS")
    assert_type(await relay.relay(landings, "N1"), Stream[Landed])


# --- broadcast channels --------------------------------------------------------------------------

PRICES = BroadcastChannel("prices", Landed)
assert_type(PRICES, BroadcastChannel[Landed])


class Desk(Grain):
    @listen(PRICES)
    async def on_price(self, price: Landed) -> None:
        assert_type(price.delay_min, int)

    @listen(PRICES)
    async def on_move(self, move: Move) -> None: ...


async def broadcast(runtime: Runtime) -> Broadcast:
    prices = runtime.stream(PRICES, "ACME")
    assert_type(prices, Channel[Landed])
    await prices.publish(Landed("N1"))
    return Broadcast(BroadcastOptions(fire_and_forget=False, waiting_max=5))


# --- programs that read --------------------------------------------------------------------------


async def follow(runtime: Runtime, after: Token) -> int:
    delays = 0
    async with runtime.stream(LANDINGS, "BOS").consume() as events:
        assert_type(events, StreamEvents[Landed])
        assert_type(events.subscription, str)
        async for event in events:
            assert_type(event, Event[Landed])
            delays += event.item.delay_min

    async def lost(gap: Gap) -> None:
        print(gap)

    async with runtime.stream(WORDS, "a").consume(on_gap=lost) as words_or_gaps:
        assert_type((await anext(words_or_gaps)).item, str)
    async with runtime.stream(ENDS, "BOS").consume(name="a", start=after, events_max=5) as ends:
        assert_type((await anext(ends)).item, Landed | Diverted)
    late = runtime.stream(LANDINGS, "BOS").consume(where=lambda event: event.item.delay_min > 15)
    async with late as events:
        assert_type((await anext(events)).item, Landed)
    since: Start = datetime(2026, 1, 1, tzinfo=UTC)
    async with runtime.stream(WORDS, "a").consume(start=since) as words:
        assert_type((await anext(words)).item, str)
    return delays


async def pause_all(runtime: Runtime) -> list[str]:
    found = await runtime.stream(LANDINGS, "BOS").subscriptions()
    assert_type(found, list[Subscription[Landed]])
    for one in found:
        assert_type((one.consumer, one.handler, one.note), tuple[str, str, str])
        if one.state == "active" and one.is_implicit:
            await one.pause()
            await one.resume(start="next")
    return [one.id for one in found]


# --- explicit subscriptions ----------------------------------------------------------------------


class Listener(Grain):
    def __init__(self) -> None:
        self._held: Subscription[str] | None = None

    async def listen(self, key: str, after: str) -> str:
        words = self.stream(WORDS, key)
        self._held = await words.subscribe(self._on_word, name="main")
        assert_type(self._held, Subscription[str])
        await words.subscribe(self._on_word, name="all", start="earliest")
        await words.subscribe(self._on_word, name="by hand", ack="manual")
        await words.subscribe(self._on_words, start=Token.parse(after))
        await words.subscribe(
            self._on_word,
            name="patient",
            retries=9,
            backoff=Backoff(0.5),
            give_up_on=(ValueError, KeyError),
            on_give_up="skip",
        )
        return self._held.id

    async def listen_from(self, key: str, start: Start) -> None:
        self._held = await self.stream(WORDS, key).subscribe(self._on_word, start=start)

    async def leave(self, key: str) -> int:
        found = await self.stream(WORDS, key).subscriptions(self)
        assert_type(found, list[Subscription[str]])
        for subscription in found:
            assert_type((subscription.id, subscription.name), tuple[str, str])
            await subscription.unsubscribe()
        return len(found)

    async def go_on(self, after: str) -> None:
        if self._held is not None:
            await self._held.resume()
            start: Start = Token.parse(after)
            await self._held.resume(start=start)

    async def _on_word(self, event: Event[str]) -> None:
        assert_type(event.item.upper(), str)

    async def _on_words(self, events: list[Event[str]]) -> None:
        assert_type(events[0].item, str)
