"""A Spark driver that writes files into streams in micro-batches. Tests kill and restart it.

Run it with `python -m tests.real.spark_driver FOLDER GATEWAYS NAMESPACE`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.spark_rows import run_stream

from millstream.providers.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def quick_session(master: str, folder: str) -> SparkSession:
    """Make a session that starts soon and compiles little."""
    java = Path(folder) / "java"
    return session("millstream-driver", master=master, extra_conf=QUICK_START, cache_dir=java)


def main(folder: str, gateways: str, namespace: str) -> None:
    """Write until every file is written."""
    spark = quick_session("local[2,4]", folder)
    run_stream(spark, Path(folder), {"gateways": gateways, "namespace": namespace})
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
