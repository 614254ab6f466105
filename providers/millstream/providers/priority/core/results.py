"""The answers of operations, and the values that reads return.

They are plain values without links to the queue.

`is_changed` says whether the operation changed the queue. Only then the queue keeps the answer for
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
    """A lease of one message for one worker; it is over at `deadline_ms`.

    `attempt` is 1 for the first lease; `attempt` plus `attempts_left` is the number of attempts of
    the message. `is_valid` is False in a repeated answer if the lease has ended since; payload and
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
    """Why a dequeue gave no more leases."""

    FULL = "full"  # it gave the requested number
    EMPTY = "empty"  # no further message is available
    MORE = "more"  # one step's work is done, or this is a repeated answer: ask again at once
    BLOCKED = "blocked"  # `dequeue_blocked` is set


class Dequeued(NamedTuple):
    """The leases of a dequeue.

    `next_due_ms` is the next time at which a message may become available by itself; None if there
    is none or it was not computed.
    """

    leases: tuple[LeaseGrant, ...]
    status: PollStatus
    next_due_ms: int | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the dequeue leased a message."""
        return bool(self.leases)


class Enqueued(NamedTuple):
    """The result of an enqueue.

    Attributes:
        id: The message's id.
        state: Its state.
        version: Its version; 1 for a new message.
        is_changed: False if the same body was stored under this id before.
    """

    id: str
    state: State
    version: int
    is_changed: bool


class Refused(NamedTuple):
    """Why the message at index `at` was refused: the class name and the text of the error, its
    field if it has one, and the floor of `Moved`.
    """

    at: int
    kind: str
    text: str
    field: str = ""
    floor: int = 0

    def error(self, queue: str) -> PriorityQueueError:
        """The error that a single enqueue would have raised."""
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
    """The results of an enqueue of many, in order.

    None stands for a refused message, whose error is in `refusals`.
    """

    answers: tuple[Enqueued | None, ...]
    refusals: tuple[Refused, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether at least one message is new."""
        return any(one is not None and one.is_changed for one in self.answers)


class Done(NamedTuple):
    """The state of a message after an operation.

    Attributes:
        state: Its state.
        version: Its version, which rises by one with each change.
        due_ms: When it becomes visible, when its lease ends, or when it may be collected, in Unix
            milliseconds of the queue's clock; 0 while it is pending.
        is_changed: Whether this operation changed it. False for a repeat.
    """

    state: State
    version: int
    due_ms: int
    is_changed: bool


class Swept(NamedTuple):
    """The result of a sweep: the number of steps done, whether more is due, and when something
    is due next.
    """

    steps: int
    is_more: bool
    next_due_ms: int | None


class MessageView(NamedTuple):
    """A message as it was when it was read.

    Attributes:
        id: Its id.
        state: Its state.
        priority: Its priority; lower is more urgent.
        sequence: The number of its enqueue. `page` lists messages in this order.
        metadata: Its pairs, in the order of their keys.
        payload: Its content; empty after the message was completed.
        version: Its version, which rises by one with each change.
        attempts: How often it may be leased.
        attempts_left: How many attempts are left.
        due_ms: When it becomes visible, when its lease ends, or when it may be collected, in Unix
            milliseconds of the queue's clock; 0 while it is pending.
        created_ms: When it was enqueued, in Unix milliseconds.
        changed_ms: When it changed last, in Unix milliseconds.
        worker: The worker of its latest lease; empty if it had none.
        token: The token of its latest lease; None if it had none.
        reason: The reason with which its latest lease ended; empty if there is none.
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
    """The number of messages in each state, for each exclusivity value."""

    values: dict[str, dict[State, int]]


class HeadPriorities(NamedTuple):
    """The priorities of the messages that a dequeue would lease, the most urgent first."""

    priorities: tuple[int, ...]


class Moving(NamedTuple):
    """Whether messages of a shard may belong to another one, and the number of its latest lease."""

    has_strays: bool
    leases: int
