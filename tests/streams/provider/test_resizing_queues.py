"""The number of queues changes while events are in them: none is lost, and no stream is
reordered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.conditions import until
from tests.contract.reference import LEDGER, Broker, ReferenceQueues, Shelf

from millstream.balancers import DeploymentBalancer
from millstream.providers.generator import GeneratorQueues
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
)
from millstream.streams import (
    Backoff,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueAdapterFactory,
    QueueId,
    StreamId,
    StreamNamespace,
    StreamOptions,
    resize,
    subscribe,
)

NOTES = StreamNamespace("notes", int, subscriptions="implicit")
LETTERS = StreamNamespace("letters", int, subscriptions="explicit")
SEEN: dict[str, list[int]] = defaultdict(list)
GATES: dict[str, asyncio.Event] = {}
KEYS = [f"k{n}" for n in range(24)]


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    GATES.clear()


class Reader(Grain):
    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        if self.key in GATES:
            await GATES[self.key].wait()
        SEEN[self.key].append(event.item)


class Joining(Grain):
    """Subscribes on request; one event fails until the gate of its stream opens."""

    failing = 0

    async def join(self, failing: int) -> None:
        self.failing = failing
        stream, soon = self.stream(LETTERS, self.key), Backoff(0.01, 1.0, 0.01)
        await stream.subscribe(self._on_letter, start="earliest", retries=10_000, backoff=soon)

    async def _on_letter(self, event: Event[int]) -> None:
        if event.item == self.failing and not GATES[self.key].is_set():
            raise RuntimeError("not yet")
        SEEN[self.key].append(event.item)


class Town:
    """Silos that share a store."""

    def __init__(
        self,
        queues: int = 2,
        adapter: Callable[[], QueueAdapterFactory] = MemoryQueues,
        call_limit_s: float = 10.0,
    ) -> None:
        self.store, self.table = MemoryStateStore(), MemoryMembershipTable()
        self.adapter = adapter
        self.queues = queues
        ownership = OwnershipOptions(poll_s=0.02)
        self.options = StreamOptions(ownership=ownership, call_limit_s=call_limit_s)
        self.streams: list[PersistentStreams] = []

    def silo(self, queues: int | None = None) -> Silo:
        streams = PersistentStreams(
            self.adapter(),
            mapper=HashRingMapper(queues=queues or self.queues),
            balancer=DeploymentBalancer(rebalance_delay_s=0.0),
            options=self.options,
        )
        self.streams.append(streams)
        return Silo(
            grains=[Reader, Joining],
            membership=self.table,
            stores={"default": self.store},
            streams={"default": streams},
        )

    async def resize_again(self, queues: int) -> None:
        """Return once the former queues are done, and the number is changed again."""
        async with asyncio.timeout(20):
            while True:
                with suppress(ConfigError):
                    await self.streams[0].resize(queues=queues)
                    return
                await asyncio.sleep(0)

    async def until_early(self, stream: StreamId, queues: int) -> None:
        """Return once a subscription waits for the former queue of its stream."""
        queue = HashRingMapper(queues=queues).queue_for(stream)
        async with asyncio.timeout(20):
            while True:
                found = (await self.streams[0].reports.look(queue, stream)).subscriptions or ()
                if any("the stream moved to this queue" in one.reason for one in found):
                    return


def seen(count: int) -> Callable[[], bool]:
    return lambda: all(len(SEEN[key]) >= count for key in KEYS)


def moved(old: int, new: int, namespace: str = "notes") -> list[str]:
    """Return the keys of streams that move to another queue."""
    one, other = HashRingMapper(queues=old), HashRingMapper(queues=new)
    streams = [StreamId(namespace, key) for key in KEYS]
    return [at.key for at in streams if one.queue_for(at) != other.queue_for(at)]


async def publish(silo: Silo, *items: int) -> None:
    for item in items:
        await asyncio.gather(*(silo.stream(NOTES, key).publish(item) for key in KEYS))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("counts", [(5,), (1,), (8, 3, 2)])
async def test_streams_go_on_in_order_in_more_and_in_fewer_queues(counts: tuple[int, ...]) -> None:
    town = Town()
    async with town.silo() as silo:
        item = 0
        for count in counts:
            await publish(silo, item, item + 1)
            await town.streams[0].resize(queues=count)
            await publish(silo, item + 2)
            item += 3
            await until(seen(item))
            await until(lambda count=count: len(town.streams[0].stats()) == count)  # type: ignore[misc]
        assert all(SEEN[key] == list(range(item)) for key in KEYS)


async def test_a_stream_that_has_moved_waits_for_its_former_queue_and_others_do_not() -> None:
    town = Town()
    slow, old = moved(2, 5)[0], HashRingMapper(queues=2)
    GATES[slow] = asyncio.Event()
    async with town.silo() as silo:
        await publish(silo, 0)
        await town.streams[0].resize(queues=5)
        await publish(silo, 1)
        home = old.queue_for(StreamId("notes", slow))
        free = [key for key in moved(2, 5) if old.queue_for(StreamId("notes", key)) != home]
        assert free, "some stream has moved from the other queue"
        await until(lambda: all(SEEN[key] == [0, 1] for key in free))
        assert SEEN[slow] == []
        GATES[slow].set()
        await until(seen(2))
        assert all(SEEN[key] == [0, 1] for key in KEYS)


async def test_who_begins_at_the_earliest_event_gets_a_stream_that_has_moved_in_order() -> None:
    """The new queue read its part again at once, while the former one was not done."""
    town, key = Town(), moved(2, 5, "letters")[0]
    GATES[key] = asyncio.Event()
    async with town.silo() as silo:
        letters, joining = silo.stream(LETTERS, key), silo.grain(Joining, key)
        await letters.publish(0)
        await town.streams[0].resize(queues=5)
        await letters.publish(1)
        await joining.join(failing=0)
        await letters.publish(2)
        await town.until_early(StreamId("letters", key), queues=5)
        assert SEEN[key] == []
        GATES[key].set()
        await until(lambda: len(SEEN[key]) >= 3)
        assert SEEN[key] == [0, 1, 2]


class Shelves(Broker):
    """A broker whose queues keep done messages, and begin in the first era."""

    def shelf(self, queue: QueueId) -> Shelf:
        return self.shelves.setdefault(queue, Shelf(era=0))


async def test_who_goes_back_behind_what_waits_gets_what_need_not_wait() -> None:
    broker = Shelves()
    town, key = Town(adapter=lambda: ReferenceQueues(broker, LEDGER)), moved(2, 5, "letters")[0]
    GATES[key] = asyncio.Event()
    async with town.silo() as silo:
        letters, joining = silo.stream(LETTERS, key), silo.grain(Joining, key)
        await joining.join(failing=1)
        await letters.publish(0)
        await town.streams[0].resize(queues=5)
        await letters.publish(1)
        await until(lambda: SEEN[key] == [0])
        await town.resize_again(queues=2)
        await letters.publish(2)
        await town.until_early(StreamId("letters", key), queues=2)
        await joining.join(failing=1)
        await until(lambda: SEEN[key] == [0, 0])
        GATES[key].set()
        await until(lambda: SEEN[key] == [0, 0, 1, 2])


async def test_publishes_that_wait_move_along_in_order() -> None:
    town = Town()
    async with town.silo() as silo:
        streams, count = town.streams[0], 0
        tasks: list[asyncio.Task[object]] = []

        async def pour() -> None:
            nonlocal count
            while not resized.is_set():
                for key in KEYS:
                    publish = silo.stream(NOTES, key).publish(count)
                    tasks.append(asyncio.ensure_future(publish))
                count += 1
                await asyncio.sleep(0)

        resized = asyncio.Event()
        pouring = asyncio.ensure_future(pour())
        await streams.resize(queues=7)
        await streams.resize(queues=7)
        resized.set()
        await pouring
        await asyncio.gather(*tasks)
        await until(seen(count))
        assert count > 3
        for key in KEYS:
            assert SEEN[key] == list(range(count)), key


async def test_a_silo_that_comes_later_uses_the_queues_that_there_are() -> None:
    town = Town()
    async with town.silo() as first:
        await town.streams[0].resize(queues=5)
        await publish(first, 0)
        await until(seen(1))
        async with town.silo() as second:
            await publish(second, 1)
            await until(seen(2))
    async with town.silo(queues=5) as third:
        await publish(third, 2)
        await until(seen(3))
    with pytest.raises(ConfigError, match="this silo has 4 queues"):
        async with town.silo(queues=4):
            raise AssertionError("started")


async def test_the_other_silos_follow_and_share_the_new_queues() -> None:
    town = Town()
    async with town.silo() as first, town.silo() as second:
        await publish(first, 0)
        await town.streams[1].resize(queues=6)
        for item in range(1, 6):
            await publish(first if item % 2 else second, item)
        await until(seen(6))
        assert all(SEEN[key] == list(range(6)) for key in KEYS)
        await until(lambda: [len(one.stats()) for one in town.streams] == [3, 3])


async def test_what_cannot_be_resized_says_so() -> None:
    generated = PersistentStreams(GeneratorQueues(NOTES), balancer=DeploymentBalancer())
    async with Silo(grains=[], streams={"default": generated}):
        with pytest.raises(ConfigError, match="`seal`"):
            await generated.resize(queues=3)
    town = Town()
    async with town.silo():
        with pytest.raises(ConfigError, match=r"queues=0"):
            await town.streams[0].resize(queues=0)


class BadSeals:
    """An adapter whose first seal of each queue hangs, fails or answers wrongly."""

    def __init__(self, raw: Any, trouble: str) -> None:
        self._raw = raw
        self._trouble = trouble
        self._asked: set[QueueId] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int, /) -> Any:
        if queue in self._asked:
            return await self._raw.seal(queue, mapper_epoch, era)
        self._asked.add(queue)
        if self._trouble == "hangs":
            await asyncio.Event().wait()
        if self._trouble == "fails":
            raise RuntimeError("no seal today")
        return "sealed"


@pytest.mark.parametrize(
    ("trouble", "warning"),
    [
        ("hangs", "seal did not answer within call_limit_s, 0.2 s"),
        ("fails", "seal raised RuntimeError: no seal today"),
        ("lies", "seal returned 'sealed', not a token or None"),
    ],
)
async def test_a_seal_that_fails_is_logged_and_repeated(
    trouble: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Queues(MemoryQueues):
        async def open(self, provider: str, host: Any, /) -> Any:
            return BadSeals(await super().open(provider, host), trouble)

    town = Town(2, Queues, call_limit_s=0.2)
    async with town.silo() as silo:
        await publish(silo, 0)
        await town.streams[0].resize(queues=3)
        await publish(silo, 1)
        await until(seen(2))
    assert all(SEEN[key] == [0, 1] for key in KEYS)
    faults = [one.getMessage() for one in caplog.records if "the mapper record" in one.getMessage()]
    assert len(faults) == 3  # once for each queue
    assert all(warning in one for one in faults), faults


async def test_programs_outside_and_clusters_change_the_number_too() -> None:
    def streams() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.0),
        )

    async with LocalCluster(silos=2, grains=[Reader], streams={"default": streams}) as cluster:
        await cluster.stream(NOTES, "k0").publish(0)
        await resize(cluster, queues=4)
        await cluster.stream(NOTES, "k0").publish(1)
        await until(lambda: SEEN["k0"] == [0, 1])
        with pytest.raises(ConfigError, match="queues=0"):
            await resize(cluster, "default", queues=0)
