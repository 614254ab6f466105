"""A message, its six states, and the transitions between them.

Owns `Message`, `State`, `Step`, the table of transitions, and the packed numbers that order
messages. The rules for transitions are in `core`.

Invariants:

- Every change of a message is in `TRANSITIONS`, and raises its version by one.
- `key` orders messages by priority, then by sequence. No two messages of a queue share a key.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec
import xxhash

__all__ = ["LeaseToken", "Message", "Metadata", "State", "Step", "Terms"]

Metadata = tuple[tuple[str, str], ...]
"""Pairs in the order of their keys' bytes; each key occurs once."""

SIZE_BYTES = 4
"""Bytes of the payload's size in the mark of a freed payload."""
SEQUENCE_BITS = 48
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class State(IntEnum):
    """The state of a message. `COMPLETED`, `CANCELED` and `ERRORED` are final.

    Attributes:
        INVISIBLE: Workers cannot lease it yet (`invisible_s`, or a delay after a release).
        PENDING: It waits for a worker.
        RUNNING: A worker has leased it.
        COMPLETED: The work is done.
        CANCELED: A program canceled it.
        ERRORED: The worker failed it, or all attempts are used up.
    """

    INVISIBLE = 0
    PENDING = 1
    RUNNING = 2
    COMPLETED = 3
    CANCELED = 4
    ERRORED = 5


# reading a name of the module is faster than reading an attribute of an enum
INVISIBLE, PENDING, RUNNING = State.INVISIBLE, State.PENDING, State.RUNNING
COMPLETED, CANCELED, ERRORED = State.COMPLETED, State.CANCELED, State.ERRORED


class Step(StrEnum):
    """Why a message changed."""

    ENQUEUED = "enqueued"
    VISIBLE = "visible"
    DEQUEUED = "dequeued"
    EXTENDED = "extended"
    COMPLETED = "completed"
    CANCELED = "canceled"
    EXPIRED = "expired"
    RELEASED = "released"
    FAILED = "failed"
    PRIORITY = "priority"
    COLLECTED = "collected"
    CLOCK = "clock"


Change = tuple[State | None, State | None]
TRANSITIONS: dict[Step, frozenset[Change]] = {
    Step.ENQUEUED: frozenset({(None, PENDING), (None, INVISIBLE)}),
    Step.VISIBLE: frozenset({(INVISIBLE, PENDING)}),
    Step.DEQUEUED: frozenset({(PENDING, RUNNING)}),
    Step.EXTENDED: frozenset({(RUNNING, RUNNING)}),
    Step.COMPLETED: frozenset({(RUNNING, COMPLETED)}),
    Step.CANCELED: frozenset({(RUNNING, CANCELED), (PENDING, CANCELED), (INVISIBLE, CANCELED)}),
    Step.EXPIRED: frozenset({(RUNNING, PENDING), (RUNNING, ERRORED)}),
    Step.RELEASED: frozenset({(RUNNING, PENDING), (RUNNING, INVISIBLE), (RUNNING, ERRORED)}),
    Step.FAILED: frozenset({(RUNNING, ERRORED)}),
    Step.PRIORITY: frozenset((state, state) for state in (INVISIBLE, PENDING, RUNNING)),
    Step.CLOCK: frozenset((state, state) for state in State if state is not PENDING),
    Step.COLLECTED: frozenset((state, None) for state in (COMPLETED, CANCELED, ERRORED)),
}
"""The allowed changes of each step, as (from, to).

None stands for the time before a message exists, and after it was collected.
"""


class LeaseToken(NamedTuple):
    """The identity of one lease, and a fencing token.

    Send `epoch` with each write that a worker makes. The target of the writes can then refuse an
    `epoch` below the highest that it has seen.

    Attributes:
        epoch: The number of the lease in its queue. A later lease of any message has a higher
            number, and no number is given twice. In a queue with several shards, this holds for the
            leases of one exclusivity value.
        version: The version of the message when it was leased.
    """

    epoch: int
    version: int


class Terms(NamedTuple):
    """Settings that a message overrides; None means the setting of the queue."""

    lease_ms: int | None = None
    invisible_ms: int | None = None
    attempts: int | None = None


NO_TERMS = Terms()


class LastLease(msgspec.Struct, gc=False, eq=False):
    """The latest lease of a message, kept until the message is collected.

    `ended` is the step that ended it, or None while it is valid. `reason` is the text of the
    worker.
    """

    token: LeaseToken
    worker: str
    ended: Step | None = None
    reason: str = ""


class Message(msgspec.Struct, gc=False, eq=False):
    """One message; `new_message` makes it.

    A queue may have millions of messages. Fields that few messages need are therefore in `lease`
    and `terms`. Messages are in no reference cycle, so Python's cycle collector skips them
    (`gc=False`).

    `due_ms` is the time when it becomes visible, when its lease ends, or when it may be collected;
    0 while it is pending. `timer` is its valid entry in the timers. `first_priority` is the
    priority at the enqueue, or None if it never changed. `freed` is the mark of the payload after
    the payload was freed.
    """

    id: str
    payload: bytes
    key: int
    metadata: Metadata
    value: str | None
    attempts: int
    terms: Terms
    created_ms: int
    changed_ms: int
    attempts_left: int
    state: State = PENDING
    version: int = 0
    due_ms: int = 0
    timer: int = 0
    first_priority: int | None = None
    lease: LastLease | None = None
    freed: bytes = b""

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload, also after it was freed."""
        return int.from_bytes(self.freed[:SIZE_BYTES]) if self.freed else len(self.payload)

    def has_payload(self, payload: bytes) -> bool:
        """Whether this is its payload, also after the payload was freed."""
        return self.freed == mark_of(payload) if self.freed else self.payload == payload

    def free(self) -> None:
        """Drop the payload, and keep a mark that recognises it."""
        self.payload, self.freed = b"", mark_of(self.payload)

    @property
    def priority(self) -> int:
        """The priority; lower is more urgent."""
        return self.key >> SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """The number of its enqueue in its shard."""
        return self.key & SEQUENCE_MASK

    @property
    def is_finished(self) -> bool:
        """Whether the state of the message is final."""
        return self.state >= COMPLETED


def key_of(priority: int, sequence: int) -> int:
    """The number that orders messages: a more urgent or, of equals, earlier message has a lower
    one.
    """
    return (priority << SEQUENCE_BITS) | sequence


def new_message(
    id: str,
    payload: bytes,
    key: int,
    metadata: Metadata,
    value: str | None,
    attempts: int,
    terms: Terms,
    now_ms: int,
) -> Message:
    """Create a pending message that is in no index yet."""
    return Message(id, payload, key, metadata, value, attempts, terms, now_ms, now_ms, attempts)


def mark_of(payload: bytes) -> bytes:
    """Return a mark that recognises a payload: its size, and a hash of its bytes."""
    return len(payload).to_bytes(SIZE_BYTES) + xxhash.xxh3_128_digest(payload)
