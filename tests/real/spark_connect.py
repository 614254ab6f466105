"""A Spark Connect program that writes rows, then copies them from one namespace to another.

Run it with `python -m tests.real.spark_connect FOLDER GATEWAYS NAMESPACE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.real.spark_rows import AWAIT_S, SCHEMA, batch_rows, write_batch

from millstream.providers.spark import session

COPY = "copied_rows"


def main(folder: str, gateways: str, namespace: str) -> None:
    """Write the rows, copy them, and print the number of rows in the copy."""
    spark = session("millstream-connect", remote="local[2]", cache_dir=Path(folder) / "java")
    into = {"gateways": gateways, "namespace": namespace}
    write_batch(batch_rows(spark), into)
    rows = spark.readStream.format("millstream").schema(SCHEMA)
    query = (
        rows.options(**into, starting_offsets="earliest")
        .load()
        .writeStream.format("millstream")
        .options(**{**into, "namespace": COPY, "key_column": "carrier"})
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(AWAIT_S) and query.exception() is None
    copied = spark.read.format("millstream").options(**{**into, "namespace": COPY})
    print(copied.schema(SCHEMA).load().count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
