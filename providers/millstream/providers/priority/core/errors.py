"""What can go wrong with priority queues. A class says what the caller does next.

    PriorityQueueError            `queue`: which one
    ├── PriorityQueueNotFound     create it, or ask for it to be created on use
    ├── RequestInvalid            mend the field that is named (also a ValueError)
    │   └── ExclusivityMissing    give the message its exclusivity key
    ├── SettingsConflict          read the settings again, then decide
    ├── MessageExists             another message has the id: choose another
    ├── MessageNotFound           it never was, or was collected: forget it
    ├── MessageFinished           it is completed, canceled or errored: nothing is left to do
    ├── LeaseLost                 the lease is over: stop the work, another worker may have it
    │   └── LeaseForeign          no such lease was given: mend the program
    ├── EnqueueBlocked            somebody blocked the queue: enqueue later
    ├── PriorityQueueFull         enqueue later, or collect sooner
    ├── FilterNotReady            ask again: the queue builds the index of the filter
    ├── SessionFull               acknowledge answers before the next request
    ├── RequestStale              its answer was acknowledged: it is not done again
    ├── Moved                     ask the shard where it belongs now: handles do
    └── OwnerLost                 ask again, under the same request id: it may have been done

Each text has the queue, the field or message, and the limit. Whoever is refused changed nothing,
`OwnerLost` aside.
Invariants: attributes hold plain values, since errors cross processes as answers.
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
    """A priority queue refused what was asked; it changed nothing (but see `OwnerLost`).

    Attributes: `queue`, its name.
    """

    queue: str

    def __init__(self, queue: str, what: str) -> None:
        self.queue = queue
        super().__init__(f"queue {queue!r}: {what}")


class PriorityQueueNotFound(PriorityQueueError):
    """There is no such queue."""


class RequestInvalid(PriorityQueueError, ValueError):
    """A field of the request cannot be.

    Attributes: `field`, its name.
    """

    field: str

    def __init__(self, queue: str, field: str, what: str) -> None:
        self.field = field
        super().__init__(queue, f"{field} {what}")


class ExclusivityMissing(RequestInvalid):
    """The queue is exclusive, and the message has no value for its key."""


class SettingsConflict(PriorityQueueError):
    """The settings are not those that the caller knew, or messages stand against the change."""


class MessageExists(PriorityQueueError):
    """Another body has this id; ids are free again when their message was collected."""


class MessageNotFound(PriorityQueueError):
    """No message of the queue has this id: it never was, or it was collected."""


class MessageFinished(PriorityQueueError):
    """The message is completed, canceled or errored, and stays so."""


class LeaseLost(PriorityQueueError):
    """The lease is over: its time passed, it was given back, or it was ended in another way."""


class LeaseForeign(LeaseLost):
    """The queue never gave this lease of this message. One whose numbers could be those of an
    earlier lease is told as `LeaseLost`."""


class EnqueueBlocked(PriorityQueueError):
    """`enqueue_blocked` is set: the queue takes no messages."""


class PriorityQueueFull(PriorityQueueError):
    """The queue has as many uncollected messages as it may."""


class FilterNotReady(PriorityQueueError):
    """The queue is building the index of a filter; looks that use the filter wait for it."""


class SessionFull(PriorityQueueError):
    """A session has as many answers that it did not acknowledge as it may."""


class RequestStale(PriorityQueueError):
    """The session acknowledged the answer of this request, so it is not known any more."""


class Moved(PriorityQueueError):
    """A message does not belong to this shard of the queue, or is to be offered to another first.

    Attributes: `floor`: the number of the shard's latest lease; those of where it is taken are
    higher.
    """

    floor: int

    def __init__(self, queue: str, what: str, floor: int) -> None:
        self.floor = floor
        super().__init__(queue, what)


class OwnerLost(PriorityQueueError):
    """Who answered for the queue does so no longer: another took it over, or a commit failed.

    Whether the operation was done is not known. Ask whoever owns the queue now; under the same
    request id it is not done twice.
    """
