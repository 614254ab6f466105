"""Publishing from outside, through a gateway: clients, and writers that send again."""

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
from millstream.runtime import CallTimeout, Client, Grain, QueueFull, Silo, StreamError, connect
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.publishing.ingest import IngestMessage, IngestTarget

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
    """Lets handlers handle so many events, or all."""

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
    """Publishes rows as Spark's writer does: calls of some messages, numbered through."""

    def __init__(self, client: Client, namespace: str, name: str = "writer/0") -> None:
        self._client: Any = client
        self._namespace = namespace
        self._name = name
        self.failures = 0

    async def send(self, first: int, rows: list[tuple[str, int]], timeout_s: float = 5) -> int:
        """Raises what calls raise, and TimeoutError: the caller has gone."""
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

    async def resume(self, stored: int) -> None:
        target = f"{IngestTarget.target_name}/default"
        call = self._client.gateway.call
        await call("writer", target, IngestTarget.resume, self._namespace, self._name, stored)

    async def write(self, rows: list[tuple[str, int]], at_a_time: int, pace: Pace) -> None:
        """All rows; what fails, or is not answered in time, is sent again."""
        at = 0
        while at < len(rows):
            part = rows[at : at + at_a_time]
            try:
                at += await self.send(at, part, timeout_s=0.03)
            except (StreamError, CallTimeout, TimeoutError):
                self.failures += 1
                pace.let(5)  # the consumer is slow, and gets on


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


async def test_a_writer_goes_on_behind_a_failure_that_another_gateway_has_mended() -> None:
    async with running(room=0, capacity=10) as client:
        writer = Writer(client, "lines")
        await writer.send(0, [("a", n) for n in range(10)])
        with pytest.raises(StreamError):
            while True:  # what is under way makes room for a few
                await writer.send(10, [("a", n) for n in range(10, 30)])
        Pace.of_all.let(ROWS)
        with pytest.raises(StreamError, match="sequence .* failed; begin again there, not at 30"):
            await writer.send(30, [("a", 30)])
        await writer.resume(9)  # the failed one is not among them
        with pytest.raises(StreamError, match="begin again there, not at 30"):
            await writer.send(30, [("a", 30)])
        await writer.resume(29)  # another gateway says so
        while SEEN["lines/a"][-1:] != [30]:
            with suppress(QueueFull):  # a moment longer
                assert await writer.send(30, [("a", 30)]) == 1


def publish_twice(gateway: str, namespace: str) -> None:
    """A Spark task, and the same task again; blocks."""
    spark = importlib.import_module("pyspark_millstream.link")
    rows = importlib.import_module("pyspark_millstream.rows")
    tokens = importlib.import_module("pyspark_millstream.tokens")
    host, _, port = gateway.rpartition(":")
    options = importlib.import_module("pyspark_millstream.options").WriteOptions(
        ((host, int(port)),), namespace, "key", ("n",), timeout_s=10.0
    )
    origin = tokens.Origin("writer", 0, 0)
    for _ in range(2):
        numbering = tokens.Numbering(origin)
        with spark.linked(options) as link:
            for start in range(0, 50, 5):
                chunk = {"a": [{"n": n} for n in range(start, start + 5)]}
                body = rows.encode_arguments(namespace, origin.producer, chunk, numbering)
                link.publish(body, 1, "spark")
    while spark._idle:
        spark._idle.popitem()[1].close()


async def test_a_spark_task_that_runs_twice_into_two_namespaces_stores_each_row_once() -> None:
    pytest.importorskip("pyspark", reason="needs the extra `spark`")
    async with running():
        for namespace in ("rows", "more"):
            await asyncio.to_thread(publish_twice, GATEWAYS[-1], namespace)
        await until(lambda: len(SEEN["rows/a"]) >= 50 and len(SEEN["more/a"]) >= 50)
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
