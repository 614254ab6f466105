"""The errors of priority queues. The class of an error tells the caller how to react.

    PriorityQueueError            `queue`: the name of the queue
    ├── PriorityQueueNotFound     create the queue, or let first use create it
    ├── RequestInvalid            correct the field that is named (also a ValueError)
    │   └── ExclusivityMissing    add the exclusivity key to the metadata
    ├── SettingsConflict          read the settings again, then decide
    ├── MessageExists             choose another id
    ├── MessageNotFound           forget the message
    ├── MessageFinished           nothing is left to do
    ├── LeaseLost                 stop the work: another worker may have the message
    │   └── LeaseForeign          correct the program
    ├── EnqueueBlocked            enqueue later
    ├── PriorityQueueFull         enqueue later, or collect sooner
    ├── FilterNotReady            retry: the queue builds the index of the filter
    ├── SessionFull               acknowledge answers before the next request
    ├── RequestStale              do not repeat a request whose answer you acknowledged
    ├── Moved                     ask the shard of the message: handles do
    └── OwnerLost                 retry under the same request id: handles do

Each text names the queue, the field or message, and the limit. A refused request changes nothing;
only after `OwnerLost` it may have been carried out.

Invariant: attributes are plain values, because errors are sent between processes.
"""

from __future__ import annotations

from millstream.runtime import MillstreamError

__all__ = [
    "EnqueueBlocked",
    "ExclusivityMissing",
    "FilterNotReady",
    "LeaseForeign",
    "LeaseLost",
    "MessageExists",
    "MessageFinished",
    "MessageNotFound",
    "Moved",
    "OwnerLost",
    "PriorityQueueError",
    "PriorityQueueFull",
    "PriorityQueueNotFound",
    "RequestInvalid",
    "RequestStale",
    "SessionFull",
    "SettingsConflict",
]


class PriorityQueueError(MillstreamError):
    """A priority queue refused a request; the base class of these errors.

    The request changed nothing, except that after `OwnerLost` it may have been carried out.

    Attributes:
        queue: The name of the queue.
    """

    queue: str

    def __init__(self, queue: str, what: str) -> None:
        self.queue = queue
        super().__init__(f"queue {queue!r}: {what}")


class PriorityQueueNotFound(PriorityQueueError):
    """The queue does not exist, or was deleted while a dequeue waited.

    Create the queue, or let first use create it (`auto_create`).
    """


class RequestInvalid(PriorityQueueError, ValueError):
    """A field of the request is not valid. The text has the value and the limit.

    Attributes:
        field: The name of the field.
    """

    field: str

    def __init__(self, queue: str, field: str, what: str) -> None:
        self.field = field
        super().__init__(queue, f"{field} {what}")


class ExclusivityMissing(RequestInvalid):
    """A message of an exclusive queue lacks the exclusivity key in its metadata."""


class SettingsConflict(PriorityQueueError):
    """Another program changed the settings meanwhile, or existing messages prevent the change.

    Read the settings again, then decide.
    """


class MessageExists(PriorityQueueError):
    """A message with another body has this id. An id is free again when its message was collected.

    If you enqueue the same message again, pass its priority as a number, because the default
    priority is the time of the enqueue.
    """


class MessageNotFound(PriorityQueueError):
    """The queue has no message of this id. The message never existed, or it was collected."""


class MessageFinished(PriorityQueueError):
    """The message is completed, canceled or errored.

    These states are final, so nothing is left to do.
    """


class LeaseLost(PriorityQueueError):
    """The lease is over: its time has passed, or its message was released, finished or cancelled.

    Stop the work: another worker may have the message. The error may come before a block of code
    starts with the lease.
    """


class LeaseForeign(LeaseLost):
    """The queue never gave this lease of this message.

    The queue remembers only the latest lease of a message. If the token could belong to an earlier
    one, the error is `LeaseLost`. Stop the work after either error, and correct the program.
    """


class EnqueueBlocked(PriorityQueueError):
    """`enqueue_blocked` is set, so the queue accepts no messages. Enqueue later."""


class PriorityQueueFull(PriorityQueueError):
    """`messages_max` or `bytes_max` of the queue is reached.

    Enqueue later, or shorten `retention_ms` so that finished messages are collected sooner.
    """


class FilterNotReady(PriorityQueueError):
    """The queue builds the index of a filter that is used for the first time. Handles retry."""


class SessionFull(PriorityQueueError):
    """A session has too many answers that it has not acknowledged. Handles prevent this."""


class RequestStale(PriorityQueueError):
    """The session has acknowledged the answer of this request, so the queue forgot it.

    Handles prevent this.
    """


class Moved(PriorityQueueError):
    """The message belongs to another shard of the queue, or must be offered to another shard first.

    Handles ask the right shard. They raise the error only after their patience, or for a `requeue`.
    Enqueue the message as a new one then.

    Attributes:
        floor: The number of the shard's latest lease. Leases of the shard that accepts the message
            get higher numbers.
    """

    floor: int

    def __init__(self, queue: str, what: str, floor: int) -> None:
        self.floor = floor
        super().__init__(queue, what)


class OwnerLost(PriorityQueueError):
    """The owner of the queue changed during the request, or a commit failed.

    The request may have been carried out. Repeat it under the same request id, and it is not
    carried out twice. Handles do this before they raise the error.
    """
