"""Streams through whole clusters in one process: the promises to a subscriber."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.runtime import (
    ConfigError,
    DefinitionError,
    Grain,
    LocalCluster,
    MemoryStateStore,
    QueueFull,
    RuntimeOptions,
    Silo,
    StreamError,
    grain,
    state,
)
from millstream.streams import (
    Backoff,
    DeadLetter,
    DeliveryOptions,
    Event,
    FlowOptions,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

SEEN: dict[str, list[str]] = defaultdict(list)
FAIL: dict[str, int] = {}
HOLD: dict[str, asyncio.Event] = {}


@dataclass
class Word:
    text: str


@dataclass
class Count:
    words: int = 0
    letters: int = 0


WORDS = StreamNamespace("words", Word)
PLAIN = StreamNamespace("plain", Word, subscriptions="implicit")
BATCHES = StreamNamespace("batches", Word)
TALK = StreamNamespace("talk", Word, subscriptions="explicit")
QUICK = DeliveryOptions(retries=2, backoff=Backoff(0.005, 2, 0.02))


def note(key: str, text: str) -> None:
    SEEN[key].append(text)


async def fail_or_hold(text: str) -> None:
    if text in HOLD:
        await HOLD[text].wait()
    if FAIL.get(text, 0) > 0:
        FAIL[text] -= 1
        raise ValueError(f"cannot read {text}")


class Reader(Grain):
    count = state(Count)

    @subscribe(WORDS, commit_with=count)
    async def on_word(self, event: Event[Word]) -> None:
        self.count.value.words += 1
        self.count.value.letters += len(event.item.text)
        await fail_or_hold(event.item.text)
        note(f"words/{self.key}", event.item.text)

    @subscribe(PLAIN)
    async def on_plain(self, event: Event[Word]) -> None:
        await fail_or_hold(event.item.text)
        note(f"plain/{self.key}", f"{event.item.text}:{event.attempt}")

    @subscribe(BATCHES, batch=True, max_events=3)
    async def on_batch(self, events: list[Event[Word]]) -> None:
        note(f"batches/{self.key}", ",".join(event.item.text for event in events))

    async def counted(self) -> Count:
        return self.count.value

    async def stop(self) -> None:
        self.context.deactivate_when_idle()


class Listener(Grain):
    async def listen(self, key: str, name: str) -> str:
        subscription = await self.stream(TALK, key).subscribe(self._on_talk, name=name)
        return subscription.id

    async def listen_from_start(self, key: str) -> None:
        await self.stream(TALK, key).subscribe(self._on_talk, start="earliest")

    async def leave(self, key: str) -> int:
        found = await self.stream(TALK, key).subscriptions(self)
        for subscription in found:
            await subscription.unsubscribe()
        return len(found)

    async def _on_talk(self, event: Event[Word]) -> None:
        await fail_or_hold(event.item.text)
        note(f"talk/{self.key}", event.item.text)

    async def stop(self) -> None:
        self.context.deactivate_when_idle()


def provider(
    options: StreamOptions | None = None, memory: MemoryOptions | None = None
) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(memory),
        mapper=HashRingMapper(queues=4),
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        options=options or StreamOptions(delivery=QUICK, ownership=OwnershipOptions(poll_s=0.05)),
    )


@asynccontextmanager
async def running(
    silos: int = 2, options: StreamOptions | None = None, memory: MemoryOptions | None = None
) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        silos=silos,
        grains=[Reader, Listener],
        streams={"default": lambda: provider(options, memory)},
    ) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    FAIL.clear()
    HOLD.clear()


async def dead_letters(cluster: LocalCluster) -> list[DeadLetter]:
    letters = cluster.silos[0].services.part("default").dead_letters
    return list(await letters.list())


async def test_events_of_a_stream_arrive_in_order_and_once() -> None:
    async with running() as cluster:
        names = [f"w{i}" for i in range(500)]
        await cluster.stream(WORDS, "a").publish_many(Word(name) for name in names[:250])
        for name in names[250:]:
            await cluster.stream(WORDS, "a").publish(Word(name))
        await until(lambda: len(SEEN["words/a"]) >= 500)
        assert SEEN["words/a"] == names
        assert await cluster.grain(Reader, "a").counted() == Count(500, sum(map(len, names)))


async def test_streams_with_one_key_and_two_namespaces_are_apart() -> None:
    async with running() as cluster:
        await cluster.stream(WORDS, "a").publish(Word("one"))
        await cluster.stream(PLAIN, "a").publish(Word("two"))
        await until(lambda: bool(SEEN["words/a"] and SEEN["plain/a"]))
        assert (SEEN["words/a"], SEEN["plain/a"]) == (["one"], ["two:1"])


async def test_a_batch_handler_gets_at_most_max_events() -> None:
    async with running() as cluster:
        await cluster.stream(BATCHES, "a").publish_many(Word(str(i)) for i in range(8))
        await until(lambda: ",".join(SEEN["batches/a"]).count(",") == 7)
        assert [text.count(",") + 1 for text in SEEN["batches/a"]] == [3, 3, 2]


async def test_a_failing_handler_is_tried_again_from_the_failing_event() -> None:
    FAIL["b"] = 2
    async with running(1) as cluster:  # another owner of the queue would start a new count
        await cluster.stream(PLAIN, "a").publish_many(map(Word, ["a", "b", "c"]))
        await until(lambda: len(SEEN["plain/a"]) == 3)
        assert SEEN["plain/a"] == ["a:1", "b:3", "c:1"]
        assert await dead_letters(cluster) == []


async def test_an_event_that_never_succeeds_becomes_a_dead_letter_with_its_traceback() -> None:
    FAIL["b"] = 1000
    async with running() as cluster:
        await cluster.stream(PLAIN, "a").publish_many(map(Word, ["a", "b", "c"]))
        await until(lambda: len(SEEN["plain/a"]) == 2)
        assert SEEN["plain/a"] == ["a:1", "c:1"]
        (letter,) = await dead_letters(cluster)
        assert letter.failure.attempts == 3 and b"b" in letter.failure.body
        assert "cannot read b" in letter.failure.error and "Traceback" in letter.failure.error
        assert letter.failure.token.index == 1


async def test_a_failing_stream_delays_no_other() -> None:
    FAIL["bad"] = 1000
    slow = StreamOptions(delivery=DeliveryOptions(retries=5, backoff=Backoff(30, 2, 60)))
    async with running(options=slow) as cluster:
        for i in range(20):
            await cluster.stream(PLAIN, f"k{i}").publish(Word("bad" if i == 0 else "good"))
        await until(lambda: sum(bool(SEEN[f"plain/k{i}"]) for i in range(20)) == 19)
        assert SEEN["plain/k0"] == []


async def test_a_slow_handler_delays_no_other_subscription() -> None:
    HOLD["wait"] = asyncio.Event()
    async with running() as cluster:
        await cluster.stream(PLAIN, "slow").publish(Word("wait"))
        await cluster.stream(PLAIN, "slow").publish(Word("after"))
        for i in range(20):
            await cluster.stream(PLAIN, f"k{i}").publish(Word("x"))
        await until(lambda: all(SEEN[f"plain/k{i}"] for i in range(20)))
        assert SEEN["plain/slow"] == []
        HOLD["wait"].set()
        await until(lambda: SEEN["plain/slow"] == ["wait:1", "after:1"])


async def test_commit_with_leaves_no_trace_of_a_failed_handler() -> None:
    FAIL["bb"] = 1000
    async with running() as cluster:
        await cluster.stream(WORDS, "a").publish_many(map(Word, ["a", "bb", "ccc"]))
        await until(lambda: "ccc" in SEEN["words/a"])
        assert await cluster.grain(Reader, "a").counted() == Count(2, 4)


async def test_commit_with_keeps_the_place_when_the_grain_is_deactivated() -> None:
    async with running() as cluster:
        for i in range(30):
            await cluster.stream(WORDS, "a").publish(Word("x"))
            if i % 7 == 0:
                await cluster.grain(Reader, "a").stop()
        await until(lambda: len(SEEN["words/a"]) >= 30)
        assert await cluster.grain(Reader, "a").counted() == Count(30, 30)


async def test_every_event_after_subscribe_returned_is_seen_by_each_subscription() -> None:
    async with running() as cluster:
        await cluster.stream(TALK, "t").publish(Word("before"))
        for key in ("x", "y"):
            await cluster.grain(Listener, key).listen("t", "")
        await cluster.grain(Listener, "x").listen("t", "again")
        for i in range(20):
            await cluster.stream(TALK, "t").publish(Word(str(i)))
        await until(lambda: len(SEEN["talk/x"]) >= 40 and len(SEEN["talk/y"]) >= 20)
        assert [text for text in SEEN["talk/y"] if text != "before"] == [str(i) for i in range(20)]


async def test_a_subscription_survives_the_activation() -> None:
    async with running() as cluster:
        await cluster.grain(Listener, "x").listen("t", "")
        await cluster.grain(Listener, "x").stop()
        await cluster.stream(TALK, "t").publish(Word("later"))
        await until(lambda: SEEN["talk/x"] == ["later"])


async def test_subscribing_again_under_one_name_is_one_subscription() -> None:
    async with running() as cluster:
        first = await cluster.grain(Listener, "x").listen("t", "n")
        assert await cluster.grain(Listener, "x").listen("t", "n") == first
        await cluster.stream(TALK, "t").publish(Word("once"))
        await cluster.stream(TALK, "t").publish(Word("end"))
        await until(lambda: "end" in SEEN["talk/x"])
        assert SEEN["talk/x"] == ["once", "end"]


async def test_nothing_arrives_after_unsubscribe() -> None:
    async with running() as cluster:
        await cluster.grain(Listener, "x").listen("t", "")
        await cluster.grain(Listener, "y").listen("t", "")
        assert await cluster.grain(Listener, "x").leave("t") == 1
        assert await cluster.grain(Listener, "x").leave("t") == 0
        await cluster.stream(TALK, "t").publish(Word("gone"))
        await until(lambda: SEEN["talk/y"] == ["gone"])
        assert SEEN["talk/x"] == []


async def test_content_and_subscriptions_survive_the_graceful_stop_of_a_silo() -> None:
    HOLD["w0"] = asyncio.Event()
    async with running(silos=3) as cluster:
        await cluster.grain(Listener, "x").listen("t", "")
        keys = [f"k{i}" for i in range(12)]
        for i in range(20):
            for key in keys:
                await cluster.stream(WORDS, key).publish(Word(f"w{i}"))
        HOLD["w0"].set()
        await cluster.silos[0].stop()
        for key in keys:
            await cluster.stream(WORDS, key).publish(Word("last"))
        await cluster.stream(TALK, "t").publish(Word("still"))
        await until(lambda: all("last" in SEEN[f"words/{key}"] for key in keys))
        await until(lambda: "still" in SEEN["talk/x"])
        for key in keys:
            assert (await cluster.grain(Reader, key).counted()).words == 21


async def test_a_joining_silo_takes_its_share_and_loses_nothing() -> None:
    async with running(silos=1) as cluster:
        keys = [f"k{i}" for i in range(8)]
        for key in keys:
            await cluster.stream(WORDS, key).publish(Word("first"))
        joined = await cluster.start_silo()
        manager = joined.services.part("default").manager
        async with asyncio.timeout(20):
            while len(manager.agents()) < 2:
                for key in keys:
                    await cluster.stream(WORDS, key).publish(Word("during"))
        sent = {key: await cluster.stream(WORDS, key).publish(Word("last")) for key in keys}
        assert len(sent) == 8
        await until(lambda: all("last" in SEEN[f"words/{key}"] for key in keys))
        for key in keys:
            texts = SEEN[f"words/{key}"]
            assert texts[0] == "first" and texts[-1] == "last"
            assert (await cluster.grain(Reader, key).counted()).words == len(texts)


async def test_a_full_queue_refuses_and_loses_nothing_that_it_accepted() -> None:
    HOLD["w0"] = asyncio.Event()
    options = StreamOptions(delivery=QUICK, enqueue_wait_s=0.05, flow=FlowOptions(ack_every_s=0.01))
    memory = MemoryOptions(capacity_events=50, enqueue_wait_s=0.05)
    async with running(silos=1, options=options, memory=memory) as cluster:
        accepted = 0
        with pytest.raises(QueueFull, match="50 of 50 events .capacity_events."):
            for i in range(1000):
                await cluster.stream(PLAIN, "a").publish(Word(f"w{i}"))
                accepted += 1
        assert accepted == 50
        HOLD["w0"].set()
        await until(lambda: len(SEEN["plain/a"]) == accepted)
        await cluster.stream(PLAIN, "a").publish(Word("again"))
        await until(lambda: SEEN["plain/a"][-1] == "again:1")


async def test_a_wrong_item_is_refused_at_the_publisher() -> None:
    async with running(silos=1) as cluster:
        with pytest.raises(TypeError, match="words"):
            await cluster.stream(WORDS, "a").publish("text")  # type: ignore[arg-type]


async def test_an_unknown_provider_names_those_that_exist() -> None:
    async with running(silos=1) as cluster:
        other = StreamNamespace("n", Word, provider="other")
        with pytest.raises(ConfigError, match="no part named 'other'; it has 'default'"):
            await cluster.silos[0].stream(other, "a").publish(Word("x"))


async def test_subscribing_to_an_implicit_namespace_is_refused() -> None:
    class Nosy(Grain):
        async def nose(self) -> None:
            await self.stream(PLAIN, "a").subscribe(self._on_word)

        async def _on_word(self, event: Event[Word]) -> None: ...

    async with (
        Silo(
            grains=[Nosy],
            streams={"default": provider()},
            stores={"default": MemoryStateStore()},
        ) as silo,
    ):
        with pytest.raises(StreamError, match="implicit subscriptions only"):
            await silo.grain(Nosy, "a").nose()


def test_a_handler_of_another_item_is_refused_with_file_and_line() -> None:
    with pytest.raises(DefinitionError, match=r"test_stream_delivery\.py:\d+: Wrong\.on_word"):

        class Wrong(Grain):
            @subscribe(WORDS)  # type: ignore[arg-type]
            async def on_word(self, event: Event[Count]) -> None: ...


def test_a_batch_handler_must_take_a_list() -> None:
    with pytest.raises(DefinitionError, match="list"):

        class Wrong(Grain):
            @subscribe(WORDS, batch=True)  # type: ignore[arg-type]
            async def on_word(self, event: Event[Word]) -> None: ...


async def test_commit_with_on_a_reentrant_grain_is_refused_when_the_silo_starts() -> None:
    @grain(reentrant=True)
    class Loose(Grain):
        count = state(Count)

        @subscribe(WORDS, commit_with=count)
        async def on_word(self, event: Event[Word]) -> None: ...

    with pytest.raises(ConfigError, match="cannot be reentrant"):
        async with Silo(grains=[Loose], streams={"default": provider()}):
            pass


NEVER = StreamNamespace("never", Word, subscriptions="implicit")


class Sleeper(Grain):
    async def on_activate(self) -> None:
        await asyncio.Event().wait()

    @subscribe(NEVER)
    async def on_word(self, event: Event[Word]) -> None:
        raise AssertionError("it cannot start")


async def test_a_grain_that_never_starts_in_time_uses_up_its_attempts() -> None:
    async with LocalCluster(
        silos=1,
        grains=[Sleeper],
        streams={"default": provider},
        options=RuntimeOptions(activation_timeout_s=0.02),
    ) as cluster:
        await cluster.stream(NEVER, "a").publish(Word("lost?"))
        async with asyncio.timeout(20):
            while not await dead_letters(cluster):
                await asyncio.sleep(0)
        (letter,) = await dead_letters(cluster)
        assert letter.failure.attempts == 3
        assert letter.failure.error.startswith("ActivationTimeout: Sleeper/a: on_activate did not")


MARKED: list[list[tuple[str, int, bool]]] = []
BATCHED = StreamNamespace("batched", Word, subscriptions="implicit")


class Batcher(Grain):
    @subscribe(BATCHED, batch=True)
    async def on_words(self, events: list[Event[Word]]) -> None:
        MARKED.append([(e.item.text, e.attempt, e.redelivered) for e in events])
        note(f"batched/{self.key}", "run")
        if len(events) == 3 and len(MARKED) == 1:
            raise ValueError("once")


async def test_what_was_behind_a_failing_item_of_a_batch_comes_again_marked() -> None:
    MARKED.clear()
    async with LocalCluster(silos=1, grains=[Batcher], streams={"default": provider}) as cluster:
        await cluster.stream(BATCHED, "a").publish_many(map(Word, ["a", "b", "c"]))
        await until(lambda: "c" in [text for run in MARKED[1:] for text, _, _ in run])
        await cluster.stream(BATCHED, "a").publish(Word("d"))
        await until(lambda: MARKED[-1][-1][0] == "d")
        first, *again, last = MARKED
        assert [mark for _, _, mark in first] == [False, False, False]
        assert all(mark for run in again for _, _, mark in run)
        assert last == [("d", 1, False)]


async def test_headers_that_cannot_be_sent_are_refused_at_the_publisher() -> None:
    async with running(silos=1) as cluster:
        stream = cluster.silos[0].stream(PLAIN, "a")
        for headers in ({"a": 1}, {"a": "\ud800"}, {1: "a"}):
            with pytest.raises(TypeError, match=r"(name|text) of a header"):
                await stream.publish(Word("x"), headers=headers)  # type: ignore[arg-type]
        await stream.publish(Word("y"), headers={"a": "b"})
        await until(lambda: SEEN["plain/a"] == ["y:1"])


async def test_subscribing_again_skips_nothing_that_is_under_way() -> None:
    HOLD["w0"] = asyncio.Event()
    async with running(silos=1) as cluster:
        await cluster.grain(Listener, "x").listen("t", "n")
        names = [f"w{i}" for i in range(60)]
        for name in names:
            await cluster.stream(TALK, "t").publish(Word(name))
        again = asyncio.ensure_future(cluster.grain(Listener, "x").listen("t", "n"))
        HOLD["w0"].set()
        await again
        await cluster.stream(TALK, "t").publish(Word("end"))
        await until(lambda: "end" in SEEN["talk/x"])
        assert SEEN["talk/x"] == [*names, "end"]


async def test_dead_letters_of_one_subscription_are_not_those_of_another_with_its_prefix() -> None:
    FAIL["b"] = 1000
    async with running(silos=1) as cluster:
        await cluster.stream(PLAIN, "a").publish_many(map(Word, ["b", "c"]))
        await until(lambda: SEEN["plain/a"] == ["c:1"])
        letters = cluster.silos[0].services.part("default").dead_letters
        (letter,) = await letters.list()
        assert await letters.list(letter.failure.subscription)
        assert not await letters.list(letter.failure.subscription[:-1])
