"""A driver of its own that keeps an index until nothing is left, which may be killed and started
again: `python -m tests.real.spark_index_driver FOLDER GATEWAYS CHECKPOINT`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.real.spark_driver import quick_session

from millstream.providers.spark.index import IndexOptions, start_index


def main(folder: str, gateways: str, checkpoint: str) -> None:
    """Index what is there."""
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
