"""Priority queues as a user writes them."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from millstream.providers.postgres import PostgresOptions
from millstream.providers.priority import (
    PRIORITY_CHANGES,
    PRIORITY_HEADER,
    ClockReading,
    DeadlineOptions,
    DeadlineQueues,
    Done,
    EmbeddedStore,
    EnqueueBlocked,
    Enqueued,
    ExclusivityMissing,
    FilterNotReady,
    Lease,
    LeaseForeign,
    LeaseLost,
    LeaseToken,
    MemoryStore,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    MessageView,
    Moved,
    NewMessage,
    OwnerLost,
    PriorityChange,
    PriorityClass,
    PriorityOptions,
    PriorityQueue,
    PriorityQueueError,
    PriorityQueueFull,
    PriorityQueueNotFound,
    PriorityQueues,
    PriorityStore,
    QueueSettings,
    QueuesOf,
    RequestInvalid,
    RequestStale,
    SessionFull,
    SettingsConflict,
    SettingsRow,
    State,
    StoreLimits,
    Template,
    changes_lag_s,
    priority_queue,
    priority_queues,
)
from millstream.providers.priority.http import TOKEN_VARIABLE, HttpOptions, PriorityApi
from millstream.providers.priority.postgres import PostgresStore
from millstream.providers.priority.redis import RedisOptions, RedisStore
from millstream.providers.spark.index import (
    Applied,
    ChangeRow,
    Difference,
    Finding,
    IndexOptions,
    IndexWriter,
    PriorityIndex,
    ProcessingErrors,
    StateTime,
    differences,
)
from millstream.runtime import Client, Grain, LocalCluster, Silo
from millstream.streams import PersistentStreams, StreamNamespace

JOBS = StreamNamespace("jobs", str, provider="work")


class Encoder(Grain):
    async def put(self, payload: bytes) -> bool:
        return (await priority_queue(self, "encode").enqueue(payload)).is_changed


def make(store: PriorityStore) -> Silo:
    templates = [Template("plato-", QueueSettings(exclusivity_key="project"))]
    options = PriorityOptions(wake_period_s=2.0)
    part = PriorityQueues(store, auto_create=False, templates=templates, options=options)
    queues = DeadlineQueues(
        "priority", durable=store.is_durable, options=DeadlineOptions(lease_s=5)
    )
    streams = {"work": PersistentStreams(queues, balancer="deployment")}
    return Silo(grains=[Encoder], streams=streams, parts={"priority": part})


async def by_deadline(cluster: LocalCluster) -> None:
    await cluster.stream(JOBS, "x").publish("y", headers={PRIORITY_HEADER: "5"})


async def use(client: Client, silo: Silo, cluster: LocalCluster) -> None:
    queue = priority_queue(client, "encode", part="priority", patience_s=5)
    assert_type(queue, PriorityQueue)
    assert_type(priority_queue(silo, "encode"), PriorityQueue)
    assert_type(cluster.stream(QueuesOf("priority"), "encode"), PriorityQueue)
    high = PriorityClass.HIGH.overridden(["LOW"])
    put = await queue.enqueue(b"x", priority=high, metadata={"a": "b"}, invisible_s=1)
    assert_type(put, Enqueued)
    many = await queue.enqueue_many([NewMessage(b"x", high.by(5))], all_or_nothing=True)
    assert_type(many, list[Enqueued | PriorityQueueError])
    assert_type(await queue.dequeue(worker="w", wanted=[("a", "b")], wait_s=5), list[Lease])
    assert_type(await queue.get("x"), MessageView)
    assert_type(await queue.peek(), list[MessageView])
    assert_type(await queue.page(state=State.PENDING), list[MessageView])
    assert_type(await queue.depth(value="foo"), dict[State, int])
    assert_type(await queue.values(), dict[str, dict[State, int]])
    assert_type(await queue.clocks(), tuple[ClockReading, ...])
    assert_type(await queue.reset_clocks(), tuple[ClockReading, ...])
    assert_type(await queue.requeue("x"), Enqueued)
    assert_type(await queue.cancel("x", reason="late"), Done)
    assert_type(await queue.prioritise("x", 5), Done)
    assert_type(await queue.create(), SettingsRow)
    assert_type(await queue.configure(QueueSettings(), version=1), SettingsRow)
    assert_type((await queue.settings()).settings, QueueSettings)
    async for name in priority_queues(client, "enc"):
        assert_type(name, str)
    assert_type(await changes_lag_s(client), float)
    async with cluster.stream(PRIORITY_CHANGES, "encode").consume() as changes:
        assert_type((await anext(changes)).item, PriorityChange)
    await queue.delete()


async def work(queue: PriorityQueue) -> None:
    async for lease in queue.leases(worker="w", count=5):
        async with lease as same:
            assert_type(same, Lease)
            assert_type(lease.token, LeaseToken)
            assert_type(lease.is_lost, bool)
            assert_type(await lease.extend(5), Done)
            assert_type(await lease.release(delay_s=1, refund=True), Done)


async def serve(client: Client, silo: Silo, cluster: LocalCluster) -> None:
    options = HttpOptions(polls_max=5, wait_s_max=20.0)
    async with PriorityApi(client, token=Path(TOKEN_VARIABLE), options=options) as api:
        assert_type(api, PriorityApi)
        assert_type(api.url, str)
    await PriorityApi(silo, host="0.0.0.0", port=0, part="priority", insecure=True).start()
    await PriorityApi(cluster, token="one-of-16-signs-or-more").aclose()


def memory() -> PriorityStore:
    return MemoryStore(limits=StoreLimits(events_max=5), events=True)


def embedded(directory: str) -> PriorityStore:
    return EmbeddedStore(directory, limits=StoreLimits(waiting_max=5), events=True)


def in_postgres(url: str) -> PriorityStore:
    options = PostgresOptions(schema="shop", connections_max=8)
    return PostgresStore(url, limits=StoreLimits(waiting_max=5), events=True, options=options)


def in_redis(address: str) -> PriorityStore:
    options = RedisOptions(durability="everysec", password="secret", timeout_s=2.5)
    return RedisStore(address, limits=StoreLimits(waiting_max=5), events=True, options=options)


NAMED: list[type[PriorityQueueError]] = [
    EnqueueBlocked,
    ExclusivityMissing,
    FilterNotReady,
    LeaseForeign,
    LeaseLost,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    Moved,
    OwnerLost,
    PriorityQueueFull,
    PriorityQueueNotFound,
    RequestInvalid,
    RequestStale,
    SessionFull,
    SettingsConflict,
]


def ask_an_index(rows: list[ChangeRow]) -> None:
    options = IndexOptions(history_days=None, parquet=Path("history"), changes_per_batch=1_000)
    assert_type(IndexWriter("sqlite:i.db", options).apply("query", 0, rows, 1), Applied)
    with PriorityIndex("sqlite:i.db") as index:
        assert_type(index.depth("q", wanted={"a": "b"}), dict[str, dict[str, int]])
        assert_type(index.messages("q", "m"), list[ChangeRow])
        assert_type(index.history("q", "m"), list[ChangeRow])
        assert_type(index.time_in_state(now_ms=5), list[StateTime])
        assert_type(index.processing_errors().total, int)
        assert_type(index.processing_errors(), ProcessingErrors)
        assert_type(index.verify(), list[Finding])
        assert_type(differences(index.depth(), {}), list[Difference])
