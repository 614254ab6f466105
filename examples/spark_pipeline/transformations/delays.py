"""The pipeline: arrivals as a table, their delays by airport as a view, and late ones as a stream.

`spark-pipelines run` runs it. The variable MILLSTREAM_GATEWAYS has the gateways of the cluster.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, count, lit

CLUSTER = {"gateways": os.environ["MILLSTREAM_GATEWAYS"]}
LATE_MIN = 60
spark = SparkSession.active()


@dp.table
def arrivals() -> DataFrame:
    """Every event of the namespace, once; a run continues where the run before it ended."""
    rows = spark.readStream.format("millstream").schema("carrier string, dest string, delay int")
    options = {**CLUSTER, "namespace": "arrivals", "starting_offsets": "earliest"}
    return rows.options(**options).load()


@dp.materialized_view
def delays() -> DataFrame:
    """Delays by airport, computed again by each run."""
    found = spark.read.table("arrivals").groupBy("dest")
    return found.agg(count(lit(1)).alias("flights"), avg("delay").alias("delay"))


dp.create_sink("late", "millstream", {**CLUSTER, "namespace": "late", "key_column": "dest"})


@dp.append_flow(target="late")
def late_flights() -> DataFrame:
    """Late flights, published to the cluster."""
    return spark.readStream.table("arrivals").where(f"delay >= {LATE_MIN}")
