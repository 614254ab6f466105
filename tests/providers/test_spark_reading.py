"""Spark's readers and real silos over ledgers, without a JVM: planning, and reading in tasks."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from pyspark.sql.datasource import InputPartition  # noqa: E402
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: E402
from pyspark.sql.types import (  # noqa: E402
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.balancers import DeploymentBalancer  # noqa: E402
from millstream.console.main import main  # noqa: E402
from millstream.providers.ledger import (  # noqa: E402
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
    LedgerTopicSettings,
)
from millstream.providers.memory import MemoryQueues  # noqa: E402
from millstream.runtime import (  # noqa: E402
    ConfigError,
    CursorTooOld,
    Grain,
    LocalCluster,
    MemoryStateStore,
)
from millstream.streams import (  # noqa: E402
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    Token,
    subscribe,
)
from millstream.streams.extending import QueueReads  # noqa: E402
from pyspark_millstream import DefaultSource  # noqa: E402
from pyspark_millstream.background import background, end_background  # noqa: E402
from pyspark_millstream.columns import PLAIN_SCHEMA  # noqa: E402
from pyspark_millstream.offsets import make_stored, restore  # noqa: E402
from pyspark_millstream.questions import ask_cluster  # noqa: E402

pytestmark = pytest.mark.real

ROWS = StreamNamespace("read_rows", dict[str, int])
KEYS = 5
EACH = 40
NUMBERS = StructType([StructField("n", LongType()), StructField("_key", StringType())])
PLAIN = StructType(
    [
        StructField("key", StringType()),
        StructField("payload", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("token", StringType()),
        StructField("time", TimestampType()),
    ]
)


class Spark:
    """A driver and its tasks. Each task blocks in a thread."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.published = 0

    async def publish(self, count: int = EACH) -> None:
        """Publish `count` items under each key, three to a message."""
        for key in range(KEYS):
            stream = self.cluster.client.stream(ROWS, f"k{key}")
            for first in range(self.published, self.published + count, 3):
                last = min(first + 3, self.published + count)
                await stream.publish_many([{"n": number} for number in range(first, last)])
        self.published += count

    def source(self, **more: Any) -> DefaultSource:
        gateways = ",".join(silo.gateway for silo in self.cluster.silos)
        return DefaultSource(
            {"gateways": gateways, "namespace": "read_rows", "patience_s": "5", **more}
        )

    def reader(self, /, schema: StructType = NUMBERS, **more: Any) -> Any:
        return self.source(**more).streamReader(schema)

    async def tasks(self, reader: Any, parts: Any) -> dict[str, list[int]]:
        """Read the parts with pickled readers, and return the numbers by key, task after task."""
        copy = pickle.loads(pickle.dumps(reader))
        found: dict[str, list[int]] = {}
        for part in parts:
            for row in await rows_of(copy, pickle.loads(pickle.dumps(part))):
                found.setdefault(row["_key"], []).append(row["n"])
        return found

    async def batch(self, reader: Any, start: dict[str, str], limit: Any) -> Any:
        """Run a micro-batch, and return its end and its rows."""
        end = await asyncio.to_thread(reader.latestOffset, start, limit)
        parts = await asyncio.to_thread(reader.partitions, start, end)
        return end, await self.tasks(reader, parts)

    async def drain(self, reader: Any, start: dict[str, str], most: int) -> Any:
        """Run micro-batches until no rows are left."""
        found: dict[str, list[int]] = {}
        for _ in range(1000):
            end, rows = await self.batch(reader, start, ReadMaxRows(most))
            if end == start:
                return end, found
            for key, numbers in rows.items():
                found.setdefault(key, []).extend(numbers)
            start = end
        raise AssertionError("it never ends")


def expected(first: int, end: int) -> dict[str, list[int]]:
    return {f"k{key}": list(range(first, end)) for key in range(KEYS)}


@dataclass
class Row:
    n: int
    name: str | None = None


KNOWN = StreamNamespace("known_rows", Row)


@dataclass
class OddRow:
    n: int
    either: int | str


ODD = StreamNamespace("odd_rows", OddRow)


class Table(Grain):
    @subscribe(KNOWN)
    async def on_row(self, event: Event[Row]) -> None: ...

    @subscribe(ODD)
    async def on_odd(self, event: Event[OddRow]) -> None: ...


@asynccontextmanager
async def in_cluster(
    folder: Path | None, ledger: LedgerOptions | None = None
) -> AsyncIterator[Spark]:
    def streams() -> PersistentStreams:
        queues = MemoryQueues() if folder is None else LedgerQueues(folder / "ledger", ledger)
        return PersistentStreams(
            queues, mapper=HashRingMapper(queues=3), balancer=DeploymentBalancer()
        )

    async with LocalCluster(
        silos=2,
        grains=[Table, Seen] if ledger is FORGETFUL else [Table],
        streams={"default": streams},
        stores={"default": MemoryStateStore()},
    ) as cluster:
        try:
            yield Spark(cluster)
        finally:
            await asyncio.to_thread(end_background)


async def test_micro_batches_read_everything_once_in_order(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest", split_messages="4")
        begun = await asyncio.to_thread(reader.initialOffset)
        assert begun == reader.initialOffset()
        end, found = await spark.drain(reader, begun, 11)
        assert found == expected(0, EACH)
        assert reader.reportLatestOffset() == end
        await spark.publish(7)
        later, found = await spark.drain(spark.reader(), end, 1 << 40)
        assert found == expected(EACH, EACH + 7) and later != end
        reader.commit(end)


async def test_micro_batches_have_about_so_many_bytes(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        whole = EACH * KEYS * len(msgspec.msgpack.encode({"n": 1}))
        sizes: list[int] = []
        reader = spark.reader(starting_offsets="earliest", max_bytes_per_batch=str(whole // 10))
        start = await asyncio.to_thread(reader.initialOffset)
        found: dict[str, list[int]] = {}
        while True:
            end, rows = await spark.batch(reader, start, ReadMaxRows(1 << 40))
            if end == start:
                break
            start = end
            sizes.append(sum(map(len, rows.values())))
            for key, numbers in rows.items():
                found.setdefault(key, []).extend(numbers)
        assert found == expected(0, EACH)
        assert 10 <= len(sizes) <= 30 and max(sizes) <= EACH * KEYS // 10


async def test_a_message_that_is_larger_than_a_batch_may_be_is_read_alone(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish(3)
        reader = spark.reader(starting_offsets="earliest", max_bytes_per_batch="1")
        start = await asyncio.to_thread(reader.initialOffset)
        batches = 0
        while True:
            end, found = await spark.batch(reader, start, ReadMaxRows(1 << 40))
            if end == start:
                break
            start, batches = end, batches + 1
            assert all(len(numbers) == 3 for numbers in found.values())
        assert batches > 1


async def test_a_batch_that_is_planned_again_has_the_same_rows(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest")
        start = await asyncio.to_thread(reader.initialOffset)
        end, once = await spark.batch(reader, start, ReadMaxRows(20))
        await spark.publish()
        again = spark.reader()  # another driver
        parts = await asyncio.to_thread(again.partitions, start, end)
        assert await spark.tasks(again, parts) == once


async def test_latest_begins_behind_what_is_there_and_sees_new_queues(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        reader = spark.reader()
        begun = await asyncio.to_thread(reader.initialOffset)
        assert begun["queues"] == {}
        await spark.publish()
        _, found = await spark.drain(reader, begun, 1 << 40)
        assert found == expected(0, EACH)
        behind = await asyncio.to_thread(spark.reader().initialOffset)
        await spark.publish(5)
        _, found = await spark.drain(reader, behind, 1 << 40)
        assert found == expected(EACH, EACH + 5)


async def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest")
        begun = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        await spark.publish()
        end, found = await spark.batch(reader, begun, ReadAllAvailable())
        assert found == expected(0, EACH)
        assert await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()) == end


async def test_a_batch_read_has_what_there_is_as_it_was_published(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        before = datetime.now(UTC) - timedelta(milliseconds=1)  # times are stored in milliseconds
        await spark.publish(4)
        between = datetime.now(UTC)
        # times are stored in milliseconds
        while datetime.now(UTC) - between < timedelta(milliseconds=5):
            await asyncio.sleep(0)
        await spark.publish(1)
        reader = spark.source().reader(PLAIN)
        parts = await asyncio.to_thread(reader.partitions)
        rows = [row for part in parts for row in await rows_of(reader, part)]
        assert len(rows) == KEYS * 5 and len({row["token"] for row in rows if row["key"]}) > 3
        assert all(before <= row["time"] for row in rows)
        late = spark.source(starting_offsets=between.isoformat()).reader(NUMBERS)
        parts = await asyncio.to_thread(late.partitions)
        assert await spark.tasks(late, parts) == expected(4, 5)


async def test_where_there_is_nothing_nothing_is_read(tmp_path: Path) -> None:
    """For no parts, Spark makes one task with a partition of its own kind."""
    async with in_cluster(tmp_path) as spark:
        for reader in (spark.source().reader(NUMBERS), spark.reader()):
            assert await rows_of(reader, InputPartition(None)) == []
        assert await asyncio.to_thread(spark.source().reader(NUMBERS).partitions) == []


async def rows_of(reader: Any, part: Any) -> list[dict[str, Any]]:
    batches = await asyncio.to_thread(lambda: list(reader.read(part)))
    return [row for batch in batches for row in batch.to_pylist()]


async def test_what_is_gone_ends_a_query_or_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        source, extents = await asyncio.to_thread(spark.reader()._source.look)
        before = make_stored(source, {one.queue: Token(0, 0) for one in extents if one.first})
        with pytest.raises(CursorTooOld, match="option.'fail_on_data_loss', 'false'"):
            await asyncio.to_thread(spark.reader().latestOffset, before, ReadAllAvailable())
        with caplog.at_level(logging.WARNING):
            reader = spark.reader(fail_on_data_loss="false")
            _, found = await spark.drain(reader, before, 1 << 40)
            parts = await asyncio.to_thread(reader.partitions, before, before)
        assert found == expected(0, EACH) and "the query continues at" in caplog.text
        assert parts == []


class Seen(Grain):
    """Subscribes, so that the agents acknowledge the published events."""

    @subscribe(ROWS)
    async def on_row(self, event: Event[dict[str, int]]) -> None: ...


FORGETFUL = LedgerOptions(
    topic=LedgerTopicOptions(tend_every_s=0.05, cursor_flush_s=0.01),
    settings=LedgerTopicSettings(ledger_entries_max=2),
)
"""Keeps ledgers of two entries only until the entries are acknowledged."""


async def first_numbers(spark: Spark) -> dict[str, int]:
    """Return the number of the first kept message of each queue."""
    _, extents = await asyncio.to_thread(spark.reader()._source.look)
    return {one.queue: one.first.seq for one in extents if one.first is not None}


async def until_trimmed(spark: Spark, above: dict[str, int]) -> None:
    async with asyncio.timeout(20):
        while not all(
            first > above[queue] for queue, first in (await first_numbers(spark)).items()
        ):
            pass


async def test_a_consumer_keeps_what_it_has_not_done_and_no_more(tmp_path: Path) -> None:
    async with in_cluster(tmp_path, FORGETFUL) as spark:
        reader = spark.reader(starting_offsets="earliest", consumer="totals")
        begun = await asyncio.to_thread(reader.initialOffset)  # the queues are still empty
        for _ in range(3):  # no message is dropped while the query is away
            await spark.publish()
        # the queues are new to the query
        start, _ = await spark.batch(reader, begun, ReadAllAvailable())
        other = spark.reader(starting_offsets="latest", consumer="newest")
        await asyncio.to_thread(other.initialOffset)
        end, found = await spark.batch(reader, start, ReadAllAvailable())
        assert found == expected(0, 3 * EACH)
        await asyncio.to_thread(reader.stop)
        # another driver, because the batch was not committed
        reader = spark.reader(consumer="totals")
        again, found = await spark.batch(reader, start, ReadAllAvailable())
        assert found == expected(0, 3 * EACH) and again == end
        firsts = await first_numbers(spark)
        await asyncio.to_thread(reader.commit, end)
        await until_trimmed(spark, firsts)
        assert await run(spark.cluster, "queues", "drop-reader", "newest", "totals") == 0
        await spark.publish()
        firsts = await first_numbers(spark)
        await spark.publish()
        await until_trimmed(spark, firsts)
        with pytest.raises(CursorTooOld):
            await asyncio.to_thread(spark.reader().latestOffset, start, ReadAllAvailable())


async def test_a_query_that_was_there_before_keeps_from_where_it_goes_on(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest")
        end, _ = await spark.batch(
            reader, await asyncio.to_thread(reader.initialOffset), ReadMaxRows(9)
        )
        reader = spark.reader(consumer="late")
        await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable())
        kept = await asyncio.to_thread(lambda: background().run(asked_of(reader)))
        assert kept["late"] == {**kept["late"], **restore(end).positions}


async def asked_of(reader: Any) -> Any:
    return await ask_cluster(reader._source.options, QueueReads.list_retained)


async def test_what_is_kept_is_listed_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with in_cluster(tmp_path) as spark:
        assert await run(spark.cluster, "queues", "readers") == 0
        assert capsys.readouterr().out == ""
        await asyncio.to_thread(spark.reader(consumer="totals").initialOffset)
        assert await run(spark.cluster, "queues", "readers") == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines] == [
            ["totals", f"queue-{number}"] for number in range(3)
        ]
        assert await run(spark.cluster, "queues", "drop-reader", "totals", "nobody") == 1
        out, said = capsys.readouterr()
        assert out == "dropped totals\n" and "drop-reader: there is no reader nobody" in said
        assert await run(spark.cluster, "queues", "readers") == 0
        assert capsys.readouterr().out == ""


async def run(cluster: LocalCluster, *words: str) -> int:
    """Run the command in a thread, because it has its own event loop."""
    return await asyncio.to_thread(main, [*words, "--gateway", cluster.silos[0].gateway])


async def test_a_commit_that_cannot_be_said_ends_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_cluster(tmp_path) as spark:
        reader = spark.reader(consumer="totals", patience_s="0.1")
        begun = await asyncio.to_thread(reader.initialOffset)
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(reader.commit, {**begun, "queues": {"queue-0": str(Token(0, 1))}})
    assert "consumer totals: the progress could not be reported" in caplog.text
    await asyncio.to_thread(end_background)


async def test_too_many_consumers_are_refused_when_a_query_begins(tmp_path: Path) -> None:
    few = LedgerOptions(topic=LedgerTopicOptions(cursors_max=2))
    async with in_cluster(tmp_path, few) as spark:
        await asyncio.to_thread(spark.reader(consumer="one").initialOffset)
        with pytest.raises(ConfigError, match="cursors_max is 2: drop one of them"):
            await asyncio.to_thread(spark.reader(consumer="two").initialOffset)


async def test_the_cluster_tells_the_columns_of_items_that_it_knows(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        known = spark.source(namespace="known_rows")
        told = await asyncio.to_thread(known.schema)
        wanted = "`_key` string, `_token` string, `_time` timestamp, `n` bigint, `name` string"
        assert told == wanted
        assert await asyncio.to_thread(spark.source().schema) == PLAIN_SCHEMA


async def test_a_field_without_a_type_in_spark_is_named(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        with pytest.raises(
            ConfigError, match="field 'either': the type is int or str. Give the fields"
        ):
            await asyncio.to_thread(spark.source(namespace="odd_rows").schema)


async def test_memory_is_refused(tmp_path: Path) -> None:
    async with in_cluster(None) as spark:
        with pytest.raises(ConfigError, match="it deletes each message after its.*LedgerQueues"):
            await asyncio.to_thread(spark.reader().initialOffset)
