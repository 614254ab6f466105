"""Publishing the flights from Spark, and Spark's own figures to compare with.

Owns: the Spark job: the months as a Structured Streaming source, three queries that write
`format("millstream")`, and one aggregation by Spark SQL. Runs in a thread: Spark blocks. Invariant:
a month's file is one partition, so rows of one key keep their order in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.providers.spark import session

from .check import Figures
from .cluster import CLUSTER
from .data import split_months
from .grains import AirportTally, PlaneTally

__all__ = ["SparkFlights"]

COLUMNS = ("carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
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
QUERY_S = 600


class SparkFlights:
    """The Spark side of the demo; every method blocks."""

    def __init__(self, work: Path, rows_max: int | None) -> None:
        self._work = work
        self._months = work / "months"
        split_months(self._months, rows_max)
        self._spark: Any = session("millstream-flights")

    def _rows(self, reader: Any) -> Any:
        options = {"header": "true", "nullValue": "NA", "maxFilesPerTrigger": "1"}
        return reader.schema(SCHEMA).options(**options).csv(str(self._months))

    def _flights(self, rows: Any, condition: str) -> Any:
        return rows.where(condition).selectExpr(
            "carrier",
            "tailnum",
            "origin",
            "dest",
            "CAST(dep_delay AS INT) AS dep_delay",
            "CAST(arr_delay AS INT) AS arr_delay",
        )

    def publish(self, gateways: Sequence[str]) -> int:
        """Write the three streams, month by month; returns the number of rows written."""
        # makes the session active in this JVM thread: Python sources are only found through it
        self._spark.createDataFrame([], "x INT")
        rows = self._rows(self._spark.readStream)
        queries = []
        for namespace, key, condition in STREAMS:
            writer = (
                self._flights(rows, condition)
                .coalesce(1)
                .writeStream.format("millstream")
                .option("gateways", ",".join(gateways))
                .option("cluster", CLUSTER)
                .option("namespace", namespace)
                .option("key_column", key)
                .option("value_columns", ",".join(COLUMNS))
                .option("delivery", "direct")
                .option("chunk_rows", "2000")
                .option("checkpointLocation", str(self._work / "checkpoints" / namespace))
                .trigger(availableNow=True)
            )
            queries.append(writer.start())
        for query in queries:
            if not query.awaitTermination(QUERY_S):
                raise TimeoutError(f"Spark did not finish writing within {QUERY_S} s")
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
        return sum(self._count(condition) for _, _, condition in STREAMS)

    def _count(self, condition: str) -> int:
        return int(self._rows_at_rest().where(condition).count())

    def _rows_at_rest(self) -> Any:
        options = {"header": "true", "nullValue": "NA"}
        return self._spark.read.schema(SCHEMA).options(**options).csv(str(self._months))

    def figures(self) -> Figures:
        """The expected figures, aggregated by Spark SQL."""
        self._rows_at_rest().createOrReplaceTempView("flights")
        found = Figures()
        for row in self._spark.sql(AIRPORTS_SQL).collect():
            found.airports[row.code] = AirportTally(
                row.departures, row.dep_delay, row.arrivals, row.arr_delay
            )
        for row in self._spark.sql(PLANES_SQL).collect():
            found.planes[row.tailnum] = PlaneTally(row.legs, row.dep_delay, row.arr_delay)
        return found

    def stop(self) -> None:
        """End the session and its JVM."""
        self._spark.stop()


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
