"""Rows from Spark into streams: staged and direct, compared with `foreachPartition` and files.

There are 200,000 rows with 100 bytes, and 60,000 with 1 KB, in two partitions, with 1,000 keys. All
are written into durable queues of one silo in its own process.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.spark.machines import CLUSTER, Figures, Machines, per_row
from millstream.runtime import connect
from millstream.streams import StreamNamespace

__all__ = ["KEYS", "SHAPES", "files", "foreach", "ours", "rows_of"]

SHAPES = {"100b": (200_000, 100), "1kb": (60_000, 1_000)}
KEYS = 1_000
CHUNK = 500
BATCH_ROWS, BATCHES = 100, 20
ITEMS = StreamNamespace("rows", dict[str, Any])


def rows_of(spark: Any, rows: int, size: int) -> Any:
    """Return a frame of `rows` rows with payloads of about `size` bytes, in memory."""
    text = "sha2(cast(id as string), 256)"
    payload = f"substr(repeat({text}, {size // 64 + 1}), 1, {size - 30})"
    made = spark.range(0, rows, 1, 2).selectExpr(
        "id", f"concat('k', id % {KEYS}) key", f"{payload} payload"
    )
    made = made.persist()
    assert made.count() == rows
    return made


async def each_shape(
    work: Path, size: float, write: Callable[[Machines, Any, str, int], object]
) -> Figures:
    """Return rows a second of both shapes."""
    found: Figures = {}
    async with Machines(work) as machines:
        for name, (count, bytes_of_row) in SHAPES.items():
            rows = max(1_000, round(count * size))
            frame = rows_of(machines.spark, rows, bytes_of_row)
            cost = machines.costs(partial(write, machines, frame, name))
            found |= per_row(f"write_{name}", rows, cost)
            frame.unpersist()
    return found


def by_format(delivery: str, machines: Machines, frame: Any, name: str, number: int) -> None:
    (
        frame.write.format("millstream")
        .mode("append")
        .options(**machines.options("rows"))
        .option("key_column", "key")
        .option("delivery", delivery)
        .save()
    )


async def ours(work: Path, size: float) -> Figures:
    """The staged sink, the direct one, and micro-batches."""
    found = await each_shape(work, size, partial(by_format, "staged"))
    (work / "direct").mkdir()
    direct = await each_shape(work / "direct", size, partial(by_format, "direct"))
    found |= {name.replace("write", "direct"): figure for name, figure in direct.items()}
    (work / "stream").mkdir()
    async with Machines(work / "stream") as machines:
        options = {**machines.options("rows"), "key_column": "key"}
        sink = partial(to_format, "millstream", options)
        return found | micro_batches(machines, work / "checkpoint", sink)


def to_format(name: str, options: dict[str, str], frame: Any) -> Any:
    return frame.writeStream.format(name).options(**options)


def micro_batches(machines: Machines, checkpoint: Path, sink: Callable[[Any], Any]) -> Figures:
    """Return the median time of a micro-batch of 100 rows, from its trigger to its commit."""
    source = machines.spark.readStream.format("rate-micro-batch")
    frame = source.option("rowsPerBatch", BATCH_ROWS).option("numPartitions", 2).load()
    frame = frame.selectExpr("value id", f"concat('k', value % {KEYS}) key", "'x' payload")
    query = sink(frame).option("checkpointLocation", str(checkpoint)).start()
    while len(query.recentProgress) < BATCHES:
        query.awaitTermination(1)
        assert query.isActive, query.exception()
    query.stop()
    laps = [one["durationMs"]["triggerExecution"] for one in query.recentProgress[2:]]
    return {"micro_batch_ms": statistics.median(laps)}


# -- alternatives


async def foreach(work: Path, size: float) -> Figures:
    """`foreachPartition` with a client in each partition: a program without a sink."""
    return await each_shape(work, size, by_client)


def by_client(machines: Machines, frame: Any, name: str, number: int) -> None:
    frame.foreachPartition(partial(publish_all, machines.gateway))


def publish_all(gateway: str, rows: Iterable[Any]) -> None:
    asyncio.run(_publish_all(gateway, rows))


async def _publish_all(gateway: str, rows: Iterable[Any]) -> None:
    """Publish 500 rows at a time; those of a key in one call, with concurrent calls."""
    async with connect(gateway, cluster=CLUSTER) as client:
        waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)

        async def flush() -> None:
            publish = (client.stream(ITEMS, k).publish_many(v) for k, v in waiting.items())
            await asyncio.gather(*publish)
            waiting.clear()

        for number, row in enumerate(rows, 1):
            waiting[row.key].append(row.asDict())
            if number % CHUNK == 0:
                await flush()
        await flush()


async def files(work: Path, size: float) -> Figures:
    """Parquet files on the same disk."""
    found = await each_shape(work, size, partial(by_files, work))
    (work / "stream").mkdir()
    async with Machines(work / "stream") as machines:
        sink = partial(to_format, "parquet", {"path": str(work / "out")})
        return found | micro_batches(machines, work / "checkpoint", sink)


def by_files(work: Path, machines: Machines, frame: Any, name: str, number: int) -> None:
    frame.write.mode("overwrite").parquet(str(work / name))
