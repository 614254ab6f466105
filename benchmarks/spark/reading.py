"""Rows from streams into Spark, compared with Parquet files; and the index of a million changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.spark.machines import CLUSTER, Figures, Machines, per_row
from benchmarks.spark.writing import SHAPES, by_format, rows_of
from millstream.providers.priority import PRIORITY_CHANGES, PriorityChange
from millstream.providers.spark.index import IndexOptions, PriorityIndex, start_index
from millstream.runtime import connect

__all__ = ["files", "index", "ours"]

SCHEMA = "id bigint, key string, payload string"
CHANGES = 1_000_000
STATES = (None, "pending", "running", "completed")
STEPS = ("enqueued", "dequeued", "completed")
QUEUES, PUBLISHED = 16, 500
BEGIN_MS = 1_700_000_000_000


async def ours(work: Path, size: float) -> Figures:
    """`spark.read` of both shapes, each in a namespace of its own silo."""
    found: Figures = {}
    for name, (count, bytes_of_row) in SHAPES.items():
        rows, place = max(1_000, round(count * size)), work / name
        place.mkdir()
        async with Machines(place) as machines:
            by_format("staged", machines, rows_of(machines.spark, rows, bytes_of_row), name, 0)
            cost = machines.costs(partial(read_streams, machines, rows))
            found |= per_row(f"read_{name}", rows, cost)
    return found


def read_streams(machines: Machines, rows: int, number: int) -> None:
    source = machines.spark.read.format("millstream").schema(SCHEMA)
    check(source.options(**machines.options("rows")).load(), rows)


def check(frame: Any, rows: int) -> None:
    """Read every column."""
    found = frame.selectExpr("count(id) a", "sum(length(payload)) b", "max(key) c").collect()
    assert found[0]["a"] == rows, (found, rows)


async def files(work: Path, size: float) -> Figures:
    """The same rows in Parquet files."""
    found: Figures = {}
    async with Machines(work) as machines:
        for name, (count, bytes_of_row) in SHAPES.items():
            rows, path = max(1_000, round(count * size)), str(work / name)
            rows_of(machines.spark, rows, bytes_of_row).write.parquet(path)
            cost = machines.costs(
                lambda _, path=path, rows=rows: check(machines.spark.read.parquet(path), rows)  # type: ignore[misc]
            )
            found |= per_row(f"read_{name}", rows, cost)
    return found


# -- the index


def change(number: int) -> PriorityChange:
    """Return a change of messages that are enqueued, leased and completed, one after the other."""
    message, step = divmod(number, len(STEPS))
    source, target = STATES[step], STATES[step + 1]
    time_ms = BEGIN_MS + number
    return PriorityChange(
        queue=f"q{message % QUEUES}",
        id=f"message-{message}",
        version=step + 1,
        from_state=source,
        to_state=target,
        time_ms=time_ms,
        step=STEPS[step],
        attempt=min(step, 1),
        priority=message,
        metadata={"region": "eu"},
        worker="worker-1",
        reason="",
        due_ms=0,
        payload_bytes=100,
        created_ms=time_ms - step,
        sequence=message // QUEUES + 1,
    )


async def publish(gateway: str, count: int) -> None:
    """Publish `count` changes, `PUBLISHED` of a queue in a call."""
    async with connect(gateway, cluster=CLUSTER) as client:
        waiting: dict[str, list[PriorityChange]] = {}
        for number in range(count):
            one = change(number)
            of_queue = waiting.setdefault(one.queue, [])
            of_queue.append(one)
            if len(of_queue) == PUBLISHED:
                await client.stream(PRIORITY_CHANGES, one.queue).publish_many(of_queue)
                del waiting[one.queue]
        for queue, left in waiting.items():
            await client.stream(PRIORITY_CHANGES, queue).publish_many(left)


async def index(work: Path, size: float) -> Figures:
    """Changes a second into SQLite, and into PostgreSQL if its server is installed."""
    from tests.real.postgres_server import PostgresServer, programs

    count = max(3_000, round(CHANGES * size) // 3 * 3)
    places = {"sqlite": f"sqlite:{work}/index.db"}
    server = PostgresServer() if programs() else None
    if server is not None:
        places["postgres"] = f"{server.url}/postgres"
    try:
        async with Machines(work) as machines:
            await publish(machines.gateway, count)
            return {
                name: figure
                for store, place in places.items()
                for name, figure in indexed(machines, work, store, place, count).items()
            }
    finally:
        if server is not None:
            server.close()


def indexed(machines: Machines, work: Path, store: str, place: str, count: int) -> Figures:
    def run() -> None:
        query = start_index(
            machines.spark,
            gateways=machines.gateway,
            cluster=CLUSTER,
            place=place,
            checkpoint=str(work / f"checkpoint-{store}"),
            options=IndexOptions(history_days=None, changes_per_batch=200),  # of 500 each
            available_now=True,
        )
        query.awaitTermination()

    cost = machines.cost(run)
    with PriorityIndex(place) as found:
        depth = sum(sum(states.values()) for states in found.depth().values())
        assert depth == count // 3, (depth, count)
    return per_row(f"index_{store}", count, cost)
