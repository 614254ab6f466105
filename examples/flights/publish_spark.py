"""Publishes the flights from Spark, and counts Spark's own figures for comparison.

This module owns the Spark job: the months as a Structured Streaming source, three queries that
write `format("millstream")`, and one aggregation by Spark SQL. It runs in a thread, because Spark
blocks. A month's file is one partition, so rows of one key keep their order in the file. A
restarted query has the same identity, so the cluster drops repeats. As a program (`python -m ...
WORK GATEWAY...`) it only publishes, and ends with its standard input.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from millstream.providers.spark import session
from millstream.runtime import MillstreamError

from .check import Figures
from .cluster import CLUSTER
from .grains import AirportTally, PlaneTally

__all__ = ["LOCAL", "MONTHS", "SparkFlights"]

MONTHS = "months"
COLUMNS = ("carrier", "tailnum", "origin", "dest")
DELAYS = ("dep_delay", "arr_delay")
SCHEMA = (
    "year INT, month INT, day INT, dep_time DOUBLE, sched_dep_time DOUBLE, dep_delay DOUBLE, "
    "arr_time DOUBLE, sched_arr_time DOUBLE, arr_delay DOUBLE, carrier STRING, flight STRING, "
    "tailnum STRING, origin STRING, dest STRING, air_time DOUBLE, distance DOUBLE, hour DOUBLE, "
    "minute DOUBLE, time_hour STRING"
)
STREAMS = (
    ("departures", "origin", "dep_time IS NOT NULL"),
    ("arrivals", "dest", "arr_time IS NOT NULL"),
    ("tails", "tailnum", "tailnum IS NOT NULL"),
)
CHUNK_ROWS = 16_000
OBSERVED = "written"
QUERY_S = 600
TRIES_MAX = 3
LOCAL = "local[2]"

log = logging.getLogger("millstream.flights")


class SparkFlights:
    """The Spark side of the example. Every method blocks; other threads may only call `stop`.

    Args:
        work: A directory with the flights by months in `MONTHS`. It gets the checkpoints, and the
            executors see it.
        master: Spark's master, such as `spark://127.0.0.1:7077`.
    """

    def __init__(self, work: Path, master: str = LOCAL) -> None:
        self._work = work
        self._months = work / MONTHS
        self._spark: Any = session("millstream-flights", master=master)

    def publish(self, gateways: Sequence[str]) -> int:
        """Write the three streams, month by month; return the number of rows that Spark wrote.

        Raises MillstreamError if a query fails repeatedly, or takes longer than 10 minutes.
        """
        # makes the session active in this JVM thread, because Python sources are found only through
        # it
        self._spark.createDataFrame([], "x INT")
        starts = [partial(self._start, gateways, *stream) for stream in STREAMS]
        queries = [start() for start in starts]
        return sum(_finish(query, again) for query, again in zip(queries, starts, strict=True))

    def _start(self, gateways: Sequence[str], namespace: str, key: str, condition: str) -> Any:
        """Start a query, or continue at its checkpoint."""
        from pyspark.sql.functions import count, lit

        return (
            self._rows(self._spark.readStream.option("maxFilesPerTrigger", "1"))
            .where(condition)
            .selectExpr(*COLUMNS, *map(_whole, DELAYS))
            .coalesce(1)  # even if Spark splits a file
            .observe(OBSERVED, count(lit(1)).alias("rows"))
            .writeStream.format("millstream")
            .option("gateways", ",".join(gateways))
            .option("cluster", CLUSTER)
            .option("namespace", namespace)
            .option("key_column", key)
            .option("chunk_rows", CHUNK_ROWS)
            .option("checkpointLocation", str(self._work / "checkpoints" / namespace))
            .trigger(availableNow=True)
            .start()
        )

    def _rows(self, reader: Any) -> Any:
        options = {"header": "true", "nullValue": "NA"}
        return reader.schema(SCHEMA).options(**options).csv(str(self._months))

    def figures(self) -> Figures:
        """Return the expected figures, aggregated by Spark SQL."""
        self._rows(self._spark.read).createOrReplaceTempView("flights")
        found = Figures()
        for row in self._spark.sql(AIRPORTS_SQL).collect():
            found.airports[row.code] = AirportTally(
                row.departures, row.dep_delay, row.arrivals, row.arr_delay
            )
        for row in self._spark.sql(PLANES_SQL).collect():
            found.planes[row.tailnum] = PlaneTally(row.legs, row.dep_delay, row.arr_delay)
        return found

    def stop(self) -> None:
        """End the queries and the session."""
        self._spark.sparkContext.setLogLevel("OFF")  # cancelled tasks log much
        for query in self._spark.streams.active:
            query.stop()
        self._spark.stop()


def _whole(column: str) -> str:
    return f"CAST({column} AS INT) AS {column}"


def _finish(query: Any, again: Callable[[], Any]) -> int:
    """Wait for a query; return the number of rows that its batches wrote.

    A failed query continues from its checkpoint, as under a supervisor. On a busy machine Spark
    gives up on a Python worker that does not connect within 10 s.
    """
    from pyspark.errors import StreamingQueryException

    rows = 0
    for attempt in range(1, TRIES_MAX + 1):
        try:
            if not query.awaitTermination(QUERY_S):
                raise MillstreamError(f"Spark did not finish writing within {QUERY_S} s")
            return rows + _count_written(query)
        except StreamingQueryException as error:
            if attempt == TRIES_MAX:
                raise MillstreamError(f"Spark could not write: {error}") from error
            log.warning("a Spark query failed and is started again: %s", error)
            rows += _count_written(query)
            query = again()
    raise AssertionError("the last attempt returns or raises")


def _count_written(query: Any) -> int:
    batches = [progress.observedMetrics.get(OBSERVED) for progress in query.recentProgress]
    return sum(int(batch["rows"]) for batch in batches if batch is not None)


AIRPORTS_SQL = """
SELECT code, SUM(departures) AS departures, SUM(dep_delay) AS dep_delay,
       SUM(arrivals) AS arrivals, SUM(arr_delay) AS arr_delay
FROM (
  SELECT origin AS code, 1 AS departures, COALESCE(CAST(dep_delay AS INT), 0) AS dep_delay,
         0 AS arrivals, 0 AS arr_delay
  FROM flights WHERE dep_time IS NOT NULL
  UNION ALL
  SELECT dest, 0, 0, 1, COALESCE(CAST(arr_delay AS INT), 0)
  FROM flights WHERE arr_time IS NOT NULL
)
GROUP BY code
"""

PLANES_SQL = """
SELECT tailnum, COUNT(*) AS legs, SUM(COALESCE(CAST(dep_delay AS INT), 0)) AS dep_delay,
       SUM(COALESCE(CAST(arr_delay AS INT), 0)) AS arr_delay
FROM flights WHERE tailnum IS NOT NULL GROUP BY tailnum
"""


def main(work: str, *gateways: str) -> None:
    """Publish all flights."""

    def end_with_input() -> None:
        while os.read(0, 1):  # not with a lock that the interpreter needs at its end
            pass
        os._exit(1)  # the parent process has ended, and the JVM ends with this process

    threading.Thread(target=end_with_input, daemon=True).start()
    spark = SparkFlights(Path(work))
    spark.publish(gateways)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
