"""Mistakes with streams. A line that ends with the mark E must be refused."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime import Grain, Runtime, state
from millstream.streams import (
    DeliveryFailure,
    Event,
    Gap,
    Start,
    Stream,
    StreamNamespace,
    Subscription,
    Token,
    on_error,
    on_gap,
    subscribe,
)


@dataclass
class Landed:
    plane: str
    delay_min: int = 0


@dataclass
class Diverted:
    plane: str


@dataclass
class Tally:
    flights: int = 0


LANDINGS = StreamNamespace("landings", Landed)
DIVERSIONS = StreamNamespace("diversions", Diverted)
ENDS = StreamNamespace[Landed | Diverted]("ends")
WORDS = StreamNamespace("words", str)


# --- namespaces ----------------------------------------------------------------------------------

# only the strict mode of pyright reports an unknown type; the runtime refuses it at its first use
NO_ITEM = StreamNamespace("no_item")  # E[mypy]
ITEM_AS_TEXT = StreamNamespace("landings", "Landed")  # E
ITEM_AS_VALUE = StreamNamespace("landings", Landed("N1"))  # E
NO_NAME = StreamNamespace(Landed)  # E
WRONG_KIND = StreamNamespace("landings", Landed, subscriptions="none")  # E
WRONG_OPTION = StreamNamespace("landings", Landed, providers="memory")  # E
PROVIDER_BY_PLACE = StreamNamespace("landings", Landed, "memory")  # E
MISMATCHED: StreamNamespace[Diverted] = LANDINGS  # E
MISMATCHED_UNION = StreamNamespace[Landed | Diverted]("ends", Tally)  # E


# --- handlers ------------------------------------------------------------------------------------


def is_text(event: Event[str]) -> bool:
    return True


async def is_late(event: Event[Landed]) -> bool:
    return True


class WrongHandlers(Grain):
    tally = state(Tally)

    @subscribe(LANDINGS)  # E
    async def another_item(self, event: Event[Diverted]) -> None: ...

    @subscribe(ENDS)  # E
    async def narrower_item(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS)  # E
    async def batch_without_batch(self, events: list[Event[Landed]]) -> None: ...

    @subscribe(LANDINGS, batch=True)  # E
    async def single_with_batch(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS)  # E
    def not_async(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS)  # E
    async def no_event(self) -> None: ...

    @subscribe(LANDINGS)  # E
    async def two_arguments(self, event: Event[Landed], more: int) -> None: ...

    @subscribe(LANDINGS)  # E
    async def bare_item(self, item: Landed) -> None: ...

    @subscribe(LANDINGS)  # E
    async def result(self, event: Event[Landed]) -> int:
        return 1

    @subscribe(LANDINGS, ack="later")  # E
    async def acknowledged_later(self, event: Event[Landed]) -> None:
        await self.context.ack(event.item)  # E

    @on_error(LANDINGS)  # E
    async def failure_as_text(self, failure: str) -> None: ...

    @on_error("landings")  # E
    async def failure_of_text(self, failure: DeliveryFailure) -> None: ...

    @on_gap(LANDINGS)  # E
    async def event_for_gap(self, event: Event[Landed]) -> None: ...

    @on_gap(LANDINGS)  # E
    def gap_not_async(self, gap: Gap) -> None: ...

    @on_gap("landings")  # E
    async def gap_of_text(self, gap: Gap) -> None: ...

    @subscribe("landings")  # E
    async def namespace_as_text(self, event: Event[Landed]) -> None: ...

    @subscribe(Landed)  # E
    async def item_for_namespace(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, start="latest")  # E
    async def no_such_option(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, max_events=5)  # E
    async def events_max_without_batch(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, commit_with="tally")  # E
    async def state_as_text(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, commit_with=Tally)  # E
    async def class_for_state(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, commit_with=5)  # E
    async def number_for_state(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, batch=True)  # E
    async def batch_as_dict(self, events: dict[Event[Landed], int]) -> None: ...

    @subscribe(LANDINGS, batch=True)  # E
    async def batch_as_tuple(self, events: tuple[Event[Landed], ...]) -> None: ...

    @subscribe(LANDINGS)  # E
    async def event_by_name(self, *, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, retries="3")  # E
    async def retries_as_text(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, backoff=0.5)  # E
    async def backoff_as_number(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, where=is_text)  # E
    async def filter_of_other_items(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, where=is_late)  # E
    async def filter_that_is_async(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, key=len)  # E
    async def keys_by_a_function(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, on_give_up="retry")  # E
    async def give_up_by_another_word(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS, give_up_on=ValueError)  # E
    async def exceptions_not_in_a_tuple(self, event: Event[Landed]) -> None: ...

    @subscribe  # E
    async def no_namespace(self, event: Event[Landed]) -> None: ...

    @subscribe(LANDINGS)
    async def wrong_body(self, event: Event[Landed]) -> None:
        print(event.item.palne)  # E
        print(event.plane)  # E
        print(event.token.sequence)  # E
        event.item = Landed("N2")  # E
        event.attempt += 1  # E
        event.headers["trace"] = "1"  # E


class Airport(Grain):
    @subscribe(LANDINGS)
    async def on_landing(self, event: Event[Landed]) -> None: ...


class WrongOverride(Airport):
    async def on_landing(self, event: Event[Diverted]) -> None: ...  # E


# --- publishing ----------------------------------------------------------------------------------


async def wrong_streams(runtime: Runtime) -> None:
    runtime.stream("landings", "BOS")  # E
    runtime.stream(Landed, "BOS")  # E
    runtime.stream(LANDINGS)  # E
    runtime.stream(LANDINGS, 5)  # E
    stream: Stream[Diverted] = runtime.stream(LANDINGS, "BOS")  # E
    print(stream.name)  # E
    runtime.stream(LANDINGS, "BOS").key = "JFK"  # E


async def wrong_items(runtime: Runtime) -> None:
    landings = runtime.stream(LANDINGS, "BOS")
    await landings.publish(Diverted("N1"))  # E
    await landings.publish("N1")  # E
    await landings.publish([Landed("N1")])  # E
    await landings.publish()  # E
    await landings.publish(Landed("N1"), Landed("N2"))  # E
    await landings.publish_many([Landed("N1"), Diverted("N1")])  # E
    await landings.publish_many(Landed("N1"))  # E
    await landings.publish(Landed("N1"), headers={"tries": 3})  # E
    await landings.publish(Landed("N1"), header={})  # E
    await runtime.stream(ENDS, "BOS").publish(Tally())  # E
    await runtime.stream(WORDS, "BOS").publish(b"N1")  # E


class Outgoing(Grain):
    tally = state(Tally)

    async def wrong_outboxes(self) -> None:
        words = self.stream(WORDS, "BOS")
        words.publish_with("x")  # E
        words.publish_with(self.tally, 5)  # E
        words.publish_with(Outgoing.tally, "x")  # E
        words.publish_with(self.tally.value, "x")  # E
        await words.publish_with(self.tally, "x")  # E


async def forgotten_await(runtime: Runtime) -> None:
    landings = runtime.stream(LANDINGS, "BOS")
    landings.publish(Landed("N1"))  # E
    landings.publish_many([Landed("N1")])  # E
    print((await landings.publish(Landed("N1"))).seq)  # E
    token: Token = await landings.publish(Landed("N1"))  # E
    token.seq = 5  # E


class Relay(Grain):
    async def relay(self, target: Stream[Landed]) -> None: ...


async def wrong_arguments(runtime: Runtime) -> None:
    relay = runtime.grain(Relay, "a")
    await relay.relay(runtime.stream(DIVERSIONS, "BOS"))  # E
    await relay.relay(LANDINGS)  # E
    await relay.relay("BOS")  # E


# --- programs that read --------------------------------------------------------------------------


async def follow(runtime: Runtime) -> None:
    landings = runtime.stream(LANDINGS, "BOS")
    async for event in landings.consume("audit"):  # E
        print(event)
    with landings.consume() as events:  # E
        print(events)
    landings.consume(where=lambda event: event.item.delay)  # E
    landings.consume(where=lambda event: event.item.tail)  # E
    async with landings.consume(name="audit", start="last") as events:  # E
        for event in events:  # E
            print(event)
        async for event in events:
            wrong: Event[Diverted] = event  # E
            print(wrong)


# --- explicit subscriptions ----------------------------------------------------------------------


class Listener(Grain):
    async def listen(self, key: str) -> None:
        landings = self.stream(LANDINGS, key)
        await landings.subscribe(self._on_landed, retries="3")  # E
        await landings.subscribe(self._on_landed, where=is_text)  # E
        await landings.subscribe(self._on_landed, on_give_up="retry")  # E
        await landings.subscribe(self._on_landed, ack="later")  # E
        await landings.subscribe(self._on_diverted)  # E
        await landings.subscribe(self._on_diverted_batch)  # E
        await landings.subscribe(self._not_async)  # E
        await landings.subscribe(self._no_event)  # E
        await landings.subscribe("_on_landed")  # E
        await landings.subscribe(self._on_landed, start="latest")  # E
        await landings.subscribe(self._on_landed, start=5)  # E
        await landings.subscribe(self._on_landed, "main")  # E
        await landings.subscribe(self._on_landed, batch=True)  # E
        await landings.subscribe(self._on_landed(Event(Landed("N1"), Token(0, 1), "", 1, {})))  # E
        landings.subscribe(self._on_landed)  # E
        held: Subscription[Diverted] = await landings.subscribe(self._on_landed)  # E
        held.unsubscribe()  # E
        await held.resume(start="now")  # E
        await held.resume("earliest")  # E
        await held.pause_for(5)  # E
        held.id = "explicit/a"  # E
        held.name = "main"  # E
        await landings.subscriptions("Listener/a")  # E
        await landings.subscriptions(Listener)  # E
        await landings.subscriptions(self.listen)  # E
        start: Start = "latest"  # E
        start = 5  # E
        print(start)
        for one in landings.subscriptions(self):  # E
            print(one)

    async def _on_landed(self, event: Event[Landed]) -> None: ...

    async def _on_diverted(self, event: Event[Diverted]) -> None: ...

    async def _on_diverted_batch(self, events: list[Event[Diverted]]) -> None: ...

    def _not_async(self, event: Event[Landed]) -> None: ...

    async def _no_event(self) -> None: ...
