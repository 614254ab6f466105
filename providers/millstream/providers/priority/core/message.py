"""A message, its six states, and the transitions between them.

Owns: `Message`, `State`, `Step` and the table of transitions; the packed numbers by which messages
are ordered. Not: who may ask for a transition (`core`).
Invariants:
- every change of a message is in `TRANSITIONS`, and raises its version by one;
- `key` orders messages: by priority, then by sequence; no two messages of a queue share one.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec
import xxhash

__all__ = ["LeaseToken", "Message", "Metadata", "State", "Step", "Terms"]

Metadata = tuple[tuple[str, str], ...]
"""Pairs in the order of their keys' bytes, each key once."""

SIZE_BYTES = 4
"""Of a payload's size, in its mark."""
SEQUENCE_BITS = 48
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class State(IntEnum):
    """Where a message is in its life; those from COMPLETED on are final."""

    INVISIBLE = 0
    PENDING = 1
    RUNNING = 2
    COMPLETED = 3
    CANCELED = 4
    ERRORED = 5


# an attribute of an enum costs more than a name of the module
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
"""From and to; None is before a message's life, and after it."""


class LeaseToken(NamedTuple):
    """Which lease of a message.

    `epoch` counts the leases of the queue, so a later lease has a higher one, also of another
    message; it is never given again. A system behind the worker can refuse whoever comes with a
    lower one than it has seen. `version` is the message's when it was leased.
    """

    epoch: int
    version: int


class Terms(NamedTuple):
    """What a message brought of its own; None: as the queue has it."""

    lease_ms: int | None = None
    invisible_ms: int | None = None
    attempts: int | None = None


NO_TERMS = Terms()


class LastLease(msgspec.Struct, gc=False, eq=False):
    """The latest lease of a message, kept until the message is collected.

    `ended`: the step by which it ended, None while it holds. `reason`: what the worker said.
    """

    token: LeaseToken
    worker: str
    ended: Step | None = None
    reason: str = ""


class Message(msgspec.Struct, gc=False, eq=False):
    """One message; `new_message` makes one. A queue may have millions: what most do not need is in
    `lease` and `terms`, and Python's collector of cycles does not look at them (none is in a
    cycle), so that it does not stop the loop.

    `due_ms`: when it becomes visible, its lease is over, or it may be collected; 0 while pending.
    `timer`: its valid entry in the timers. `first_priority`: what it was enqueued with, None: it
    never changed. `freed`: the mark of its payload, once the payload was freed.
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
        """How long the payload is, or was before it was freed."""
        return int.from_bytes(self.freed[:SIZE_BYTES]) if self.freed else len(self.payload)

    def has_payload(self, payload: bytes) -> bool:
        """Is this its payload, or was it before it was freed?"""
        return self.freed == mark_of(payload) if self.freed else self.payload == payload

    def free(self) -> None:
        """Forget the payload, and keep what tells it from others."""
        self.payload, self.freed = b"", mark_of(self.payload)

    @property
    def priority(self) -> int:
        return self.key >> SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        return self.key & SEQUENCE_MASK

    @property
    def is_finished(self) -> bool:
        return self.state >= COMPLETED


def key_of(priority: int, sequence: int) -> int:
    """The number that orders a message: the more urgent, then the earlier, is the lower."""
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
    """A pending message that is in no index yet."""
    return Message(id, payload, key, metadata, value, attempts, terms, now_ms, now_ms, attempts)


def mark_of(payload: bytes) -> bytes:
    """The mark that tells a payload from others: its size, and a check of its bytes."""
    return len(payload).to_bytes(SIZE_BYTES) + xxhash.xxh3_128_digest(payload)
