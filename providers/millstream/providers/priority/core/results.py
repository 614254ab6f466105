"""What operations answer, and what reads show: plain values, cut loose from the queue.

`is_changed` says whether the operation itself changed the queue: only then is its answer kept for
a repeat of the request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, cast

from . import errors
from .errors import PriorityQueueError
from .message import LeaseToken, Metadata, State

__all__ = [
    "Dequeued",
    "Done",
    "Enqueued",
    "EnqueuedMany",
    "HeadPriorities",
    "LeaseGrant",
    "MessageView",
    "Moving",
    "PollStatus",
    "Refused",
    "Swept",
    "ValueDepths",
]


class LeaseGrant(NamedTuple):
    """A message that one worker has, until `deadline_ms`: at that time it is over.

    `attempt`: 1 the first time, so many plus `attempts_left` is what the message may have.
    `is_valid` is False in a repeated answer, where the lease has ended meanwhile; payload and
    metadata are empty then.
    """

    id: str
    payload: bytes
    priority: int
    metadata: Metadata
    token: LeaseToken
    deadline_ms: int
    attempt: int
    attempts_left: int
    is_valid: bool = True


class PollStatus(StrEnum):
    """Why a dequeue gave no more."""

    FULL = "full"  # it gave as many as were asked for
    EMPTY = "empty"  # no more can be had at this time
    MORE = "more"  # the work of one step is done: ask again at once
    BLOCKED = "blocked"  # `dequeue_blocked` is set


class Dequeued(NamedTuple):
    """`next_due_ms`: when something may change by itself; None: nothing will, or none was asked."""

    leases: tuple[LeaseGrant, ...]
    status: PollStatus
    next_due_ms: int | None = None

    @property
    def is_changed(self) -> bool:
        return bool(self.leases)


class Enqueued(NamedTuple):
    """`is_changed` is False where the same body had been enqueued under this id."""

    id: str
    state: State
    version: int
    is_changed: bool


class Refused(NamedTuple):
    """Why the message at this index was not taken: the name of an error's class, its text, the
    field that it names, if it names one, and of `Moved` its floor."""

    at: int
    kind: str
    text: str
    field: str = ""
    floor: int = 0

    def error(self, queue: str) -> PriorityQueueError:
        """The refusal as the error that a single enqueue would have raised."""
        kind = cast("type[PriorityQueueError]", getattr(errors, self.kind))
        error = kind.__new__(kind)
        error.args = (self.text,)
        error.queue = queue
        if isinstance(error, errors.RequestInvalid):
            error.field = self.field
        elif isinstance(error, errors.Moved):
            error.floor = self.floor
        return error


def make_refused(at: int, error: PriorityQueueError) -> Refused:
    field, floor = getattr(error, "field", ""), getattr(error, "floor", 0)
    return Refused(at, type(error).__name__, str(error), field, floor)


class EnqueuedMany(NamedTuple):
    """One answer per message, in order: what became of it; None: see the refusal of its index."""

    answers: tuple[Enqueued | None, ...]
    refusals: tuple[Refused, ...] = ()

    @property
    def is_changed(self) -> bool:
        return any(one is not None and one.is_changed for one in self.answers)


class Done(NamedTuple):
    """The message after an operation; `due_ms` as in `MessageView`."""

    state: State
    version: int
    due_ms: int
    is_changed: bool


class Swept(NamedTuple):
    """`steps`: how much was done, at most as allowed. `is_more`: something is due still."""

    steps: int
    is_more: bool
    next_due_ms: int | None


class MessageView(NamedTuple):
    """A message as it is now.

    `due_ms`: when it becomes visible, its lease is over, or it may be collected; 0 while pending.
    `worker`, `token`, `reason`: of its latest lease, if it had one.
    """

    id: str
    state: State
    priority: int
    sequence: int
    metadata: Metadata
    payload: bytes
    version: int
    attempts: int
    attempts_left: int
    due_ms: int
    created_ms: int
    changed_ms: int
    worker: str
    token: LeaseToken | None
    reason: str


class ValueDepths(NamedTuple):
    """How many messages of each exclusivity value are in each state."""

    values: dict[str, dict[State, int]]


class HeadPriorities(NamedTuple):
    """The priorities of what a dequeue would lease, the most urgent first."""

    priorities: tuple[int, ...]


class Moving(NamedTuple):
    """Messages of a shard may belong to another; and the number of its latest lease."""

    has_strays: bool
    leases: int
