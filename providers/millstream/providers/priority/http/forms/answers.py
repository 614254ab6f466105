"""The answers of the API as types.

The OpenAPI document is made of them, with their docstrings as descriptions.

Owns `Answer`, the types, and the conversion from results of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import Struct

from millstream.providers.priority.core import results
from millstream.providers.priority.core.message import LeaseToken, State
from millstream.providers.priority.core.settings import SettingsRow

from .bodies import StateName
from .problems import ProblemBody

__all__ = [
    "Answer",
    "Depth",
    "Depths",
    "Done",
    "Enqueued",
    "EnqueuedMany",
    "LeaseBody",
    "Leases",
    "MessageBody",
    "Messages",
    "Queue",
    "Queues",
    "Result",
    "depth_of",
    "lease_of",
    "make_done",
    "make_enqueued",
    "message_of",
    "queue_of",
    "token_text",
]

NAMES: dict[State, StateName] = {
    State.INVISIBLE: "invisible",
    State.PENDING: "pending",
    State.RUNNING: "running",
    State.COMPLETED: "completed",
    State.CANCELED: "canceled",
    State.ERRORED: "errored",
}


@dataclass(slots=True)
class Answer:
    """The answer of a route.

    `raw` is sent instead of the body. `undo` is called if the answer could not be sent.
    """

    body: Struct | None = None
    status: int = 200
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    undo: Callable[[], None] | None = None


class Queue(Struct):
    """The settings of a queue. `version` rises by one with each change."""

    queue: str
    version: int
    settings: dict[str, Any]


class Queues(Struct):
    """Names of queues in order. Pass `after` to get the next page; null marks the last page."""

    queues: list[str]
    after: str | None


class Enqueued(Struct):
    """A message in the queue. `is_changed` is false if the message was stored before."""

    id: str
    state: StateName
    version: int
    is_changed: bool


class Result(Struct, omit_defaults=True):
    """The result for one message of a batch: the message, or the problem that refused it."""

    message: Enqueued | None = None
    problem: ProblemBody | None = None


class EnqueuedMany(Struct):
    """One result per message, in order."""

    results: list[Result]


class Done(Struct):
    """The state of a message after an operation.

    `due_ms` is the time when the lease ends, when the message becomes visible, or when it may be
    collected; 0 while it is pending.
    """

    state: StateName
    version: int
    due_ms: int
    is_changed: bool


class MessageBody(Struct):
    """A message.

    `payload` is null if it was not requested. `token` belongs to the latest lease.
    """

    id: str
    state: StateName
    priority: int
    sequence: int
    metadata: dict[str, str]
    payload: bytes | None
    version: int
    attempts: int
    attempts_left: int
    due_ms: int
    created_ms: int
    changed_ms: int
    worker: str
    token: str | None
    reason: str


class Messages(Struct):
    """A page of messages. Pass `after` to get the next page; null marks the last page."""

    messages: list[MessageBody]
    after: int | None = None


class LeaseBody(Struct):
    """A message that the worker holds until `deadline_ms`.

    `token` is a fencing token: the number before the point rises with each lease of the queue.
    `is_valid` is false in a repeated answer if the lease is over; payload and metadata are empty
    then.
    """

    id: str
    token: str
    payload: bytes
    priority: int
    metadata: dict[str, str]
    deadline_ms: int
    attempt: int
    attempts_left: int
    is_valid: bool


class Leases(Struct):
    """Leases, the most urgent first; empty if no message is available."""

    leases: list[LeaseBody]


class Depth(Struct):
    """The number of messages in each state."""

    invisible: int
    pending: int
    running: int
    completed: int
    canceled: int
    errored: int


class Depths(Struct):
    """The number of messages in each state, for each exclusivity value."""

    values: dict[str, Depth]


def token_text(token: LeaseToken) -> str:
    """The token as text: `epoch.version`."""
    return f"{token.epoch}.{token.version}"


def queue_of(queue: str, row: SettingsRow) -> Queue:
    return Queue(queue, row.version, asdict(row.settings))


def make_enqueued(row: results.Enqueued) -> Enqueued:
    return Enqueued(row.id, NAMES[row.state], row.version, row.is_changed)


def make_done(row: results.Done) -> Done:
    return Done(NAMES[row.state], row.version, row.due_ms, row.is_changed)


def message_of(view: results.MessageView, with_payload: bool = True) -> MessageBody:
    token = token_text(view.token) if view.token is not None else None
    payload = view.payload if with_payload else None
    places = view._asdict() | {"state": NAMES[view.state], "metadata": dict(view.metadata)}
    return MessageBody(**(places | {"payload": payload, "token": token}))


def lease_of(row: results.LeaseGrant) -> LeaseBody:
    token, metadata = token_text(row.token), dict(row.metadata)
    rest = (row.deadline_ms, row.attempt, row.attempts_left, row.is_valid)
    return LeaseBody(row.id, token, row.payload, row.priority, metadata, *rest)


def depth_of(counts: Mapping[State, int]) -> Depth:
    return Depth(**{name: counts[state] for state, name in NAMES.items()})
