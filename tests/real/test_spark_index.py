"""The index of priority queues in a real Spark session, compared with the queues of a running
cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.real.spark_rows import AWAIT_S

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.priority import (
    MemoryStore,
    MessageExists,
    PriorityQueues,
    QueueSettings,
    changes_lag_s,
    priority_queue,
)
from millstream.providers.spark.index import (
    IndexOptions,
    PriorityIndex,
    differences,
    start_index,
)
from millstream.runtime import LocalCluster
from millstream.streams import HashRingMapper, PersistentStreams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real]


class Queues:
    """A silo with priority queues whose changes go to a ledger, on its own event loop."""

    def __init__(self, folder: Path) -> None:
        options = LedgerOptions(topic=LedgerTopicOptions(retention_s=3600.0))
        store = MemoryStore(events=True)

        def streams() -> PersistentStreams:
            queues = LedgerQueues(folder / "ledger", options=options)
            mapper = HashRingMapper(queues=4)
            return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.cluster = LocalCluster(
            grains=[],
            streams={"default": streams},
            parts={"priority": lambda: PriorityQueues(store, changes="default")},
        )

    def run(self, coro: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result(60)

    def start(self) -> None:
        self._thread.start()
        self.run(self.cluster.__aenter__())

    def stop(self) -> None:
        self.run(self.cluster.__aexit__(None, None, None))
        self.run(asyncio.sleep(0.1))  # the loop closes sockets in its next iteration
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()

    async def work(self, messages: int) -> None:
        """Complete some messages, fail some, return some, and leave some waiting."""
        for name in ("encode", "thumbs"):
            queue = priority_queue(self.cluster, name)
            for number in range(messages):
                await queue.enqueue(b"x", metadata={"size": "SL"[number % 2]}, attempts=2)
            for lease in await queue.dequeue(worker="w", count=messages // 2):
                match lease.priority % 4:
                    case 0:
                        await lease.fail("no disk")
                    case 1:
                        await lease.release()
                    case 2:
                        await lease.complete()

    async def share_ids(self, values: int) -> None:
        """Put messages with the same id into several shards of an exclusive queue."""
        queue = priority_queue(self.cluster, "renders")
        await queue.create(QueueSettings(exclusivity_key="project", shards=4))
        for value in range(values):
            with suppress(MessageExists):  # the id is already in the shard of an earlier value
                await queue.enqueue(b"x", id="m", metadata={"project": f"p{value}"})

    async def depths(self) -> dict[str, dict[str, int]]:
        """Return the depths of all queues, once all changes are in the stream."""
        while await changes_lag_s(self.cluster):
            await asyncio.sleep(0.05)
        return {
            name: {
                state.name.lower(): count
                for state, count in (await priority_queue(self.cluster, name).depth()).items()
                if count
            }
            for name in ("encode", "renders", "thumbs")
        }


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Queues]:
    made = Queues(tmp_path)
    made.start()
    yield made
    made.stop()


def test_an_index_is_as_the_queues_are(spark: SparkSession, queues: Queues, tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path}/index.db"

    def run(checkpoint: str, **options: Any) -> None:
        query = start_index(
            spark,
            gateways=queues.cluster.silos[0].gateway,
            place=place,
            checkpoint=str(tmp_path / checkpoint),
            options=IndexOptions(parquet=tmp_path / "history", **options),
            available_now=True,
        )
        assert query.awaitTermination(AWAIT_S)

    run("first")
    queues.run(queues.share_ids(30))
    with PriorityIndex(place) as index:
        assert index.depth() == {}
        for messages, checkpoint in ((20, "first"), (30, "first"), (0, "another")):
            queues.run(queues.work(messages)) if messages else None
            run(checkpoint, changes_per_batch=25)
            assert not differences(index.depth(), queues.run(queues.depths()))
            assert not index.verify()
        assert [one.shard for one in index.messages("renders", "m")] == [0, 1, 2, 3]
        running, small = index.depth("encode"), index.depth("encode", wanted={"size": "S"})
        assert running["encode"]["running"] and small["encode"]["pending"]
        errors = index.processing_errors("encode")
        assert errors.failed and errors.released and not errors.expired
        changes = next(row for row in index.time_in_state() if row.state == "running").visits
    history = spark.read.parquet(str(tmp_path / "history"))
    assert history.where("to_state = 'running'").count() == changes
    names = ("queue", "shard", "id", "created_ms", "sequence", "version")
    assert history.count() == history.select(*names).distinct().count()
