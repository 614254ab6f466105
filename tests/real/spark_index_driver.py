"""A Spark driver that updates an index until no changes are left. Tests kill and restart it.

Run it with `python -m tests.real.spark_index_driver FOLDER GATEWAYS CHECKPOINT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.real.spark_driver import quick_session

from millstream.providers.spark.index import IndexOptions, start_index


def main(folder: str, gateways: str, checkpoint: str) -> None:
    """Index all changes that exist."""
    spark = quick_session("local[2]", folder)
    query = start_index(
        spark,
        gateways=gateways,
        place=f"sqlite:{folder}/index.db",
        checkpoint=f"{folder}/{checkpoint}",
        options=IndexOptions(None, Path(folder) / "history", changes_per_batch=50),
        available_now=True,
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
