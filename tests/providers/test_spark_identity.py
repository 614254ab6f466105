"""Spark's offsets belong to one cluster, provider and namespace. With another one, a query
fails."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.providers.test_spark_reading import EACH, NUMBERS, Spark, expected, in_cluster

from millstream.providers.spark.index import IndexWriter
from millstream.providers.spark.index.job import CHANGES
from millstream.runtime import ConfigError, CursorTooOld
from millstream.streams import Token
from millstream.streams.extending import QueueReads
from millstream.streams.rewinding.claims import Holder
from pyspark_millstream.background import background
from pyspark_millstream.offsets import make_stored
from pyspark_millstream.questions import ask_cluster
from pyspark_millstream.reader import ask_source

pytestmark = pytest.mark.real


async def end_of(folder: Path) -> dict[str, Any]:
    """Return the offset of a query that has read everything in a cluster."""
    async with in_cluster(folder) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest")
        begun = await asyncio.to_thread(reader.initialOffset)
        end, _ = await spark.drain(reader, begun, 1 << 40)
        return dict(end)


async def end_in(spark: Spark, start: dict[str, Any], **more: Any) -> Any:
    """Return the end of the next batch."""
    reader = spark.reader(**more)
    return await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())


async def test_a_checkpoint_of_a_cluster_that_was_built_anew_is_refused(tmp_path: Path) -> None:
    before = await end_of(tmp_path / "before")
    async with in_cluster(tmp_path / "anew") as spark:
        await spark.publish(7)  # fewer messages than the query has read
        with pytest.raises(ConfigError, match="incarnation .* new checkpoint"):
            await end_in(spark, before)
        await spark.publish()  # now more messages than the query has read
        with pytest.raises(ConfigError, match="incarnation .* new checkpoint"):
            await end_in(spark, before)


async def test_a_query_that_may_lose_messages_begins_anew_in_a_cluster_that_was_built_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = await end_of(tmp_path / "before")
    async with in_cluster(tmp_path / "anew") as spark:
        await spark.publish(7)
        with caplog.at_level(logging.WARNING):
            reader = spark.reader(fail_on_data_loss="false")
            moved, found = await spark.batch(reader, before, ReadAllAvailable())
        assert found == {} and "the query starts again" in caplog.text
        assert await asyncio.to_thread(spark.reader().partitions, before, moved) == []
        _, found = await spark.drain(spark.reader(), moved, 1 << 40)
        assert found == expected(0, 7)


async def test_a_checkpoint_of_another_namespace_is_refused(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        reader = spark.reader(starting_offsets="earliest")
        end, _ = await spark.drain(reader, await asyncio.to_thread(reader.initialOffset), 1 << 40)
        with pytest.raises(ConfigError, match="namespace 'known_rows'.* namespace 'read_rows'"):
            await end_in(spark, end, namespace="known_rows")


async def test_a_stated_start_of_another_cluster_is_refused(tmp_path: Path) -> None:
    before = await end_of(tmp_path / "before")
    async with in_cluster(tmp_path / "anew") as spark:
        await spark.publish(7)
        stated: dict[str, Any] = {"starting_offsets": json.dumps(before)}
        with pytest.raises(ConfigError, match="incarnation"):
            await asyncio.to_thread(spark.source(**stated).reader(NUMBERS).partitions)
        with pytest.raises(ConfigError, match="incarnation"):
            await asyncio.to_thread(spark.reader(**stated).initialOffset)


async def test_a_consumer_of_another_cluster_moves_nothing(tmp_path: Path) -> None:
    before = await end_of(tmp_path / "before")
    async with in_cluster(tmp_path / "anew") as spark:
        await spark.publish(7)
        reader = spark.reader(consumer="totals")
        for call in (
            lambda: reader.latestOffset(before, ReadAllAvailable()),
            lambda: reader.commit(before),
        ):
            with pytest.raises(ConfigError, match="incarnation"):
                await asyncio.to_thread(call)
        await asyncio.to_thread(reader.stop)
        reader = spark.reader(starting_offsets="earliest", consumer="totals")
        begun = await asyncio.to_thread(reader.initialOffset)
        _, found = await spark.drain(reader, begun, 1 << 40)
        assert found == expected(0, 7)


async def test_an_index_takes_changes_of_one_cluster(tmp_path: Path) -> None:
    """`start_index` makes this check before it starts a query."""
    found: list[str] = []
    for folder in ("before", "anew"):
        async with in_cluster(tmp_path / folder) as spark:
            given = {**spark.source().options, "namespace": CHANGES}
            found += [await asyncio.to_thread(ask_source, given) for _ in range(2)]
    assert found[0] == found[1] and found[2] == found[3] != found[0]
    place = f"sqlite:{tmp_path}/index.db"
    IndexWriter(place).prepare(found[0])
    with pytest.raises(ConfigError, match="has the changes of cluster 'dev'"):
        IndexWriter(place).prepare(found[2])


async def test_a_position_behind_the_end_of_its_queue_is_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the state of a cluster was restored from an older copy."""
    async with in_cluster(tmp_path) as spark:
        await spark.publish()
        source, extents = await asyncio.to_thread(spark.reader()._source.look)
        ahead = {one.queue: Token(0, one.end.seq + 9) for one in extents if one.end is not None}
        with pytest.raises(CursorTooOld, match="it ends before .* restored from an older copy"):
            await end_in(spark, make_stored(source, ahead), patience_s="0.2")
        with caplog.at_level(logging.WARNING):
            reader = spark.reader(fail_on_data_loss="false", patience_s="0.2")
            _, found = await spark.drain(reader, make_stored(source, ahead), 1 << 40)
        assert found == expected(0, EACH) and "the query continues at" in caplog.text


async def test_a_stated_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        await spark.publish(1)
        stated = json.dumps({"queue-7": str(Token(0, 1))})
        with pytest.raises(
            ConfigError, match="names queue 'queue-7', .* its queues are queue-0, queue-1"
        ):
            await asyncio.to_thread(spark.reader(starting_offsets=stated).initialOffset)


async def test_a_second_query_with_the_same_consumer_is_refused(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as spark:
        first, second = spark.reader(consumer="totals"), spark.reader(consumer="totals")
        begun = await asyncio.to_thread(first.initialOffset)
        with pytest.raises(ConfigError, match="reader 'totals' is in use by another run"):
            await asyncio.to_thread(second.initialOffset)
        await asyncio.to_thread(first.latestOffset, begun, ReadAllAvailable())
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(second.initialOffset)  # without waiting
        for call in (
            lambda: first.latestOffset(begun, ReadAllAvailable()),
            lambda: first.commit(begun),
        ):
            with pytest.raises(ConfigError, match="reader 'totals' is in use by another run"):
                await asyncio.to_thread(call)


async def test_a_run_that_was_taken_over_is_told_by_whom(tmp_path: Path) -> None:
    """As if the run's machine hung for longer than a claim lasts."""
    async with in_cluster(tmp_path) as spark:
        former = spark.reader(consumer="totals")
        begun = await asyncio.to_thread(former.initialOffset)

        async def take_over(reads: QueueReads) -> Holder:
            return await reads.claim("totals", "newer", await reads.claim("totals", "newer"))

        options = former._source.options
        taken = await asyncio.to_thread(lambda: background().run(ask_cluster(options, take_over)))
        assert taken.run == "newer"
        calls = (
            lambda: former.latestOffset(begun, ReadAllAvailable()),
            lambda: former.commit(begun),
        )
        for call in calls:
            with pytest.raises(ConfigError, match="'totals' was taken over by another run .newer"):
                await asyncio.to_thread(call)
        await asyncio.to_thread(former.stop)  # keeps the claim of the other run
        again = await asyncio.to_thread(lambda: background().run(ask_cluster(options, take_over)))
        assert again.run == "newer" and again.beat > taken.beat

        async def give_up(reads: QueueReads) -> None:
            await reads.release("totals", "newer")

        await asyncio.to_thread(lambda: background().run(ask_cluster(options, give_up)))
        for call in calls:  # a run that was taken over cannot continue
            with pytest.raises(ConfigError, match="was taken over by another run .newer"):
                await asyncio.to_thread(call)
