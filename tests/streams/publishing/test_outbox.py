"""The outbox of a state: events that are published with a write are sent once it is stored."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest
from tests.conditions import spin, until
from tests.runtime.definition.state_owner import StateOwner

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter
from millstream.runtime import (
    ConfigError,
    EnqueueFailed,
    Grain,
    LocalCluster,
    MemoryStateStore,
    Overloaded,
    QueueFull,
    State,
    StorageUnavailable,
    StreamError,
    connect,
    state,
)
from millstream.streams import (
    AdapterHost,
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueId,
    StreamId,
    StreamNamespace,
    StreamOptions,
    Token,
    dead_letters,
    subscribe,
)
from millstream.streams.publishing import outbox
from millstream.streams.publishing.outbox import OUTBOX_EVENTS_MAX, outbox_of, resume_outbox

T = TypeVar("T")


@dataclass
class Tally:
    items: list[str] = field(default_factory=list)


class Holder:
    tally = state(Tally)


class Queues:
    """A provider that keeps accepted messages, and refuses the ones that a test chooses."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.marks: list[int] = []
        self.producers: set[str] = set()
        self.refuses: Callable[[OutMessage], bool] = lambda message: False
        self.calls = 0
        self.too_large: set[str] = set()
        self.never: set[str] = set()
        self.buried: list[tuple[int, str]] = []
        self.letters_away = 0
        self.is_one_queue = False

    def admit(self, message: OutMessage, /) -> str:
        assert message.mark is not None  # its name is part of its size
        return "origin"

    def check(self, message: OutMessage, /) -> None:
        if message.stream.key in self.too_large:
            raise ValueError("too large")

    async def bury(self, message: OutMessage, why: str, /) -> None:
        assert message.mark is not None
        if self.letters_away:
            self.letters_away -= 1
            raise StorageUnavailable("away")
        self.buried.append((message.mark.seq, why))

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | Exception | None]:
        self.calls += 1
        await asyncio.sleep(0)
        for message in messages:
            self.check(message)
        found: list[Token | Exception | None] = []
        for message in messages:  # messages after a failed one are not sent
            failed = isinstance(found[-1], Exception) if found else False
            found.append(found[-1] if failed and self.is_one_queue else self._accept(message))
        return found

    def _accept(self, message: OutMessage) -> Exception | None:
        if self.refuses(message):
            return QueueFull("full")
        if message.stream.key in self.never:
            return StreamError("no, never")
        assert message.mark is not None
        if self.is_one_queue:
            assert message.mark.seq > max(self.marks, default=0), "it would be taken for known"
        self.stored += [(message.stream.key, bytes(item)) for item in message.items]
        self.marks.append(message.mark.seq)
        self.producers.add(message.mark.producer)
        return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "TRIM_AFTER_S", 0.02)
    monkeypatch.setattr(outbox, "RETRY", Backoff(0.001, 1.0, 0.001))


def made(store: MemoryStateStore) -> State[Tally]:
    return State(Holder.__dict__["tally"], StateOwner(), store, "Holder/a/tally", None)


def add(one: State[Tally], queues: Queues, *keys: str) -> None:
    box = outbox_of(one, lambda name: queues)
    for key in keys:
        box.add("default", StreamId("n", key), key.encode(), None)


async def test_what_is_stored_is_sent_in_order_and_leaves_the_row() -> None:
    queues, store = Queues(), MemoryStateStore()
    one = made(store)
    add(one, queues, "a", "b", "c")
    await spin()
    assert not queues.stored
    await one.write()
    await until(lambda: one.parcels.is_trimmed)
    assert queues.stored == [("a", b"a"), ("b", b"b"), ("c", b"c")]
    assert queues.marks == [1, 2, 3] and queues.producers == {"outbox/Holder/a/tally/origin"}
    again = made(store)
    await again.read()
    assert not again.parcels.has_unsent and again.parcels.last == 3


async def test_what_was_stored_and_not_sent_is_sent_by_the_next_activation() -> None:
    queues, store = Queues(), MemoryStateStore()
    queues.refuses = lambda message: True
    one = made(store)
    add(one, queues, "a", "b")
    await one.write()
    queues.refuses = lambda message: False
    again = made(store)
    await again.read()
    resume_outbox(again, lambda name: queues)
    await outbox_of(again, lambda name: queues).wait_sent()
    assert queues.marks[:2] == [1, 2]


@pytest.mark.parametrize("letters_away", [0, 2])
@pytest.mark.parametrize("fault", ["never", "too_large"])
async def test_what_a_queue_refuses_for_good_is_a_dead_letter_and_holds_nothing_up(
    fault: str, letters_away: int
) -> None:
    queues, store = Queues(), MemoryStateStore()
    queues.is_one_queue, queues.letters_away = True, letters_away
    one = made(store)
    add(one, queues, "a", "bad", "b", "worse", "worst", "c")
    getattr(queues, fault).update(["bad", "worse", "worst"])  # a limit was lowered meanwhile
    await one.write()
    await outbox_of(one, lambda name: queues).wait_sent()
    await until(lambda: one.parcels.is_trimmed)
    assert [key for key, _ in queues.stored] == ["a", "b", "c"]
    assert [number for number, _ in queues.buried] == [2, 4, 5]
    why = "StreamError: no, never" if fault == "never" else "StreamError: too large"
    assert {text for _, text in queues.buried} == {why}


async def test_nothing_is_sent_behind_an_event_that_is_refused_and_then_waits() -> None:
    """Otherwise its number would be taken for a repeat."""
    queues, store = Queues(), MemoryStateStore()
    queues.is_one_queue = True
    queues.never.update(["bad"])
    fulls = iter([True, True])
    one = made(store)
    add(one, queues, "bad", "then full", "c")
    queues.refuses = lambda message: (
        message.stream.key == "then full" and bool(queues.buried) and next(fulls, False)
    )
    await one.write()
    await outbox_of(one, lambda name: queues).wait_sent()
    assert [key for key, _ in queues.stored] == ["then full", "c"]
    assert [number for number, _ in queues.buried] == [1] and next(fulls, None) is None


async def test_a_queue_that_is_full_delays_no_other_and_its_events_keep_their_order() -> None:
    queues = Queues()
    queues.refuses = lambda message: message.stream.key == "full" and queues.calls < 4
    one = made(MemoryStateStore())
    add(one, queues, "full", "b", "full", "c")
    await one.write()
    await until(lambda: not one.parcels.has_unsent)
    assert queues.stored == [("b", b"b"), ("c", b"c"), ("full", b"full"), ("full", b"full")]
    assert queues.marks == [2, 4, 1, 3]


async def test_an_outbox_has_a_limit_and_one_large_event_fits() -> None:
    queues = Queues()
    one = made(MemoryStateStore())
    box = outbox_of(one, lambda name: queues)
    box.add("default", StreamId("n", "a"), bytes(5 << 20), None)
    with pytest.raises(QueueFull, match="OUTBOX_BYTES_MAX is 4194304"):
        box.add("default", StreamId("n", "a"), b"x", None)
    other = made(MemoryStateStore())
    for _ in range(OUTBOX_EVENTS_MAX):
        add(other, queues, "k")
    with pytest.raises(QueueFull, match="1000 events wait"):
        add(other, queues, "k")


async def test_who_waits_for_sending_is_told_when_it_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "SENT_WAIT_S", 0.02)
    queues = Queues()
    queues.refuses = lambda message: True
    one = made(MemoryStateStore())
    add(one, queues, "a")
    await one.write()
    with pytest.raises(Overloaded, match="1 events are not sent yet"):
        await outbox_of(one, lambda name: queues).wait_sent()
    queues.refuses = lambda message: False
    await outbox_of(one, lambda name: queues).wait_sent()
    assert queues.marks == [1]


async def test_a_provider_that_raises_is_asked_again() -> None:
    queues = Queues()

    def raise_twice(message: OutMessage) -> bool:
        if queues.calls < 3:
            raise ConfigError("no such part")
        return False

    queues.refuses = raise_twice
    one = made(MemoryStateStore())
    add(one, queues, "a")
    await one.write()
    await until(lambda: not one.parcels.has_unsent)
    assert queues.marks == [1]


# --- through a cluster ---------------------------------------------------------------------------

INPUTS = StreamNamespace("inputs", str, subscriptions="implicit")
OUTPUTS = StreamNamespace("outputs", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)
FAIL: dict[str, int] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    FAIL.clear()


class Stage(Grain):
    tally = state(Tally)

    @subscribe(INPUTS, commit_with=tally)
    async def on_input(self, event: Event[str]) -> None:
        self.tally.value.items.append(event.item)
        stream = self.stream(OUTPUTS, self.key)
        stream.publish_with(self.tally, event.item.upper(), headers={"from": event.key})
        if FAIL.get(event.item, 0) > 0:
            FAIL[event.item] -= 1
            raise ValueError(event.item)

    async def say(self, text: str) -> None:
        self.stream(OUTPUTS, self.key).publish_with(self.tally, text)
        await self.tally.write()

    async def say_nothing(self, text: str) -> None:
        self.stream(OUTPUTS, self.key).publish_with(self.tally, text)

    async def items(self) -> list[str]:
        return self.tally.value.items


class Sink(Grain):
    @subscribe(OUTPUTS)
    async def on_output(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)
        SEEN["headers"].append(event.headers.get("from", ""))


def provider() -> PersistentStreams:
    delivery = DeliveryOptions(retries=1, backoff=Backoff(0.001))
    return PersistentStreams(
        MemoryQueues(MemoryOptions()),
        mapper=HashRingMapper(queues=2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        options=StreamOptions(delivery=delivery, message_bytes_max=10_000),
    )


def cluster_of(silos: int = 1) -> LocalCluster:
    return LocalCluster(silos=silos, grains=[Stage, Sink], streams={"default": provider})


async def test_what_a_handler_publishes_with_its_state_comes_once_also_when_it_is_run_again() -> (
    None
):
    FAIL.update(b=1, d=5)
    async with cluster_of(2) as cluster:
        await cluster.stream(INPUTS, "k").publish_many("abcde")
        await until(lambda: len(SEEN["k"]) == 4)
        assert SEEN["k"] == [*"ABCE"] and set(SEEN["headers"]) == {"k"}
        assert await cluster.grain(Stage, "k").items() == [*"abce"]
        (letter,) = await dead_letters(cluster).list()
        FAIL.clear()
        await dead_letters(cluster).redrive(letter.id)
        await until(lambda: SEEN["k"] == [*"ABCED"])


async def test_a_method_publishes_with_what_it_writes_and_not_with_what_it_does_not() -> None:
    async with cluster_of() as cluster:
        stage = cluster.grain(Stage, "k")
        await stage.say("one")
        await until(lambda: SEEN["k"] == ["one"])
        await stage.say_nothing("two")
        await spin(200)
        assert SEEN["k"] == ["one"]
        await stage.say("three")
        await until(lambda: SEEN["k"] == ["one", "two", "three"])


class Misuse(Grain):
    tally = state(Tally)

    async def without_state(self) -> None:
        self.stream(OUTPUTS, "k").publish_with("tally", "x")  # type: ignore[arg-type]

    async def wrong_item(self) -> None:
        self.stream(OUTPUTS, "k").publish_with(self.tally, 5)  # type: ignore[arg-type]

    async def too_large(self) -> None:
        self.stream(OUTPUTS, "k").publish_with(self.tally, "x" * 20_000)


async def test_what_cannot_be_published_is_refused_where_it_is_said() -> None:
    cluster = LocalCluster(silos=1, grains=[Misuse], streams={"default": provider})
    async with cluster:
        misuse = cluster.grain(Misuse, "m")
        with pytest.raises(TypeError, match="give a state of the grain"):
            await misuse.without_state()
        with pytest.raises(TypeError, match="item"):
            await misuse.wrong_item()
        with pytest.raises(ValueError, match="message_bytes_max"):
            await misuse.too_large()
        async with connect(cluster.silos[0].address.partition("@")[0]) as client:
            with pytest.raises(ConfigError, match="a client has no state"):
                client.stream(OUTPUTS, "k").publish_with(made(MemoryStateStore()), "x")


class RefusingQueues(MemoryQueues):
    async def open(self, provider: str, host: AdapterHost, /) -> MemoryAdapter:
        return RefusingAdapter(host, self._options)


REFUSED: set[str] = set()


class RefusingAdapter(MemoryAdapter):
    """Refuses some events for good."""

    def enqueue_at_once(self, *_: Any) -> None:
        return None

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        words = [msgspec.msgpack.decode(message.items[0]) for message in messages]
        fit = next((at for at, word in enumerate(words) if word in REFUSED), len(words))
        stored = await super().enqueue(queue, messages[:fit], mapper_epoch) if fit else []
        if fit < len(words):
            raise EnqueueFailed(stored, StreamError(f"{words[fit]} is not allowed"))
        return stored


async def test_a_refused_event_of_an_outbox_is_listed_and_can_be_redriven() -> None:
    REFUSED.add("two")

    def refusing() -> PersistentStreams:
        mapper = HashRingMapper(queues=2)
        return PersistentStreams(RefusingQueues(), mapper=mapper, balancer=DeploymentBalancer())

    streams = {"default": refusing}
    async with LocalCluster(silos=1, grains=[Stage, Sink], streams=streams) as cluster:
        stage = cluster.grain(Stage, "k")
        for word in ("one", "two", "three"):
            await stage.say(word)
        await until(lambda: SEEN["k"] == ["one", "three"])
        (letter,) = await dead_letters(cluster).list("outbox")
        assert letter.failure.stream == StreamId("outputs", "k")
        assert "two is not allowed" in letter.failure.error
        with pytest.raises(StreamError, match="two is not allowed"):
            await dead_letters(cluster).redrive(letter.id)
        REFUSED.clear()
        await dead_letters(cluster).redrive(letter.id)
        await until(lambda: SEEN["k"] == ["one", "three", "two"])
        assert not await dead_letters(cluster).list()


async def test_the_name_of_an_outbox_counts_in_the_size_of_its_events() -> None:
    """An admitted event is accepted; no size makes it a dead letter."""
    limit = 1_000

    def small() -> PersistentStreams:
        queues = MemoryQueues(MemoryOptions(capacity_bytes=limit))
        mapper = HashRingMapper(queues=2)
        return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

    refused = said = 0
    async with LocalCluster(silos=1, grains=[Stage, Sink], streams={"default": small}) as cluster:
        stage = cluster.grain(Stage, "k" * 50)
        for size in range(limit - 400, limit, 7):
            try:
                await stage.say("x" * size)
                said += 1
            except ValueError as error:
                assert "its queue accepts 1000" in str(error)
                refused += 1
        await until(lambda: len(SEEN["k" * 50]) == said)
        assert refused and said
        assert not await dead_letters(cluster).list()
