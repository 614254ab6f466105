"""The changes of an exclusive queue with several shards, taken from a real queue."""

from __future__ import annotations

from collections.abc import AsyncIterator

from millstream.providers.priority import (
    MemoryStore,
    MessageExists,
    PriorityQueue,
    PriorityQueues,
    QueueSettings,
    priority_queue,
)
from millstream.providers.priority.relay.change import change_of
from millstream.providers.spark.index import ChangeRow
from millstream.providers.spark.index.changes import COLUMNS, metadata_text
from millstream.runtime import LocalCluster

QUEUE = "renders"
VALUES = 30
IDS = 11
SHARDS = 4

Depths = dict[str, dict[str, int]]


async def exclusive_changes() -> tuple[list[ChangeRow], Depths]:
    """Make the changes of 330 messages, and return them with the final depths of their queue.

    Each of 30 projects numbers its messages from 0 to 10, so messages of several shards share an
    id. One message of each project is leased, and half of the leased messages are completed.
    """
    store = MemoryStore(events=True)
    async with LocalCluster(grains=[], parts={"priority": lambda: PriorityQueues(store)}) as silos:
        queue = priority_queue(silos, QUEUE)
        await queue.create(QueueSettings(exclusivity_key="project", shards=SHARDS))
        for value in range(VALUES):
            for id in range(IDS):
                await enqueue(queue, value, id)
        for number, lease in enumerate(await queue.dequeue(worker="w", count=VALUES)):
            if number % 2:
                await lease.complete()
        depth = await queue.depth()
        found = [row async for row in rows_of_outboxes(store)]
    return found, {QUEUE: {state.name.lower(): count for state, count in depth.items() if count}}


async def enqueue(queue: PriorityQueue, value: int, id: int) -> None:
    """Add a message of a project. Projects of one shard cannot share an id, so use a longer one
    then.
    """
    try:
        await queue.enqueue(b"x", id=f"{id}", metadata={"project": f"p{value}"})
    except MessageExists:
        await queue.enqueue(b"x", id=f"{value}-{id}", metadata={"project": f"p{value}"})


async def rows_of_outboxes(store: MemoryStore) -> AsyncIterator[ChangeRow]:
    """Yield every event of the store, as the index reads the relayed changes."""
    number = 0
    for outbox in range(store.outboxes):
        for stored in await store.events(outbox, 0, 100_000):
            change, number = change_of(stored.event), number + 1
            values = {name: getattr(change, name) for name in COLUMNS if name != "token"}
            values["metadata"] = metadata_text(change.metadata)
            yield ChangeRow(**values, token=f"00000001-{number:016x}-00000000")
