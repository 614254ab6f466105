"""The generator: its events, the positions of readers, its rate, and the delivery to grains."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.balancers import DeploymentBalancer
from millstream.providers.generator import (
    Generated,
    GeneratedEvent,
    GeneratorOptions,
    GeneratorQueues,
)
from millstream.providers.generator.event_rate import BURST_S, TICK_S, EventRate
from millstream.providers.generator.sequence import QueueSequence
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    MemoryStateStore,
    StreamError,
    state,
)
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    CursorTooOld,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueMessage,
    Rewinds,
    StreamId,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.contracts.suite.host import BenchHost
from millstream.streams.testing import owners

ROOT = Path(__file__).parent.parent.parent
MAPPER = HashRingMapper(queues=4)
EVENTS_MAX, BYTES_MAX = 1_000_000, 1 << 30


@dataclass
class Step:
    key: str
    number: int


STEPS = StreamNamespace("steps", Step)
MORE = StreamNamespace("more", int)


def bare_host() -> BenchHost:
    return BenchHost(MAPPER, provider="default")


async def adapter_of(options: GeneratorOptions | None = None, *what: Any) -> Any:
    queues = GeneratorQueues(*(what or (Generated(STEPS, Step),)), options=options)
    return await queues.open("default", bare_host())


async def receiver_of(adapter: Any, queue: str = "queue-0", after: Token | None = None) -> Any:
    receiver = adapter.receiver(queue, 1)
    await receiver.start(after)
    return receiver


async def drain(receiver: Any, at_once: int = EVENTS_MAX) -> list[QueueMessage]:
    """Read all messages up to the first empty read."""
    found: list[QueueMessage] = []
    while messages := await receiver.read(at_once, BYTES_MAX, 0.0):
        found.extend(messages)
    return found


async def everything(adapter: Any) -> dict[str, list[QueueMessage]]:
    return {queue: await drain(await receiver_of(adapter, queue)) for queue in MAPPER.queues()}


def by_stream(messages: Sequence[QueueMessage]) -> dict[StreamId, list[bytes]]:
    found: dict[StreamId, list[bytes]] = defaultdict(list)
    for message in messages:
        found[message.stream].extend(message.items)
    return dict(found)


def steps(key: str, count: int) -> list[bytes]:
    return [STEPS.codec.encode(Step(key, number)) for number in range(count)]


# -- the events


async def test_streams_and_events_are_exactly_those_configured() -> None:
    options = GeneratorOptions(streams=("a", "b", "c"), events_per_stream=7)
    adapter = await adapter_of(options, Generated(STEPS, Step), MORE)
    found: dict[StreamId, list[bytes]] = {}
    for messages in (await everything(adapter)).values():
        found |= by_stream(messages)
    numbers = [MORE.codec.encode(number) for number in range(7)]
    wanted = {StreamId("steps", key): steps(key, 7) for key in "abc"}
    assert found == wanted | {StreamId("more", key): numbers for key in "abc"}


async def test_a_stream_is_generated_in_the_queue_that_the_mapper_gives_it() -> None:
    found = await everything(await adapter_of(GeneratorOptions(streams=50)))
    assert all(found.values())
    for queue, messages in found.items():
        assert {MAPPER.queue_for(message.stream) for message in messages} == {queue}


async def test_tokens_rise_by_one_and_carry_the_era() -> None:
    adapter = await adapter_of(GeneratorOptions(era=3))
    for messages in (await everything(adapter)).values():
        assert [m.token for m in messages] == [Token(3, i + 1) for i in range(len(messages))]


async def test_the_order_of_streams_is_shuffled_by_the_seed_and_differs_between_rounds() -> None:
    sequences = [
        QueueSequence(seed, "q", [StreamId("n", str(i)) for i in range(20)], None)
        for seed in (1, 1, 2)
    ]
    first, same, other = ([s.at(i)[0] for i in range(1, 201)] for s in sequences)
    assert first == same != other
    assert first[:20] != first[20:40] and sorted(first[:20]) == sorted(first[20:40])


@given(st.integers(), st.integers(1, 60), st.integers(0, 5), st.randoms(use_true_random=False))
def test_every_stream_has_its_events_once_and_in_order(
    seed: int, streams: int, events: int, random: Any
) -> None:
    ids = [StreamId("n", str(i)) for i in range(streams)]
    sequence = QueueSequence(seed, "q", ids, events)
    places = [place for place in range(1, streams * events + 2) if sequence.has(place)]
    assert len(places) == streams * events
    forward = [sequence.at(place) for place in places]
    sequence.check()
    assert {stream: [n for s, n in forward if s == stream] for stream in ids} == {
        stream: list(range(events)) for stream in ids
    }
    random.shuffle(places)
    assert [sequence.at(place) for place in places] == [forward[place - 1] for place in places]


async def test_two_seeds_differ_in_order_and_in_values() -> None:
    kinds = StreamNamespace("kinds", GeneratedEvent)
    one, two = [
        (await everything(await adapter_of(GeneratorOptions(streams=40, seed=seed), kinds)))
        for seed in (1, 2)
    ]
    for queue in MAPPER.queues():
        assert [m.stream for m in one[queue]] != [m.stream for m in two[queue]]
        values = [kinds.codec.decode(bytes(m.items[0])) for m in (*one[queue], *two[queue])]
        assert len({event.value for event in values}) == len(values)


DIGEST = """
import asyncio, hashlib
from millstream.providers.generator import GeneratorOptions, GeneratorQueues
from millstream.streams import HashRingMapper
async def main():
    mapper = Host.mapper
    options = GeneratorOptions(streams=list({"a", "bb", "ccc", "d", "ee"}), seed=11)
    queues = GeneratorQueues("ticks", "tocks", options=options)
    adapter = await queues.open("p", Host)
    digest = hashlib.sha256()
    for queue in mapper.queues():
        receiver = adapter.receiver(queue, 1)
        await receiver.start(None)
        while found := await receiver.read(7, 1 << 20, 0.0):
            for message in found:
                digest.update(repr((message.stream, message.token, message.items)).encode())
    return digest.hexdigest()
class Host:
    mapper, provider = HashRingMapper(queues=3), "p"
    class clock:
        wall_s = staticmethod(lambda: 0.0)
"""
FROZEN = "0efd53e35f926e5dc13c0dad2237cec7ed66e4b91cf960a77128945e7c97a870"


@pytest.mark.spare
def test_the_same_seed_gives_the_same_events_in_every_process_and_for_ever() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = {
        subprocess.run(
            [sys.executable, "-c", f"{DIGEST}\nprint(asyncio.run(main()))"],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert found == {FROZEN}


async def test_the_size_of_reads_changes_nothing() -> None:
    adapter = await adapter_of(GeneratorOptions(streams=9, batch_events_max=10))
    whole = await drain(await receiver_of(adapter))
    assert len(whole) > 20
    for at_once in (1, 3, 10_000):
        assert await drain(await receiver_of(adapter), at_once) == whole
    by_bytes = await receiver_of(adapter)
    small: list[QueueMessage] = []
    while messages := await by_bytes.read(EVENTS_MAX, 1, 0.0):
        assert len(messages) == 1
        small.extend(messages)
    assert small == whole


async def test_a_read_brings_batch_events_max_at_most() -> None:
    receiver = await receiver_of(await adapter_of(GeneratorOptions(batch_events_max=10)))
    assert len(await receiver.read(EVENTS_MAX, BYTES_MAX, 0.0)) == 10
    assert len(await receiver.read(4, BYTES_MAX, 0.0)) == 4


# -- positions of readers


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_a_new_receiver_goes_on_right_after_the_position(sizes: list[int]) -> None:
    async def check() -> None:
        options = GeneratorOptions(streams=9, events_per_stream=20, seed=5)
        whole = await drain(await receiver_of(await adapter_of(options)))
        found: list[QueueMessage] = []
        for size in sizes:
            after = found[-1].token if found else None
            receiver = await receiver_of(await adapter_of(options), "queue-0", after)
            found.extend(await receiver.read(size, BYTES_MAX, 0.0))
        assert found == whole[: sum(sizes)]

    asyncio.run(check())


async def test_a_position_of_an_older_era_begins_anew_and_a_newer_one_is_refused() -> None:
    adapter = await adapter_of(GeneratorOptions(era=2))
    receiver = await receiver_of(adapter, after=Token(1, 50))
    (first,) = await receiver.read(1, BYTES_MAX, 0.0)
    assert first.token == Token(2, 1)
    with pytest.raises(ConfigError, match=r"queue-0: .* era 3, but GeneratorOptions.era is 2"):
        await receiver.start(Token(3, 1))


async def test_rewinding_gives_the_same_tokens_and_items() -> None:
    adapter = await adapter_of(GeneratorOptions(streams=12))
    receiver = await receiver_of(adapter)
    read = await receiver.read(60, BYTES_MAX, 0.0)
    assert isinstance(adapter, Rewinds)
    reader = adapter.reader("queue-0")
    again = await reader.read_from(read[20].token, 10, BYTES_MAX, None)
    assert list(again.messages) == read[20:30]
    assert (again.next, again.at_end) == (read[30].token, False)
    assert len((await reader.read_from(read[20].token, 10, 1, None)).messages) == 1
    goes_on = await receiver.read(1, BYTES_MAX, 0.0)
    assert goes_on[0].token == Token(1, 61)


async def test_rewinding_finds_the_events_of_some_streams_and_reads_on_behind_the_others() -> None:
    adapter = await adapter_of(GeneratorOptions(streams=12, events_per_stream=5))
    everything = await drain(await receiver_of(adapter))
    stream, reader = everything[3].stream, adapter.reader("queue-0")
    found, position, is_end = list[QueueMessage](), Token(1, 1), False
    while not is_end:
        messages, position, is_end = await reader.read_from(
            position, 7, BYTES_MAX, frozenset({stream})
        )
        found += messages
    assert found == [message for message in everything if message.stream == stream]
    assert await reader.bounds() == (everything[0].token, everything[-1].token)


async def test_rewinding_begins_at_the_first_event_and_takes_no_times() -> None:
    adapter = await adapter_of(GeneratorOptions(streams=12))
    reader = adapter.reader("queue-0")

    async def numbers(position: Token, count: int) -> list[int]:
        page = await reader.read_from(position, count, BYTES_MAX, None)
        return [message.token.seq for message in page.messages]

    assert await numbers(Token(1, 3), 3) == [3, 4, 5]
    assert await numbers(Token(1, 0), 2) == [1, 2]
    assert await numbers(Token(1, 3, 1), 1) == [4]
    with pytest.raises(CursorTooOld, match="is not of era 1") as raised:
        await numbers(Token(0, 3), 1)
    assert raised.value.first == Token(1, 1)
    with pytest.raises(StreamError, match="no times"):
        await reader.seek(datetime(2020, 1, 1, tzinfo=UTC))


async def test_an_event_that_cannot_be_made_is_named_after_those_before_it_were_read() -> None:
    def make(key: str, number: int) -> Step:
        if number == 3:
            raise KeyError("no step")
        return Step(key, number)

    key = next(k for k in map(str, range(99)) if MAPPER.queue_for(StreamId("steps", k))[-1] == "0")
    adapter = await adapter_of(GeneratorOptions(streams=(key,)), Generated(STEPS, make))
    receiver = await receiver_of(adapter)
    assert len(await receiver.read(10, BYTES_MAX, 0.0)) == 3
    for _ in range(2):
        with pytest.raises(StreamError, match=f"steps/{key}: event 3 .* KeyError: 'no step'"):
            await receiver.read(10, BYTES_MAX, 0.0)


# -- the rate


def in_virtual_time(check: Callable[[Simulation], Any]) -> None:
    run(check, 1)


@pytest.mark.parametrize(("rate", "seconds"), [(0.5, 1000), (7.0, 100), (300.0, 20), (60_000.0, 1)])
def test_a_rate_is_kept_over_all_queues_in_virtual_time(rate: float, seconds: int) -> None:
    counts: dict[str, int] = {}
    reads = 0

    async def read(adapter: Any, queue: str) -> None:
        nonlocal reads
        loop = asyncio.get_running_loop()
        receiver = await receiver_of(adapter, queue)
        counts[queue] = 0
        while True:
            counts[queue] += len(await receiver.read(EVENTS_MAX, BYTES_MAX, 5.0))
            reads += 1
            assert sum(counts.values()) <= rate * loop.time() * (1 + 1e-9)

    async def main(simulation: Simulation) -> None:
        options = GeneratorOptions(streams=40, events_per_stream=None, events_per_s=rate)
        adapter = await adapter_of(options)
        tasks = [asyncio.ensure_future(read(adapter, queue)) for queue in MAPPER.queues()]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert 0 <= seconds * rate - sum(counts.values()) <= 4 + 2 * TICK_S * rate
        assert reads <= 4 * seconds * min(rate, 1 / TICK_S) + 4 * seconds / 5 + 4

    in_virtual_time(main)


def test_a_reader_that_was_away_makes_up_for_little() -> None:
    async def main(simulation: Simulation) -> None:
        options = GeneratorOptions(streams=40, events_per_stream=None, events_per_s=100.0)
        adapter = await adapter_of(options)
        receivers = [await receiver_of(adapter, queue) for queue in MAPPER.queues()]
        await asyncio.sleep(3600)
        found = [len(await drain(receiver)) for receiver in receivers]
        assert 100 * BURST_S <= sum(found) <= 100 * BURST_S + 4

    in_virtual_time(main)


def test_a_paced_read_waits_for_the_first_event_and_no_longer() -> None:
    async def main(simulation: Simulation) -> None:
        loop = asyncio.get_running_loop()
        options = GeneratorOptions(streams=4, events_per_s=0.1)
        adapter = await adapter_of(options)
        queue = MAPPER.queue_for(StreamId("steps", "stream-0"))
        receiver = await receiver_of(adapter, queue)
        rate = 0.1 * len(adapter.receiver(queue, 1)._sequence.streams) / 4
        assert list(await receiver.read(10, BYTES_MAX, 1.0)) == [] and loop.time() == 1.0
        assert len(await receiver.read(10, BYTES_MAX, 1000.0)) == 1
        assert loop.time() == pytest.approx(1 / rate)

    in_virtual_time(main)


@given(st.floats(1e-3, 1e7), st.lists(st.floats(0, 100), max_size=20), st.floats(0, 1e8))
def test_a_pace_gives_something_at_the_time_that_it_named(
    rate: float, pauses: list[float], now_s: float
) -> None:
    pace = EventRate(rate, now_s)
    given = 0
    for pause in pauses:
        now_s = max(pace.next_s, now_s + pause)
        due = pace.due(now_s, 1000)
        assert 1 <= due <= 1000
        pace.gave(due, now_s)
        given += due
        assert pace.next_s > now_s


def test_events_go_in_ticks_unless_a_whole_batch_is_due() -> None:
    pace = EventRate(100_000, 0.0)
    assert pace.due(0.5, 1000) == 1000
    pace.gave(50_000, 0.5)
    early_s = 0.5 + TICK_S / 2
    assert pace.due(early_s, 1000) == 0 and pace.due(early_s, 100) == 100
    assert pace.due(pace.next_s, 5000) == pytest.approx(1000, abs=1)


def test_a_finite_generator_ends_in_idle_waiting() -> None:
    async def main(simulation: Simulation) -> None:
        loop = simulation.loop
        receiver = await receiver_of(await adapter_of(GeneratorOptions(events_per_s=1e6)))
        while await receiver.read(EVENTS_MAX, BYTES_MAX, 1.0):
            pass
        began_s, iterations = loop.time(), loop.iterations
        for _ in range(100):
            assert list(await receiver.read(EVENTS_MAX, BYTES_MAX, 5.0)) == []
        assert loop.time() - began_s == pytest.approx(500)
        assert loop.iterations - iterations <= 500

    in_virtual_time(main)


async def test_reading_without_a_rate_lets_others_run() -> None:
    receiver = await receiver_of(await adapter_of(GeneratorOptions(events_per_stream=None)))
    turns: list[int] = []
    loop = asyncio.get_running_loop()
    for expected in range(1, 4):
        loop.call_soon(turns.append, 1)
        assert await receiver.read(1, BYTES_MAX, 1.0)
        assert len(turns) == expected


# -- refusals


async def test_publishing_is_refused_with_what_to_do() -> None:
    async with LocalCluster(
        grains=[], streams={"default": lambda: generator(GeneratorOptions(events_per_stream=0))}
    ) as cluster:
        for runtime in (cluster, cluster.silos[0]):
            with pytest.raises(StreamError, match=r"steps/a: .*'default' \(queue-\d\) .* another"):
                await runtime.stream(STEPS, "a").publish(Step("a", 1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streams": 0}, "streams is 0; .* > 0, at most 100000"),
        ({"streams": ()}, "streams is 0"),
        ({"streams": "abc"}, "streams is 'abc': give a number"),
        ({"streams": ("a", "b", "a")}, "1 repeated"),
        ({"events_per_stream": -1}, "events_per_stream is -1"),
        ({"events_per_s": 0}, "events_per_s is 0"),
        ({"events_per_s": float("nan")}, "events_per_s is nan"),
        ({"events_per_s": 1e12}, "> 0, at most 10000000"),
        ({"batch_events_max": 0}, "batch_events_max is 0"),
        ({"era": 1 << 32}, "era is 4294967296"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GeneratorOptions(**options)


async def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one namespace"):
        GeneratorQueues()
    with pytest.raises(ConfigError, match="repeated"):
        GeneratorQueues("steps", Generated(STEPS, Step))
    with pytest.raises(ConfigError, match="no default items .GeneratedEvent, int, str have."):
        GeneratorQueues(STEPS)
    with pytest.raises(ConfigError, match="is of provider 'default', so its events"):
        await GeneratorQueues(MORE).open("other", bare_host())
    with pytest.raises(ConfigError, match="no queue 'queue-4': its mapper has 4"):
        (await adapter_of()).receiver("queue-4", 1)


@pytest.mark.parametrize(
    ("item", "wanted"), [(int, [0, 1]), (str, ["stream-0-0", "stream-0-1"]), (GeneratedEvent, None)]
)
async def test_a_namespace_alone_gives_default_items(item: Any, wanted: Any) -> None:
    namespace = StreamNamespace("n", item)
    found = await everything(await adapter_of(GeneratorOptions(streams=1), namespace))
    (messages,) = [messages for messages in found.values() if messages]
    items = [namespace.codec.decode(bytes(m.items[0])) for m in messages[:2]]
    if wanted is None:
        assert [(e.key, e.number) for e in items] == [("stream-0", 0), ("stream-0", 1)]
    else:
        assert items == wanted


def test_the_entry_point_leads_to_the_factory() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["millstream.queues"]["generator"].partition(":")
    assert getattr(importlib.import_module(module), name) is GeneratorQueues


# -- the delivery to grains

SEEN: dict[str, list[int]] = defaultdict(list)
CHANGED: list[asyncio.Event] = []


@dataclass
class Walked:
    numbers: list[int] = field(default_factory=list)


class Walker(Grain):
    walked = state(Walked)

    @subscribe(STEPS, commit_with=walked)
    async def on_step(self, event: Event[Step]) -> None:
        assert event.item.key == self.key
        self.walked.value.numbers.append(event.item.number)
        SEEN[self.key].append(event.item.number)
        for changed in CHANGED:
            changed.set()

    async def numbers(self) -> list[int]:
        return self.walked.value.numbers


def generator(options: GeneratorOptions) -> PersistentStreams:
    return PersistentStreams(
        GeneratorQueues(Generated(STEPS, Step), options=options),
        mapper=HashRingMapper(queues=5, prefix="gen") if options.seed == 5 else None,
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.05)),
    )


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    CHANGED.clear()


async def until_seen(count: int) -> None:
    """Wait until `count` different events were handled."""
    changed = asyncio.Event()
    CHANGED.append(changed)
    async with asyncio.timeout(30):
        while sum(len(set(numbers)) for numbers in SEEN.values()) < count:
            changed.clear()
            await changed.wait()


@pytest.mark.parametrize("seed", [0, 5])
async def test_every_event_reaches_its_grain_once_and_in_order(seed: int) -> None:
    options = GeneratorOptions(streams=20, events_per_stream=50, seed=seed)
    async with LocalCluster(
        silos=2, grains=[Walker], streams={"default": lambda: generator(options)}
    ) as cluster:
        await until_seen(20 * 50)
        assert set(SEEN) == set(options.keys())
        for key in options.keys():
            assert await cluster.grain(Walker, key).numbers() == list(range(50))
        assert all(numbers == list(range(50)) for numbers in SEEN.values())


@pytest.mark.spare
def test_every_event_counts_once_and_in_order_when_a_silo_is_killed() -> None:
    options = GeneratorOptions(streams=16, events_per_stream=100, events_per_s=200.0)

    async def main(simulation: Simulation) -> None:
        async with SimCluster(
            simulation,
            silos=2,
            grains=[Walker],
            streams={"default": lambda: generator(options)},
        ) as cluster:
            await until_seen(300)
            assert "silo-1" in owners(cluster).values()
            simulation.crash("silo-1")
            assert sum(map(len, SEEN.values())) < 1600
            await until_seen(1600)
            silo = cluster.silo("silo-0")
            assert silo is not None
            for key in options.keys():
                walker = silo.grain(Walker, key)
                numbers = await simulation.call(simulation.host("silo-0"), walker.numbers())
                assert numbers == list(range(100))
            cluster.boot("silo-1")

    run(main, 1)


async def test_reading_goes_on_at_the_position_after_a_restart_of_the_cluster() -> None:
    stores = {"default": MemoryStateStore()}
    options = GeneratorOptions(streams=8, events_per_stream=40, events_per_s=1000.0)
    for upto in (80, 320):
        async with LocalCluster(
            grains=[Walker], stores=stores, streams={"default": lambda: generator(options)}
        ) as cluster:
            await until_seen(upto)
            provider = cluster.silos[0].services.part("default")
            read_count = sum(agent.reader.core.read_count for agent in provider.manager.agents())
            for key in options.keys() if upto == 320 else ():
                assert await cluster.grain(Walker, key).numbers() == list(range(40))
    assert read_count <= 320 - 80
