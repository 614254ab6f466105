"""What became of a message, as an event of a stream.

Owns: `PriorityChange`, `PRIORITY_CHANGES`. Not: the change itself (`core`), carrying it (`relay`).
Invariant: frozen: programs and jobs read what older ones have written. A new field has a default
and comes last; no name, and no value of one, ever changes.
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
    """One transition of one message. The stream's key is the queue.

    Attributes: `version`: 1, 2, 3 and so on for each message, without gap; `from_state` and
    `to_state`: "invisible", "pending", "running", "completed", "canceled" or "errored"; None before
    its life, and after it (it was collected). `time_ms`: of the queue, in Unix milliseconds, never
    going back; `step`: why, such as "dequeued" or "expired"; `attempt`: leases that were used up so
    far, the present one included; `due_ms`: when it falls due by itself in its new state.
    `created_ms` and `sequence`: when the message was enqueued, and its number in its shard: an id
    may be used again once its message was collected, and its versions begin at 1 again. Both are 0
    in what was written before they were told. `shard`: the shard of the queue that has the message;
    an id is unique within a shard, so in an exclusive queue several shards may each have a message
    of that id.
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
"""The changes of all queues of the silos' `PriorityQueues(store, changes="default")`. With another
provider: `StreamNamespace(PRIORITY_CHANGES.name, PriorityChange, provider="ledger")`."""


def change_of(event: ChangeEvent) -> PriorityChange:
    """An event of an outbox, as others read it."""
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
