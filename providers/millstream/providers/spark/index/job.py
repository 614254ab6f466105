"""The Spark query that maintains an index: it reads the changes and stores each micro-batch.

This module owns `start_index` and the columns that it reads, and `writer` stores a batch. A
micro-batch is stored under the id of its query and its own number. Spark repeats both when it runs
the batch again, so a checkpoint and an index of different age still fit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.runtime import Env

from .changes import COLUMNS, rows_of
from .options import IndexOptions
from .writer import IndexWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["CHANGES", "SCHEMA", "start_index"]

QUERY_ID = "sql.streaming.queryId"
# `PRIORITY_CHANGES.name`; providers do not import each other
CHANGES = "millstream.priority.changes"
_KINDS = {
    **dict.fromkeys(("version", "time_ms", "priority", "due_ms"), "bigint"),
    **dict.fromkeys(("created_ms", "sequence"), "bigint"),
    **dict.fromkeys(("attempt", "payload_bytes", "shard"), "int"),
    "metadata": "map<string,string>",
}
SCHEMA = ", ".join(
    "_token string" if name == "token" else f"{name} {_KINDS.get(name, 'string')}"
    for name in COLUMNS
)
"""The fields of a change that the query reads."""


def start_index(
    spark: SparkSession,
    *,
    gateways: str,
    place: str,
    checkpoint: str,
    cluster: str = "dev",
    provider: str = "default",
    options: IndexOptions | None = None,
    available_now: bool = False,
    period_s: float = 1.0,
) -> StreamingQuery:
    """Start the Spark query that maintains an index of the priority queues of a cluster.

    The query begins with the oldest change that the provider keeps, and continues at its
    checkpoint. Each change is stored once, even if Spark repeats a batch. One query at a time may
    write an index. If the database cannot be written, the query ends with `StorageUnavailable`:
    start it again.

    Args:
        spark: A session that knows `format("millstream")`, such as that of `session`.
        gateways: Addresses of gateways of the cluster, `host:port`, separated by commas.
        place: The database: `sqlite:path` or `postgresql://user@host/database`. The SQLite
            file, or the PostgreSQL tables, are created if they do not exist.
        checkpoint: A directory for the query. If it is lost, the query begins at the oldest change
            again and does not alter the index.
        cluster: The name of the cluster.
        provider: The stream provider of the changes, as in `PriorityQueues(store,
            changes=provider)`.
        options: How to keep the index. Default: `IndexOptions()`.
        available_now: True ends the query when the present changes are stored. False continues.
        period_s: The seconds between the beginnings of two micro-batches. 0: begin as soon as the
            last one is stored. With `options.parquet` each micro-batch writes a file, so use 60 or
            more.

    Returns:
        Spark's query; `awaitTermination()` waits for its end.

    Raises:
        ConfigError: `place` is not valid, another process writes it, or it has other content, such
            as changes of another cluster.
        SiloUnavailable: No gateway answers.
        StorageUnavailable: The database cannot be opened or written.
    """
    from pyspark_millstream.reader import ask_source

    chosen = options or IndexOptions()
    writer = IndexWriter(place, chosen)
    given = {"gateways": gateways, "cluster": cluster, "provider": provider, "namespace": CHANGES}
    writer.prepare(ask_source(given))
    names = ["_token AS token" if name == "token" else name for name in COLUMNS]
    changes = (
        spark.readStream.format("millstream")
        .schema(SCHEMA)
        .options(**given)
        .option("starting_offsets", "earliest")
        .option("max_messages_per_batch", chosen.changes_per_batch)
        .load()
        .selectExpr(*names)
    )
    query = changes.writeStream.foreachBatch(_Put(writer)).option("checkpointLocation", checkpoint)
    if available_now:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{round(period_s * 1000)} milliseconds").start()


class _Put:
    """The function that Spark calls with each micro-batch."""

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer

    def __call__(self, frame: DataFrame, batch: int) -> None:
        context = frame.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_ID)
        assert query, "Spark gives the id of the query to foreachBatch"
        rows = rows_of(frame.toArrow())
        self._writer.apply(query, batch, rows, round(Env().wall_s() * 1000))
