"""Spark's staged writer and real silos, without a JVM: tasks, commit, abort, and repeated
batches."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.conditions import until  # noqa: E402

from millstream.balancers import DeploymentBalancer  # noqa: E402
from millstream.providers.ledger import LedgerQueues  # noqa: E402
from millstream.providers.memory import MemoryQueues  # noqa: E402
from millstream.runtime import (  # noqa: E402
    Env,
    Grain,
    LocalCluster,
    MemoryStateStore,
    NotHosted,
    StreamError,
)
from millstream.streams import (  # noqa: E402
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    subscribe,
)
from pyspark_millstream.background import end_background  # noqa: E402
from pyspark_millstream.options import WriteOptions  # noqa: E402
from pyspark_millstream.rows import (  # noqa: E402
    CALL_BYTES,
    CallCutter,
    KeyedRows,
    encode_message,
)
from pyspark_millstream.staging import (  # noqa: E402
    StagedPart,
    abort_batch,
    commit_batch,
    make_writer_name,
    stage_rows,
)
from pyspark_millstream.tokens import Origin  # noqa: E402
from pyspark_millstream.writer import batch_writer  # noqa: E402

pytestmark = pytest.mark.real

ROWS = StreamNamespace("staged_rows", dict[str, int])
SEEN: dict[str, list[int]] = defaultdict(list)
COUNT = 300
KEYS = 7


class StagedTable(Grain):
    @subscribe(ROWS)
    async def on_row(self, event: Event[dict[str, int]]) -> None:
        SEEN[self.key].append(event.item["n"])


def streams() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=4), balancer=DeploymentBalancer()
    )


class Spark:
    """A driver and its tasks. Each task blocks in a thread."""

    def __init__(self, cluster: LocalCluster, store: MemoryStateStore) -> None:
        self.cluster = cluster
        self.store = store
        self.options = WriteOptions(
            tuple(silo.gateway for silo in cluster.silos),
            "staged_rows",
            "key",
            ("n",),
            chunk_rows=20,
            patience_s=10.0,
        )

    async def task(
        self, batch: int, part: int, pace: Callable[[int], object] | None = None, **more: Any
    ) -> Any:
        origin = Origin("w", batch, part)
        call = partial(stage_rows, self.options, origin, batches(batch, part, pace), **more)
        message = await asyncio.to_thread(call)
        return pickle.loads(pickle.dumps(message))  # pickled, as the driver gets it

    async def commit(self, *messages: Any) -> None:
        await asyncio.to_thread(commit_batch, self.options, messages)

    async def abort(self, *messages: Any) -> None:
        await asyncio.to_thread(abort_batch, self.options, messages)

    def chunks(self) -> int:
        return len(self.store.range("staged/default/chunk/", "", 1_000))


def batches(batch: int, part: int, pace: Callable[[int], object] | None) -> Iterator[Any]:
    """Yield COUNT rows of a part in Arrow batches of 50."""
    first = (2 * batch + part) * COUNT
    for start in range(first, first + COUNT, 50):
        if pace is not None:
            pace(start - first)
        numbers = list(range(start, start + 50))
        yield arrow.record_batch({"key": [f"k{n % KEYS}" for n in numbers], "n": numbers})


@asynccontextmanager
async def spark(
    make: Callable[[], PersistentStreams] = streams, silos: int = 2
) -> AsyncIterator[Spark]:
    SEEN.clear()
    store = MemoryStateStore()
    async with LocalCluster(
        silos=silos, grains=[StagedTable], streams={"default": make}, stores={"default": store}
    ) as cluster:
        yield Spark(cluster, store)
        await asyncio.to_thread(end_background)


async def assert_seen(batches: int) -> None:
    """Check that every row of these batches arrived once, in the order of parts and rows."""
    count = 2 * batches * COUNT
    await until(lambda: sum(map(len, SEEN.values())) >= count)
    assert dict(SEEN) == {f"k{k}": [n for n in range(count) if n % KEYS == k] for k in range(KEYS)}


async def test_rows_are_seen_once_the_driver_has_committed() -> None:
    async with spark() as driver:
        messages = [await driver.task(0, part) for part in (1, 0)]
        assert driver.chunks() > 0 and not SEEN
        assert [message.rows for message in messages] == [COUNT, COUNT]
        await driver.commit(*messages)
        await assert_seen(1)


async def test_a_batch_that_is_run_again_writes_and_adds_nothing() -> None:
    async with spark() as driver:
        await driver.commit(*[await driver.task(0, part) for part in (0, 1)])
        again = [await driver.task(0, part) for part in (0, 1)]
        assert all(message.manifest is None for message in again)
        await driver.commit(*again)
        await driver.commit(*[await driver.task(1, part) for part in (0, 1)])
        await assert_seen(2)


async def test_a_task_that_fails_half_way_leaves_nothing_that_is_seen() -> None:
    def fail(row: int) -> None:
        if row >= COUNT // 2:
            raise OSError("the worker dies")

    async with spark() as driver:
        with pytest.raises(OSError, match="the worker dies"):
            await driver.task(0, 0, fail)
        await driver.commit(*[await driver.task(0, part) for part in (0, 1)])
        await assert_seen(1)


async def test_of_a_batch_that_is_aborted_nothing_is_seen_and_it_may_be_run_again() -> None:
    async with spark() as driver:
        message = await driver.task(0, 0)
        await driver.abort(message, None)
        with pytest.raises(StreamError, match="is not committed: attempts were dropped"):
            await driver.commit(message)
        await driver.commit(*[await driver.task(0, part) for part in (0, 1)])
        await assert_seen(1)


async def test_a_task_goes_on_by_another_gateway_when_its_own_stops() -> None:
    async with spark() as driver:
        loop = asyncio.get_running_loop()

        def stop_one(row: int) -> None:
            if row == 100:
                stopping = driver.cluster.silos[0].stop()
                asyncio.run_coroutine_threadsafe(stopping, loop).result(30)

        messages = [await driver.task(0, 0, stop_one), await driver.task(0, 1)]
        await driver.commit(*messages)
        await assert_seen(1)


async def test_a_partition_without_rows_connects_to_nobody_and_needs_no_commit() -> None:
    nobody = WriteOptions(("127.0.0.1:1",), "staged_rows", "key", ("n",))
    empty = arrow.record_batch({"key": arrow.array([], "string"), "n": arrow.array([], "int64")})
    message = stage_rows(nobody, Origin("w", 0, 0), iter([empty]))
    assert not isinstance(message, StagedPart)
    commit_batch(nobody, [message, None])
    abort_batch(nobody, [None])


async def test_a_provider_that_is_not_there_is_named() -> None:
    async with spark() as driver:
        driver.options = WriteOptions(
            driver.options.gateways, "r", "key", ("n",), provider="lake", patience_s=0.5
        )
        with pytest.raises(NotHosted, match=r"\$staging/lake"):
            await driver.task(0, 0)


async def test_a_null_key_fails_the_task_and_nothing_is_seen() -> None:
    async with spark() as driver:
        rows = arrow.record_batch({"key": ["a", None], "n": [1, 2]})
        with pytest.raises(ValueError, match="key_column 'key' is null in 1 rows"):
            await asyncio.to_thread(stage_rows, driver.options, Origin("w", 0, 0), iter([rows]))
        assert driver.chunks() == 0


LARGE = StreamNamespace("large_rows", dict[str, Any])


class LargeTable(Grain):
    @subscribe(LARGE)
    async def on_row(self, event: Event[dict[str, Any]]) -> None:
        SEEN[self.key].append(event.item["n"])


@asynccontextmanager
async def over_ledger(directory: Path) -> AsyncIterator[WriteOptions]:
    """Run a cluster over ledgers, and yield the options that write to it."""
    SEEN.clear()

    def make() -> PersistentStreams:
        queues = LedgerQueues(directory / "ledger")
        mapper = HashRingMapper(queues=2)
        return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

    async with LocalCluster(silos=1, grains=[LargeTable], streams={"default": make}) as cluster:
        gateways = (cluster.silos[0].gateway,)
        yield WriteOptions(gateways, LARGE.name, "key", ("n", "pad"), patience_s=10.0)
        await asyncio.to_thread(end_background)


def large_rows(first: int, count: int, size: int) -> Iterator[Any]:
    """Yield rows of one key in Arrow batches of 100."""
    for start in range(first, first + count, 100):
        numbers = list(range(start, min(start + 100, first + count)))
        rows = {"key": ["k"] * len(numbers), "n": numbers, "pad": ["x" * size] * len(numbers)}
        yield arrow.record_batch(rows)


async def write_batch(options: WriteOptions, batch: int, rows: Iterator[Any]) -> None:
    message = await asyncio.to_thread(stage_rows, options, Origin("w", batch, 0), rows)
    await asyncio.to_thread(commit_batch, options, [message])


async def test_many_large_rows_of_one_key_are_several_messages(tmp_path: Path) -> None:
    """Together the rows are larger than an entry of a ledger."""
    async with over_ledger(tmp_path) as options:
        await write_batch(options, 0, large_rows(0, 400, 20_000))
        await until(lambda: len(SEEN["k"]) == 400)
        assert SEEN["k"] == list(range(400))


async def test_a_row_that_no_queue_accepts_fails_its_batch_alone(tmp_path: Path) -> None:
    async with over_ledger(tmp_path) as options:
        with pytest.raises(ValueError, match="row 3 of the partition, .* message of 80000.."):
            rows = itertools.chain(large_rows(0, 3, 10), large_rows(3, 1, 8_000_000))
            await write_batch(options, 0, rows)
        largest = 7 * 2**20 - 1_000
        await write_batch(options, 0, large_rows(0, 2, largest))
        await write_batch(options, 1, large_rows(2, 2, 10))
        await until(lambda: len(SEEN["k"]) == 4)
        assert SEEN["k"] == [0, 1, 2, 3]


def test_calls_are_cut_by_bytes_and_keep_the_order() -> None:
    calls, found = CallCutter(), []
    items = [msgspec.msgpack.encode({"n": "x" * (n * 40_000)}) for n in range(20)]
    for n, item in enumerate(items):
        found += [call for call in [calls.add(encode_message(KeyedRows(f"k{n}", [item])))] if call]
    found += [call for call in [calls.rest()] if call]
    assert calls.rest() is None and (calls.calls, calls.messages) == (len(found), 20)
    decoded = [msgspec.msgpack.decode(call.body) for call in found]
    assert [call.messages for call in found] == list(map(len, decoded))
    assert [key for call in decoded for key, _, _ in call] == [f"k{n}" for n in range(20)]
    for call, messages in zip(found, decoded, strict=True):
        assert len(call.body) <= CALL_BYTES + 5 or len(messages) == 1


def test_a_long_name_of_a_writer_is_cut_and_told_from_others() -> None:
    columns = tuple(f"column-{n}" for n in range(99))
    options = WriteOptions(("a:1",), "r", "key", columns, writer_id="job")
    name = make_writer_name(options, batch_writer(options, Env()), once=False)
    other = make_writer_name(options, batch_writer(options, Env()) + "!", once=False)
    assert len(name.writer) < 200 and name.writer.startswith("job/") and name != other
    assert make_writer_name(options, "q", once=True).writer == "q"
