"""Mistakes with priority queues. A line that ends with the mark E must be refused."""

from __future__ import annotations

from millstream.providers.priority import (
    Lease,
    NewMessage,
    PriorityQueue,
    PriorityQueues,
    QueueSettings,
    Template,
    priority_queue,
)
from millstream.runtime import Client


async def use(client: Client, queue: PriorityQueue) -> None:
    priority_queue(client)  # E
    priority_queue("client", "encode")  # E
    priority_queue(client, b"encode")  # E
    await queue.enqueue("x")  # E
    await queue.enqueue(b"x", 5)  # E
    await queue.enqueue(b"x", priority="high")  # E
    await queue.enqueue_many([b"x"])  # E
    await queue.dequeue()  # E
    await queue.dequeue(worker="w", wait_s="5")  # E
    await queue.configure({"attempts": 5})  # E
    lease: Lease = await queue.dequeue(worker="w")  # E
    print(lease)
    NewMessage("x")  # E
    for found in queue.leases(worker="w"):  # E
        print(found)


async def work(lease: Lease) -> None:
    with lease:  # E
        pass
    await lease.extend("5")  # E


PriorityQueues("sqlite:data")  # E
Template("plato-", {"attempts": 5})  # E
QueueSettings(attempts="5")  # E
