"""`spark.read` and `spark.readStream` of streams over ledgers, in a real Spark session."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.real.silo_thread import SiloThread
from tests.real.spark_rows import AWAIT_S, ROWS, SCHEMA, batch_rows, row, staged, write_batch

from millstream.providers.ledger import (
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
    LedgerTopicSettings,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real]


KEEPS = LedgerOptions(topic=LedgerTopicOptions(retention_s=3600.0))
FORGETS = LedgerOptions(
    topic=LedgerTopicOptions(tend_every_s=0.1, cursor_flush_s=0.05),
    settings=LedgerTopicSettings(ledger_entries_max=2),
)
"""Without subscribers, published events are processed at once and then dropped."""


def silos_in(folder: Path, options: LedgerOptions = KEEPS) -> SiloThread:
    """Start silos over ledgers."""
    return SiloThread(lambda: LedgerQueues(folder / "ledger", options=options))


def run_copy(spark: SparkSession, silos: SiloThread, folder: Path, **options: str) -> Any:
    """Copy the stream into Parquet files until no rows are left."""
    rows = spark.readStream.format("millstream").schema(SCHEMA + ", _key string, _token string")
    query = (
        rows.options(**staged(silos), starting_offsets="earliest", **options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    assert query.awaitTermination(AWAIT_S)
    return query


def numbers(rows: DataFrame) -> list[int]:
    return sorted(one["id"] for one in rows.collect())


def test_what_spark_wrote_it_reads_again(spark: SparkSession, tmp_path: Path) -> None:
    with silos_in(tmp_path) as silos:

        def read(**more: str) -> Any:
            return spark.read.format("millstream").options(**staged(silos), **more)

        assert read().load().count() == 0
        write_batch(batch_rows(spark), staged(silos))
        found = read().schema(SCHEMA + ", _key string").load().orderBy("id").collect()
        assert [one.asDict() for one in found] == [
            {**row(n), "at": row(n)["at"].replace(tzinfo=None), "_key": row(n)["carrier"]}
            for n in range(ROWS)
        ]
        plain = read().load().selectExpr("key", "length(payload) size", "token", "time").collect()
        assert len(plain) == ROWS and all(one["size"] and one["time"] for one in plain)
        with pytest.raises(Exception, match="unknown option 'starting_offset'"):
            read(starting_offset="latest").load().count()
        with pytest.raises(Exception, match="column 'carrier' is int64, and the item of stream"):
            read().schema("carrier bigint").load().collect()


NESTED = (
    "key string, day date, price decimal(9,2), here timestamp_ntz,"
    " parts array<struct<day:date,prices:map<string,decimal(9,2)>,times:array<timestamp_ntz>>>,"
    " by_day map<date,struct<at:timestamp,took:interval day to second>>"
)


def nested_rows() -> list[Any]:
    """Dates, decimals and times without a zone, in structs, lists and maps."""
    day, here, price = date(2026, 1, 31), datetime(2026, 1, 31, 12, 0, 0, 250_000), Decimal("12.50")
    part = {"day": day, "prices": {"a": price, "b": None}, "times": [here, None]}
    took = {"at": here, "took": timedelta(hours=30, microseconds=7)}
    return [
        (
            "x",
            day,
            price,
            here,
            [part, None, {"day": None, "prices": {}, "times": []}],
            {day: took},
        ),
        ("x", None, None, None, None, None),
    ]


def test_values_within_values_are_read_as_they_were_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    with silos_in(tmp_path) as silos:
        rows = spark.createDataFrame(nested_rows(), NESTED)
        written = rows.write.format("millstream").mode("append").options(**staged(silos))
        written.option("key_column", "key").save()
        read = spark.read.format("millstream").options(**staged(silos))
        found = read.schema(NESTED).load()
        assert found.collect() == rows.collect() and found.count() == 2


def test_one_malformed_item_does_not_end_a_permissive_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with silos_in(tmp_path) as silos:
        rows = spark.createDataFrame([("7",), ("x",)], "n string").coalesce(1)
        written = rows.write.format("millstream").mode("append").options(**staged(silos))
        written.option("key_column", "n").save()
        schema = "n date, _key string, _corrupt_record string"

        def read(**options: str) -> list[Any]:
            source = spark.read.format("millstream").schema(schema)
            return source.options(**staged(silos), **options).load().orderBy("_key").collect()

        found = read(mode="PERMISSIVE")
        assert [(one["n"], one["_key"]) for one in found] == [(None, "7"), (None, "x")]
        assert all("column 'n' is date32" in one["_corrupt_record"] for one in found)
        assert read(mode="DROPMALFORMED") == []
        with pytest.raises(Exception, match="column 'n' is date32"):
            read()


def test_a_second_query_with_a_consumer_is_refused_while_the_first_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    with silos_in(tmp_path) as silos:

        def start(name: str) -> Any:
            rows = spark.readStream.format("millstream").schema(SCHEMA)
            read = (
                rows.options(**staged(silos), consumer="totals").load().writeStream.format("noop")
            )
            return read.option("checkpointLocation", str(tmp_path / name)).start()

        first = start("first")
        first.processAllAvailable()
        with pytest.raises(Exception, match="'totals' is in use by another run"):
            start("second").awaitTermination(AWAIT_S)
        first.processAllAvailable()
        first.stop()
        second = start("second")
        second.processAllAvailable()
        second.stop()


def forget_last(folder: Path) -> None:
    """Undo the last batch's commit records, as if Spark had crashed before the sink and the query
    wrote them.
    """
    last = max(int(one.name) for one in (folder / "checkpoint/commits").glob("[0-9]*"))
    assert last > 2
    for notes in ("checkpoint/commits", "out/_spark_metadata"):
        (folder / notes / str(last)).unlink()
        (folder / notes / f".{last}.crc").unlink(missing_ok=True)


def test_a_query_goes_on_where_it_was_and_reads_each_row_once_though_queues_forget(
    spark: SparkSession, tmp_path: Path
) -> None:
    with silos_in(tmp_path, FORGETS) as silos:
        run_copy(spark, silos, tmp_path, consumer="copy")  # the stream is still empty
        write_batch(batch_rows(spark), staged(silos))
        by = {"consumer": "copy", "max_messages_per_batch": "30", "split_messages": "9"}
        query = run_copy(spark, silos, tmp_path, **by)
        assert query.lastProgress["sources"][0]["latestOffset"]
        assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(ROWS))
        forget_last(tmp_path)
        more = batch_rows(spark).selectExpr("id + 10000 id", "carrier", "delay", "at")
        write_batch(more, staged(silos))
        run_copy(spark, silos, tmp_path, consumer="copy")
        found = numbers(spark.read.parquet(str(tmp_path / "out")))
        assert found == [*range(ROWS), *range(10_000, 10_000 + ROWS)]
        kept = spark.read.format("millstream").options(**staged(silos)).load().count()
        assert kept < 2 * ROWS, "what the consumer has done is not kept"
