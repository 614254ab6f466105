"""The Spark query that keeps an index: reads the changes, and puts each micro-batch in.

Owns: `start_index`, the columns that it reads. Not: what is done with a batch (`writer`).
Invariant: a micro-batch is put in under its query's id and its own, which Spark gives again when it
runs it again; so a checkpoint and an index that are not of the same age go together, too.
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
CHANGES = "millstream.priority.changes"  # `PRIORITY_CHANGES.name`; providers do not know each other
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
"""What of a change the query reads."""


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
    """Start the query that keeps an index of the priority queues of a cluster.

    It begins with the oldest change that the provider keeps, and goes on where its checkpoint says.
    A place has one such query at a time.

    Args:
        gateways, cluster: of the cluster, as in `docs/guides/spark.md`.
        place: `sqlite:path` or `postgresql://user@host/database`; made if it is not there.
        checkpoint: a directory of the query. Without it (emptied, lost) the query begins at the
            oldest change again, and the index stays as it is.
        provider: where the changes are, as in `PriorityQueues(store, changes=provider)`.
        available_now: end once what is there now is in; else go on.
        period_s: how often a micro-batch begins, in seconds; 0: as soon as the last one is done.
            Each makes a file, where `options.parquet` is given: then 60 and more is better.
    Returns: Spark's query; `awaitTermination()` waits for its end.
    Raises: ConfigError: `place`, or what is there, such as changes of another cluster;
        SiloUnavailable: no gateway answers. The query ends with StorageUnavailable while the place
        cannot be written: start it again.
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
    """What Spark calls with each micro-batch."""

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer

    def __call__(self, frame: DataFrame, batch: int) -> None:
        context = frame.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_ID)
        assert query, "Spark tells the query's id to whoever takes a batch"
        rows = rows_of(frame.toArrow())
        self._writer.apply(query, batch, rows, round(Env().wall_s() * 1000))
