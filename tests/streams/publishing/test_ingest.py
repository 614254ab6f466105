"""Publishing from outside, through a gateway: clients, and writers that repeat messages."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter
from millstream.runtime import (
    CallTimeout,
    Client,
    Grain,
    QueueFull,
    QueueUnavailable,
    Silo,
    StreamError,
    connect,
)
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.extending import IngestMessage
from millstream.streams.publishing import ingest
from millstream.streams.publishing.ingest import IngestTarget

LINES = StreamNamespace("lines", int)
NOTES = StreamNamespace("notes", int)
ROWS_OF_SPARK = StreamNamespace("rows", dict[str, int])
MORE_OF_SPARK = StreamNamespace("more", dict[str, int])
SEEN: dict[str, list[int]] = defaultdict(list)
EVENTS: list[Event[int]] = []
GATEWAYS: list[str] = []
ROWS = 150


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    EVENTS.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        await Pace.of_all.pass_one()
        SEEN[f"lines/{self.key}"].append(event.item)
        EVENTS.append(event)

    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        SEEN[f"notes/{self.key}"].append(event.item)


class Table(Grain):
    @subscribe(ROWS_OF_SPARK)
    async def on_row(self, event: Event[dict[str, int]]) -> None:
        SEEN[f"rows/{self.key}"].append(event.item["n"])

    @subscribe(MORE_OF_SPARK)
    async def on_more(self, event: Event[dict[str, int]]) -> None:
        SEEN[f"more/{self.key}"].append(event.item["n"])


class Pace:
    """Lets handlers handle a number of events, or all."""

    of_all: Pace

    def __init__(self, room: int | None) -> None:
        self._room = asyncio.Semaphore(room or 0)
        self._is_open = room is None

    async def pass_one(self) -> None:
        if not self._is_open:
            await self._room.acquire()

    def let(self, count: int) -> None:
        for _ in range(count):
            self._room.release()


@asynccontextmanager
async def running(
    room: int | None = None, capacity: int = 100_000, wait_s: float = 0.05
) -> AsyncIterator[Client]:
    Pace.of_all = Pace(room)
    streams = PersistentStreams(
        MemoryQueues(MemoryOptions(capacity_events=capacity, enqueue_wait_s=0.02)),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(),
        options=StreamOptions(enqueue_wait_s=wait_s),
    )
    async with (
        Silo(grains=[Reader, Table], streams={"default": streams}) as silo,
        connect(silo.gateway) as client,
    ):
        GATEWAYS.append(silo.gateway)
        yield client


class Writer:
    """Publishes rows like Spark's writer: calls of several messages with consecutive numbers."""

    def __init__(self, client: Client, namespace: str, name: str = "writer/0") -> None:
        self._client: Any = client
        self._namespace = namespace
        self._name = name
        self.failures = 0

    async def send(self, first: int, rows: list[tuple[str, int]], timeout_s: float = 5) -> int:
        """Send rows in one call. Raises the call's errors, and TimeoutError if the caller gave
        up."""
        messages = [
            IngestMessage(key, first + at, [msgspec.Raw(msgspec.msgpack.encode(value))])
            for at, (key, value) in enumerate(rows)
        ]
        async with asyncio.timeout(timeout_s):
            call = self._client.gateway.call
            accepted: int = await call(
                "writer",
                f"{IngestTarget.target_name}/default",
                IngestTarget.publish,
                self._namespace,
                self._name,
                messages,
            )
            return accepted

    async def send_next(
        self, session: str, place: int, first: int, rows: list[tuple[str, int]]
    ) -> int:
        """Make a call of a session. Raises the call's errors."""
        messages = [
            IngestMessage(key, first + at, [msgspec.Raw(msgspec.msgpack.encode(value))])
            for at, (key, value) in enumerate(rows)
        ]
        target = f"{IngestTarget.target_name}/default"
        publish, into = IngestTarget.publish_next, self._namespace
        call = self._client.gateway.call
        args = (into, self._name, session, place, messages)
        accepted: int = await call("writer", target, publish, *args)
        return accepted

    async def write(self, rows: list[tuple[str, int]], at_a_time: int, pace: Pace) -> None:
        """Write all rows; repeat calls that fail or are not answered in time."""
        at = 0
        while at < len(rows):
            part = rows[at : at + at_a_time]
            try:
                at += await self.send(at, part, timeout_s=0.03)
            except (StreamError, CallTimeout, TimeoutError):
                self.failures += 1
                pace.let(5)  # the consumer is slow, and continues


@pytest.mark.slow
async def test_a_writer_under_back_pressure_has_every_row_stored_exactly_once() -> None:
    keys = [f"k{n}" for n in range(7)]
    rows = [(keys[n % 7], n) for n in range(ROWS)]
    async with running(room=0, capacity=20) as client:
        writer = Writer(client, "lines")
        await writer.write(rows, 16, Pace.of_all)
        Pace.of_all.let(ROWS)
        await until(lambda: sum(len(SEEN[f"lines/{key}"]) for key in keys) >= ROWS)
    assert writer.failures > 10
    for key in keys:
        assert SEEN[f"lines/{key}"] == [value for other, value in rows if other == key]
    assert max(Counter(event.item for event in EVENTS).values()) == 1


async def test_a_writer_of_two_namespaces_is_two_producers() -> None:
    async with running() as client:
        for namespace in ("lines", "notes"):
            writer = Writer(client, namespace)
            assert await writer.send(0, [("a", n) for n in range(50)]) == 50
        await until(lambda: len(SEEN["lines/a"]) == len(SEEN["notes/a"]) == 50)


async def test_sequences_that_were_accepted_are_accepted_again_and_stored_once() -> None:
    async with running() as client:
        writer = Writer(client, "lines")
        rows = [("a", n) for n in range(10)]
        assert await writer.send(0, rows) == 10
        assert await writer.send(0, rows) == 10
        assert await writer.send(5, [("a", n) for n in range(5, 15)]) == 10
        await until(lambda: len(SEEN["lines/a"]) >= 15)
    assert SEEN["lines/a"] == list(range(15))


async def test_nothing_of_a_session_is_stored_behind_a_failure_and_another_one_goes_on() -> None:
    async with running(room=0, capacity=10) as client:
        writer = Writer(client, "lines")
        assert await writer.send_next("s1", 0, 0, [("a", n) for n in range(10)]) == 10
        place, first = 1, 10
        with pytest.raises(QueueFull):
            while True:  # events that are handled meanwhile make room for a few
                await writer.send_next("s1", place, first, [("a", first)])
                place, first = place + 1, first + 1
        Pace.of_all.let(ROWS)
        with pytest.raises(QueueUnavailable, match="an earlier call failed in its session"):
            await writer.send_next("s1", place + 1, first + 1, [("a", first + 1)])
        while SEEN["lines/a"][-1:] != [first + 1]:
            with suppress(QueueFull):  # a moment longer
                rest = [("a", first), ("a", first + 1)]
                assert await writer.send_next(f"again{place}", 0, first, rest) == 2
            place += 1
    assert SEEN["lines/a"] == list(range(first + 2))


async def test_a_call_whose_predecessor_did_not_come_is_refused() -> None:
    async with running() as client:
        writer = Writer(client, "lines")
        with pytest.raises(QueueUnavailable, match="call 0 has not arrived"):
            await writer.send_next("s1", 1, 1, [("a", 1)])
        assert await writer.send_next("s1", 0, 0, [("a", 0)]) == 1
        with pytest.raises(QueueUnavailable, match="call 1 has not arrived"):
            await writer.send_next("s1", 0, 0, [("a", 0)])
        assert await writer.send_next("s1", 1, 1, [("a", 1)]) == 1
        await until(lambda: SEEN["lines/a"] == [0, 1])


async def test_a_session_that_was_forgotten_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "SESSIONS_MAX", 2)
    async with running() as client:
        writer = Writer(client, "lines")
        for session in ("s1", "s2", "s3"):
            assert await writer.send_next(session, 0, 0, [("a", 0)]) == 1
        with pytest.raises(QueueUnavailable, match="call 0 has not arrived"):
            await writer.send_next("s1", 1, 1, [("a", 1)])


def publish_twice(gateway: str, namespace: str) -> None:
    """Run a Spark task, and the same task again; blocks."""
    arrow = importlib.import_module("pyarrow")
    writer = importlib.import_module("pyspark_millstream.writer")
    options = importlib.import_module("pyspark_millstream.options").WriteOptions(
        (gateway,), namespace, "key", ("n",), chunk_rows=5, patience_s=10.0
    )
    origin = importlib.import_module("pyspark_millstream.tokens").Origin("writer", 0, 0)
    for _ in range(2):
        rows = arrow.record_batch({"key": ["a"] * 50, "n": list(range(50))})
        writer.send_rows(options, origin, iter([rows]))


async def test_a_spark_task_that_runs_twice_into_two_namespaces_stores_each_row_once() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")
    async with running():
        for namespace in ("rows", "more"):
            await asyncio.to_thread(publish_twice, GATEWAYS[-1], namespace)
        await until(lambda: len(SEEN["rows/a"]) >= 50 and len(SEEN["more/a"]) >= 50)
        end = importlib.import_module("pyspark_millstream.background").end_background
        await asyncio.to_thread(end)
    assert SEEN["rows/a"] == SEEN["more/a"] == list(range(50))


async def test_an_event_of_a_client_is_stored_while_its_frame_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def in_a_task(
        self: IngestTarget, namespace: str, producer: str, messages: list[IngestMessage]
    ) -> int:
        raise AssertionError("it need not wait")

    monkeypatch.setattr(IngestTarget.target_specs["publish"], "fn", in_a_task)
    async with running() as client:
        await client.stream(LINES, "a").publish(1)
        await client.stream(LINES, "a").publish_many([2, 3])
        await until(lambda: SEEN["lines/a"] == [1, 2, 3])


async def test_events_of_a_client_stay_in_order_while_some_wait_for_room() -> None:
    async with running(capacity=8, wait_s=10) as client:
        stream = client.stream(LINES, "a")
        await asyncio.gather(*map(stream.publish, range(20)))
        await until(lambda: len(SEEN["lines/a"]) == 20)
        assert SEEN["lines/a"] == list(range(20))


async def test_events_of_many_streams_that_a_client_sends_together_are_stored_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[int] = []
    enqueue = MemoryAdapter.enqueue_at_once

    def counted(self: MemoryAdapter, queue: str, messages: Any, epoch: int) -> Any:
        stored.append(len(messages))
        return enqueue(self, queue, messages, epoch)

    monkeypatch.setattr(MemoryAdapter, "enqueue_at_once", counted)
    async with running() as client:
        streams = [client.stream(LINES, f"{number}") for number in range(30)]
        await asyncio.gather(*(one.publish(0) for one in streams))
        stored.clear()
        await asyncio.gather(*(one.publish(item) for item in (1, 2) for one in streams))
        await until(lambda: all(len(SEEN[f"lines/{one.key}"]) == 3 for one in streams))
    assert all(SEEN[f"lines/{one.key}"] == [0, 1, 2] for one in streams)
    assert sum(stored) == 60 and len(stored) <= 3


async def test_of_events_that_are_sent_together_each_has_its_own_outcome() -> None:
    async with running(room=0, capacity=2) as client:
        streams = [client.stream(LINES, key) for key in "abcd"]
        sends = [one.publish(number) for number, one in enumerate(streams)]
        stored, also, *refused = await asyncio.gather(*sends, return_exceptions=True)
        assert (stored, also) == (None, None)
        assert [type(error) for error in refused] == [QueueFull, QueueFull]
        assert refused[0] is not refused[1]
        Pace.of_all.let(ROWS)
        await until(lambda: SEEN["lines/a"] == [0] and SEEN["lines/b"] == [1])
    assert not SEEN["lines/c"] and not SEEN["lines/d"]


async def test_a_client_publishes_headers() -> None:
    async with running() as client:
        stream = client.stream(LINES, "a")
        await stream.publish(1, headers={"trace": "t1", "ä": "ö"})
        await stream.publish_many([2, 3], headers={"trace": "t2"})
        await stream.publish(4)
        await until(lambda: len(EVENTS) == 4)
    assert [event.item for event in EVENTS] == [1, 2, 3, 4]
    wanted = [{"trace": "t1", "ä": "ö"}, {"trace": "t2"}, {"trace": "t2"}, {}]
    assert [dict(event.headers) for event in EVENTS] == wanted


async def test_headers_count_against_the_size_of_a_message() -> None:
    async with running() as client:
        with pytest.raises(ValueError, match="items and headers"):
            await client.stream(LINES, "a").publish(1, headers={"big": "x" * (40 << 20)})


async def test_an_event_names_the_subscription_that_it_came_by() -> None:
    async with running() as client:
        await client.stream(LINES, "a").publish(1)
        await until(lambda: len(EVENTS) == 1)
    assert EVENTS[0].subscription == "implicit/lines/Reader/on_line"
