"""The relay of changes. Each change arrives once, and the changes of a message arrive in the order
of their versions.

Silos crash, are late, are refused, or relay at the same time as others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.reference import LEDGER, Broker, ReferenceAdapter, ReferenceQueues
from tests.providers.priority.world import Rig, in_cluster

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.providers.priority import (
    PRIORITY_CHANGES,
    EmbeddedStore,
    MemoryStore,
    PriorityChange,
    PriorityOptions,
    PriorityQueues,
    QueueSettings,
    changes_lag_s,
    priority_queue,
)
from millstream.providers.priority import part as part_module
from millstream.providers.priority.core.changes import ChangeEvent, Changes
from millstream.providers.priority.core.message import TRANSITIONS
from millstream.providers.priority.core.shards import split_name
from millstream.providers.priority.relay.change import change_of
from millstream.providers.priority.store.contract import StoredEvent
from millstream.providers.priority.store.memory import Table
from millstream.runtime import (
    ConfigError,
    EnqueueFailed,
    LocalCluster,
    PublishUnknown,
    QueueFull,
    StorageUnavailable,
    StreamError,
)
from millstream.runtime.testing import current_host
from millstream.streams import (
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueId,
    StreamId,
    Token,
)

Hook = Callable[[Sequence[OutMessage]], Awaitable[None]]
QUICK = PriorityOptions(changes_batch_max=3)


class KeepingStore(MemoryStore):
    """Remembers every event, and lets a test act before the relay's calls."""

    on_events: Callable[[], Awaitable[None]] | None = None
    on_forget: Callable[[], Awaitable[None]] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept: list[ChangeEvent] = []

    def store(self, table: Table, changes: Changes) -> None:
        super().store(table, changes)
        self.kept += changes.events

    async def events(self, outbox: int, after: int, limit: int, /) -> list[StoredEvent]:
        found = await super().events(outbox, after, limit)
        if self.on_events is not None:
            await self.on_events()
        return found

    async def forget_events(self, outbox: int, through: int, /) -> None:
        if self.on_forget is not None:
            await self.on_forget()
        await super().forget_events(outbox, through)


def store_of(rig: Rig) -> KeepingStore:
    assert isinstance(rig.store, KeepingStore)
    return rig.store


class Adapter(ReferenceAdapter):
    """Lets a test act between publishers and queues."""

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        stream: Stream = self.queues.stream  # type: ignore[attr-defined]
        if stream.on_before is not None:
            await stream.on_before(messages)
        stored = await super().enqueue(queue, messages, mapper_epoch)
        if stream.on_after is not None:
            await stream.on_after(messages)
        return stored


class Queues(ReferenceQueues):
    adapter_class = Adapter

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.broker, LEDGER - stream.lacks)
        self.stream = stream


class Stream:
    """A stream provider over queues that outlive silos."""

    def __init__(self) -> None:
        self.broker = Broker(capacity=100_000)
        self.lacks: frozenset[Any] = frozenset()
        self.on_before: Hook | None = None
        self.on_after: Hook | None = None

    def part(self) -> PersistentStreams:
        mapper, balancer = HashRingMapper(queues=3), DeploymentBalancer()
        return PersistentStreams(Queues(self), mapper=mapper, balancer=balancer)

    def arrived(self) -> dict[str, list[PriorityChange]]:
        found: dict[str, list[PriorityChange]] = defaultdict(list)
        for shelf in self.broker.shelves.values():
            for one in shelf.stored:
                assert one.message.stream.namespace == PRIORITY_CHANGES.name
                for item in one.message.items:
                    found[one.message.stream.key].append(PRIORITY_CHANGES.codec.decode(item))
        return found


def relayed(
    main: Callable[[Rig, Stream], Awaitable[None]], silos: int = 2, seed: int = 1
) -> Stream:
    """Run a test with a relay, wait until every change has arrived, and compare."""
    stream = Stream()

    async def whole(rig: Rig) -> None:
        await main(rig, stream)
        await settled(rig)
        wanted: dict[str, list[PriorityChange]] = defaultdict(list)
        for event in store_of(rig).kept:
            wanted[split_name(event.queue)[0]].append(change_of(event))
        assert stream.arrived() == wanted and wanted

    options = {"store": KeepingStore, "streams": {"default": stream.part}, "changes": "default"}
    in_cluster(whole, silos, seed, options=QUICK, **options)
    return stream


async def settled(rig: Rig) -> None:
    """Wait until the outbox is empty."""
    for _ in range(1_000):
        if not await MemoryStore.events(rig.store, 0, 0, 1):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the outbox is never empty")


async def work(rig: Rig, name: str = "q", messages: int = 4) -> None:
    """Enqueue messages, lease them, return them, and complete them."""
    queue = rig.queue(name)
    for number in range(messages):
        await rig.on(rig.host, queue.enqueue(b"x", metadata={"n": str(number)}))
    for lease in await rig.on(rig.host, queue.dequeue(worker="w", count=messages, wait_s=1)):
        await rig.on(rig.host, lease.release(refund=True))
    for lease in await rig.on(rig.host, queue.dequeue(worker="w", count=messages, wait_s=1)):
        await rig.on(rig.host, lease.complete())


async def some_work(rig: Rig) -> None:
    await asyncio.gather(*(work(rig, f"q{number}") for number in range(4)))


def test_changes_in_all_shards_of_a_queue_are_of_one_stream() -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        await rig.on(rig.host, rig.queue().create(QueueSettings(shards=3)))
        await work(rig, messages=20)

    assert set(relayed(main).arrived()) == {"q"}


def test_every_change_of_every_queue_arrives_once_and_in_order() -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        await some_work(rig)
        begin_s = loop.time()
        await settled(rig)
        rounds = len(store_of(rig).kept) // QUICK.changes_batch_max
        # the relay does not pause while there are changes
        assert loop.time() - begin_s < rounds * QUICK.changes_period_s / 4

    stream = relayed(main)
    [first, *rest] = (one for one in stream.arrived()["q1"] if one.metadata == {"n": "0"})
    assert (first.version, first.from_state, first.to_state) == (1, None, "pending")
    assert [one.version for one in rest] == [2, 3, 4, 5]
    assert [one.step for one in rest] == ["dequeued", "released", "dequeued", "completed"]
    assert rest[-1].to_state == "completed" and rest[-1].payload_bytes == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_silo_that_dies_between_publishing_and_forgetting_doubles_nothing(times: int) -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        died: list[str] = []

        async def die() -> None:
            host = current_host()
            assert host is not None
            if len(died) < times:
                died.append(host.name)
                rig.simulation.crash(host.name)
                await asyncio.get_running_loop().create_future()

        store_of(rig).on_forget = die
        await some_work(rig)
        await settled(rig)
        assert len(set(died)) == times

    relayed(main, silos=3)


@pytest.mark.parametrize(
    ("cause", "is_stored"), [(QueueFull, False), (PublishUnknown, False), (PublishUnknown, True)]
)
def test_what_a_queue_refuses_arrives_later_and_in_its_order(
    cause: type[StreamError], is_stored: bool
) -> None:
    """The change was not stored, or it was stored without an answer."""

    async def main(rig: Rig, stream: Stream) -> None:
        rng, refused = rig.simulation.rng, 0

        async def refuse(messages: Sequence[OutMessage]) -> None:
            nonlocal refused
            if rng.uniform(0, 1) < 0.4:
                refused += 1
                raise EnqueueFailed([None] * (len(messages) - 1), cause("not now"))

        if is_stored:
            stream.on_after = refuse
        else:
            stream.on_before = refuse_first(refuse)
        await some_work(rig)
        await settled(rig)
        assert refused > 3
        stream.on_before = stream.on_after = None

    relayed(main)


def refuse_first(refuse: Hook) -> Hook:
    """Refuse a list with its first message, so nothing of it is stored."""

    async def hook(messages: Sequence[OutMessage]) -> None:
        await refuse(messages[:1])

    return hook


def test_a_full_stream_is_waited_for() -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        async def refuse(messages: Sequence[OutMessage]) -> None:
            raise EnqueueFailed([], QueueFull("no room"))

        stream.on_before = refuse
        await some_work(rig)
        await asyncio.sleep(90)  # longer than one call of publish retries
        assert not stream.arrived()
        stream.on_before = None

    relayed(main)


@pytest.mark.parametrize("seed", range(4))
def test_silos_that_relay_at_the_same_time_double_and_reorder_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each silo has its own view of the outbox, which may be old."""
    monkeypatch.setattr(part_module, "is_first_host", lambda *_: True)

    async def main(rig: Rig, stream: Stream) -> None:
        rng = rig.simulation.rng

        async def late(messages: object = None) -> None:
            await asyncio.sleep(rng.uniform(0, 2) if rng.uniform(0, 1) < 0.3 else 0)
            if rng.uniform(0, 1) < 0.2:
                raise StorageUnavailable("away") if messages is None else PublishUnknown("lost")

        store_of(rig).on_events = store_of(rig).on_forget = late
        stream.on_before = stream.on_after = late
        await some_work(rig)
        await settled(rig)
        store_of(rig).on_events = store_of(rig).on_forget = None
        stream.on_before = stream.on_after = None

    relayed(main, silos=3, seed=seed)


def test_a_relay_that_was_cut_off_sends_old_changes_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_module, "is_first_host", lambda *_: True)

    async def main(rig: Rig, stream: Stream) -> None:
        await work(rig)
        await settled(rig)
        old: list[str] = []
        go_on = asyncio.Event()

        async def hold() -> None:
            host = current_host()
            assert host is not None
            if await MemoryStore.events(rig.store, 0, 0, 1) and not old:
                old.append(host.name)
                await go_on.wait()  # holds the changes that it has read

        store_of(rig).on_events = hold
        await work(rig, messages=8)
        await settled(rig)
        assert old
        count = len(stream.arrived()["q"])
        go_on.set()
        await asyncio.sleep(5)
        assert len(stream.arrived()["q"]) == count

    relayed(main)


def test_a_store_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        async def away() -> None:
            raise StorageUnavailable("the disk sleeps")

        store_of(rig).on_events = away
        await some_work(rig)
        await asyncio.sleep(120)
        store_of(rig).on_events = None
        for runtime in (rig.client, rig.silo("silo-0")):
            host = rig.host if runtime is rig.client else "silo-0"
            assert 100 < await rig.on(host, changes_lag_s(runtime)) < 140
        await settled(rig)
        assert await rig.on(rig.host, changes_lag_s(rig.client)) == 0.0

    relayed(main)
    text = (
        "outbox 0: changes could not be relayed: StorageUnavailable: the disk sleeps; next attempt"
    )
    assert text in caplog.text and "changes are relayed 1" in caplog.text


def test_the_relay_follows_when_its_silo_stops() -> None:
    async def main(rig: Rig, stream: Stream) -> None:
        await work(rig)
        await settled(rig)
        hosts: set[str] = set()

        async def note() -> None:
            host = current_host()
            assert host is not None
            hosts.add(host.name)

        store_of(rig).on_events = note
        await work(rig, "a")
        await settled(rig)
        [first] = hosts
        await rig.cluster.stop_silo(first)
        await work(rig, "b")
        await settled(rig)
        assert len(hosts) == 2

    relayed(main)


def test_a_store_that_was_begun_anew_is_another_producer() -> None:
    """The positions of the new store start again. They must not be taken for those of the old
    one.
    """

    async def main(rig: Rig, stream: Stream) -> None:
        name = await rig.store.outbox_name(0)
        assert await MemoryStore(rig.env).outbox_name(0) != name
        await work(rig)
        await settled(rig)
        assert {*producers(stream)} == {f"millstream.priority/{name}"}

    relayed(main)


def producers(stream: Stream) -> list[str]:
    shelves = stream.broker.shelves.values()
    marks = (one.message.mark for shelf in shelves for one in shelf.stored)
    return [mark.producer for mark in marks if mark is not None]


# -- over real streams


async def test_changes_are_in_a_ledger(tmp_path: Path) -> None:
    ledgers = LedgerQueues(tmp_path / "ledger")

    def streams() -> PersistentStreams:
        return PersistentStreams(ledgers, balancer=DeploymentBalancer())

    store = EmbeddedStore(tmp_path / "priority", events=True)
    parts = {"priority": partial(PriorityQueues, store, changes="default")}
    async with LocalCluster(grains=[], streams={"default": streams}, parts=parts) as cluster:
        queue = priority_queue(cluster, "encode")
        async with cluster.stream(PRIORITY_CHANGES, "encode").consume() as events:
            await queue.enqueue(b"film", id="film", metadata={"a": "b"})
            [lease] = await queue.dequeue(worker="w")
            await lease.complete()
            found = [(await anext(events)).item for _ in range(3)]
    assert [one.to_state for one in found] == ["pending", "running", "completed"]
    assert [one.version for one in found] == [1, 2, 3] and found[0].metadata == {"a": "b"}


async def test_names_of_outboxes_stay_and_are_of_one_directory(tmp_path: Path) -> None:
    names: list[str] = []
    for directory in ("a", "a", "b"):
        store = EmbeddedStore(tmp_path / directory, events=True)
        await store.open()
        names += [await store.outbox_name(outbox) for outbox in (0, 7)]
        assert await store.events(0, 0, 10) == []
        await store.aclose()
    assert names[:2] == names[2:4] and len(set(names)) == 4


def test_a_change_is_written_as_ever() -> None:
    """Readers of the stream may have other versions."""
    change = PriorityChange(
        "q", "m", 2, "pending", "running", 5, "dequeued", 1, 7, {"k": "v"}, "w", "", 9, 3
    )
    names = (
        "queue id version from_state to_state time_ms step attempt priority metadata worker reason"
    )
    wanted = [*names.split(), "due_ms", "payload_bytes", "created_ms", "sequence", "shard"]
    found = msgspec.msgpack.decode(PRIORITY_CHANGES.codec.encode(change))
    assert [*found] == wanted
    assert found["from_state"] == "pending" and found["metadata"] == {"k": "v"}
    assert PRIORITY_CHANGES.codec.decode(PRIORITY_CHANGES.codec.encode(change)) == change
    earlier = {name: found[name] for name in wanted[:-3]}  # changes of other versions can be read
    assert PRIORITY_CHANGES.codec.decode(msgspec.msgpack.encode(earlier)) == change
    assert StreamId(PRIORITY_CHANGES.name, "q") == StreamId("millstream.priority.changes", "q")
    steps = "enqueued visible dequeued extended completed canceled expired released failed"
    assert {str(step) for step in TRANSITIONS} == {*steps.split(), "priority", "clock", "collected"}


# -- refusals


def test_a_store_without_events_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"write MemoryStore\(\.\.\., events=True\)"):
        PriorityQueues(MemoryStore(), changes="default")


async def test_a_provider_that_may_lose_or_double_changes_is_refused() -> None:
    store = MemoryStore(events=True)
    parts = {"priority": lambda: PriorityQueues(store, changes="default")}

    def streams() -> PersistentStreams:
        return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())

    with pytest.raises(ConfigError, match="'default' lacks DURABLE, "):
        async with LocalCluster(grains=[], streams={"default": streams}, parts=parts):
            raise AssertionError
    with pytest.raises(ConfigError, match="no part named 'default'"):
        async with LocalCluster(grains=[], parts=parts):
            raise AssertionError
    parts = {"priority": lambda: PriorityQueues(store, changes="priority")}
    with pytest.raises(ConfigError, match="PriorityQueues is not a stream provider"):
        async with LocalCluster(grains=[], parts=parts):
            raise AssertionError
