"""Rows for tests of the Spark writer, as files with rising ages and as a DataFrame."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.real.silo_thread import SiloThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "AWAIT_S",
    "ROWS",
    "SCHEMA",
    "assert_once",
    "assert_seen_once",
    "batch_rows",
    "row",
    "run_stream",
    "staged",
    "write_batch",
    "write_files",
]

ROWS = 2000
SCHEMA = "id bigint, carrier string, delay double, at timestamp"
START = datetime(2013, 1, 1, 10, tzinfo=UTC)
AWAIT_S = 90


def row(number: int) -> dict[str, Any]:
    """Make the item that the stream must receive for a row. Every fifth row has no delay."""
    return {
        "id": number,
        "carrier": f"C{number % 7}",
        "delay": None if number % 5 == 0 else number / 4,
        "at": START + timedelta(minutes=number),
    }


def write_files(folder: Path, parts: int) -> None:
    """Write the rows as JSON lines into `parts` files, with modification times in their order."""
    folder.mkdir()
    each = ROWS // parts
    for part in range(parts):
        lines = [json.dumps(row(n), default=str) for n in range(part * each, (part + 1) * each)]
        path = folder / f"part-{part}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (part + 1, part + 1))


def staged(silos: SiloThread) -> dict[str, str]:
    """Return the options for writing to these silos."""
    return {"gateways": silos.gateways, "namespace": silos.namespace}


def run_stream(spark: SparkSession, folder: Path, options: dict[str, str]) -> StreamingQuery:
    """Write one micro-batch per file until all files are written."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    query = (
        rows.writeStream.format("millstream")
        .options(**options)
        .option("key_column", "carrier")
        .option("chunk_rows", 100)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(AWAIT_S)
    return query


def batch_rows(spark: SparkSession) -> DataFrame:
    """Make the rows of `row` in two partitions, with NaN for a missing delay."""
    at = f"timestamp_seconds({int(START.timestamp())} + id * 60) at"
    delay = "if(id % 5 = 0, double('NaN'), id / 4) delay"
    return spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('C', id % 7) carrier", delay, at)


def write_batch(rows: DataFrame, options: dict[str, str], **more: str) -> None:
    """Write the rows with `df.write`."""
    writer = rows.write.format("millstream").mode("append").options(**options)
    writer.option("key_column", "carrier").option("chunk_rows", 100).options(**more).save()


def assert_seen_once(silos: SiloThread, *, are_ordered: bool = True) -> None:
    """Check that each row reached its grain once, and in order where a partition's rows ascend."""
    assert_once(silos.seen(ROWS), are_ordered=are_ordered)


def assert_once(seen: dict[str, list[dict[str, Any]]], *, are_ordered: bool = True) -> None:
    """Check that these items contain each row once, and in order."""
    found = sorted((item for items in seen.values() for item in items), key=lambda item: item["id"])
    assert [item["id"] for item in found] == list(range(ROWS))
    for carrier, items in seen.items():
        ids = [item["id"] for item in items]
        assert not are_ordered or ids == sorted(ids)
        assert {item["carrier"] for item in items} == {carrier}
