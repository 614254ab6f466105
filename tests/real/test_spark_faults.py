"""What goes wrong in Spark while a batch is staged: `make test-spark-faults`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")
pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from tests.real.silo_thread import SiloThread
from tests.real.spark_rows import (
    assert_seen_once,
    batch_rows,
    staged,
    write_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark_faults, pytest.mark.timeout(400)]


def once(fault: Any) -> Any:
    """Rows of the second partition: the first attempt goes wrong behind some of them; the next
    one gives them in another order."""

    def go(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 1:
            yield from batches
        elif context.attemptNumber() == 0:
            yield next(batches)
            fault()
        else:
            for batch in batches:
                yield batch.take(list(reversed(range(batch.num_rows))))

    return go


def exits() -> None:
    os._exit(3)


def raises() -> None:
    raise OSError("on purpose")


@pytest.mark.parametrize("fault", [exits, raises], ids=["exits", "raises"])
def test_a_task_that_is_tried_again_and_sees_another_order_adds_nothing(
    spark: SparkSession, fault: Any
) -> None:
    rows = batch_rows(spark)
    with SiloThread() as silos:
        write_batch(rows.mapInArrow(once(fault), rows.schema), staged(silos))
        assert_seen_once(silos, are_ordered=False)
