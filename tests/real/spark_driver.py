"""A driver of its own that writes files into streams, micro-batch by micro-batch; it may be killed
and started again: `python -m tests.real.spark_driver FOLDER GATEWAYS NAMESPACE`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.real.spark_rows import run_stream

from millstream.providers.spark import session

QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def main(folder: str, gateways: str, namespace: str) -> None:
    """Write until all is written."""
    java = Path(folder) / "java"
    spark = session(
        "millstream-driver",
        master="local[2,4]",
        extra_conf=QUICK_START,
        cache_dir=java,
    )
    run_stream(spark, Path(folder), {"gateways": gateways, "namespace": namespace})
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
