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

__all__ = ["LeaseToken", "Message", "Metadata", "State", "Step", "Terms"]

Metadata = tuple[tuple[str, str], ...]
"""Pairs in the order of their keys' bytes, each key once."""

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


class LastLease:
    """The latest lease of a message, kept until the message is collected.

    `ended`: the step by which it ended, None while it holds. `reason`: what the worker said.
    """

    __slots__ = ("ended", "reason", "token", "worker")

    def __init__(
        self, token: LeaseToken, worker: str, ended: Step | None = None, reason: str = ""
    ) -> None:
        self.token = token
        self.worker = worker
        self.ended = ended
        self.reason = reason


class Message:
    """One message. A queue may have millions: what most do not need is in `lease` and `terms`.

    `due_ms`: when it becomes visible, its lease is over, or it may be collected; 0 while pending.
    `timer`: its valid entry in the timers. `first_priority`: what it was enqueued with.
    """

    __slots__ = (
        "attempts",
        "attempts_left",
        "changed_ms",
        "created_ms",
        "due_ms",
        "first_priority",
        "id",
        "key",
        "lease",
        "metadata",
        "payload",
        "state",
        "terms",
        "timer",
        "value",
        "version",
    )

    def __init__(
        self,
        id: str,
        payload: bytes,
        key: int,
        metadata: Metadata,
        value: str | None,
        attempts: int,
        terms: Terms,
        now_ms: int,
    ) -> None:
        self.id = id
        self.payload = payload
        self.key = key
        self.metadata = metadata
        self.value = value
        self.attempts = self.attempts_left = attempts
        self.terms = terms
        self.created_ms = self.changed_ms = now_ms
        self.state = PENDING
        self.version = 0
        self.due_ms = self.timer = 0
        self.first_priority: int | None = None  # None: it never changed
        self.lease: LastLease | None = None

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
