"""Priority queues: what their types say."""

from __future__ import annotations

from typing import assert_type

from millstream.providers.priority import (
    Done,
    EmbeddedStore,
    EnqueueBlocked,
    Enqueued,
    ExclusivityMissing,
    Lease,
    LeaseForeign,
    LeaseLost,
    LeaseToken,
    MemoryStore,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    MessageView,
    NewMessage,
    OwnerLost,
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
    priority_queue,
    priority_queues,
)
from millstream.runtime import Client, Grain, LocalCluster, Silo


class Encoder(Grain):
    async def put(self, payload: bytes) -> bool:
        return (await priority_queue(self, "encode").enqueue(payload)).is_changed


def make(store: PriorityStore) -> Silo:
    templates = [Template("plato-", QueueSettings(exclusivity_key="project"))]
    options = PriorityOptions(wake_period_s=2.0)
    part = PriorityQueues(store, auto_create=False, templates=templates, options=options)
    return Silo(grains=[Encoder], parts={"priority": part})


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
    assert_type(await queue.requeue("x"), Enqueued)
    assert_type(await queue.cancel("x", reason="late"), Done)
    assert_type(await queue.prioritise("x", 5), Done)
    assert_type(await queue.create(), SettingsRow)
    assert_type(await queue.configure(QueueSettings(), version=1), SettingsRow)
    assert_type((await queue.settings()).settings, QueueSettings)
    async for name in priority_queues(client, "enc"):
        assert_type(name, str)
    await queue.delete()


async def work(queue: PriorityQueue) -> None:
    async for lease in queue.leases(worker="w", count=5):
        async with lease as same:
            assert_type(same, Lease)
            assert_type(lease.token, LeaseToken)
            assert_type(lease.is_lost, bool)
            assert_type(await lease.extend(5), Done)
            assert_type(await lease.release(delay_s=1, refund=True), Done)


def memory() -> PriorityStore:
    return MemoryStore(limits=StoreLimits(events_max=5), events=True)


def embedded(directory: str) -> PriorityStore:
    return EmbeddedStore(directory, limits=StoreLimits(waiting_max=5), events=True)


NAMED: list[type[PriorityQueueError]] = [
    EnqueueBlocked,
    ExclusivityMissing,
    LeaseForeign,
    LeaseLost,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    OwnerLost,
    PriorityQueueFull,
    PriorityQueueNotFound,
    RequestInvalid,
    RequestStale,
    SessionFull,
    SettingsConflict,
]
