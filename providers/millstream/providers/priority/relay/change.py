"""A change of a message, as an event of a stream.

Owns `PriorityChange` and `PRIORITY_CHANGES`. The change itself is made in `core`, and `relay`
publishes it.

Invariant: the form is frozen, because programs read what older ones have written. A new field has a
default and is the last one. No name, and no value of a name, ever changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.shards import split_name
from millstream.streams import StreamNamespace

__all__ = ["PRIORITY_CHANGES", "PriorityChange", "change_of"]


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """One change of one message: an event of the stream `PRIORITY_CHANGES` whose key is the queue.

    Each change arrives once. The changes of one queue arrive in order; with several shards, the
    changes of each shard. Deleting a whole queue makes no changes.

    Attributes:
        queue: The name of the queue.
        id: The message. An id may be used again after its message was collected; the versions then
            start again at 1. In a queue with several shards, an id is unique within its shard only.
        version: 1, 2, 3 and so on for each message, without gaps.
        from_state: `"invisible"`, `"pending"`, `"running"`, `"completed"`, `"canceled"` or
            `"errored"`; None for a new message.
        to_state: The new state; None if the message was collected.
        time_ms: The time of the queue, in Unix milliseconds. It never goes back.
        step: The reason of the change, such as `"enqueued"`, `"dequeued"` or `"expired"`.
        attempt: Attempts used so far, including the present one.
        priority: The priority; lower is more urgent.
        metadata: The pairs of the message.
        worker: The worker of the latest lease; empty if there was none.
        reason: The text that the program gave, or an empty text. A copy made by `requeue` has
            `again ID`.
        due_ms: When the new state ends by itself, in Unix milliseconds; 0 if it does not.
        payload_bytes: Bytes of the payload. The event does not contain the payload.
        created_ms: When the message was enqueued, in Unix milliseconds. 0 in events of older
            versions.
        sequence: The number of the message in its shard. 0 in events of older versions.
        shard: The shard of the queue that has the message.
    """

    queue: str
    id: str
    version: int
    from_state: str | None
    to_state: str | None
    time_ms: int
    step: str
    attempt: int
    priority: int
    metadata: dict[str, str]
    worker: str
    reason: str
    due_ms: int
    payload_bytes: int
    created_ms: int = 0
    sequence: int = 0
    shard: int = 0


PRIORITY_CHANGES = StreamNamespace("millstream.priority.changes", PriorityChange)
"""The streams of changes of all queues, if silos have `PriorityQueues(store, changes="default")`.

The key of a stream is the name of the queue. With a provider of another name, use
`StreamNamespace(PRIORITY_CHANGES.name, PriorityChange, provider="ledger")`.
"""


def change_of(event: ChangeEvent) -> PriorityChange:
    """The event of an outbox in the form that is published."""
    queue, shard = split_name(event.queue)
    return PriorityChange(
        queue,
        event.id,
        event.version,
        _name_of(event.from_state),
        _name_of(event.to_state),
        event.time_ms,
        str(event.step),
        event.attempt,
        event.priority,
        dict(event.metadata),
        event.worker,
        event.reason,
        event.due_ms,
        event.payload_bytes,
        event.created_ms,
        event.sequence,
        shard,
    )


def _name_of(state: State | None) -> str | None:
    return None if state is None else state.name.lower()
