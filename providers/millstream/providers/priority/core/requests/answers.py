"""Conversion of answers to plain values that can be stored, and back.

Invariants: a stored answer contains no payloads; a repeated answer reads them from the messages. A
repeated dequeue never says that the queue is empty. Of an enqueue of many, the stored messages are
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from millstream.providers.priority.core.changes import Plain
from millstream.providers.priority.core.message import RUNNING, LeaseToken, Message, State
from millstream.providers.priority.core.results import (
    Dequeued,
    Done,
    Enqueued,
    EnqueuedMany,
    LeaseGrant,
    PollStatus,
    Refused,
)

__all__ = ["Answer", "answer_of", "find_taken", "plain_of"]

Answer = Dequeued | Enqueued | EnqueuedMany | Done
EnqueuedFields = tuple[str, int, int, bool]
RefusedFields = tuple[int, str, str, str, int]
LeaseFields = tuple[str, int, int, int, int, int, int]


def plain_of(answer: Answer) -> Plain:
    if isinstance(answer, Enqueued):
        return ("enqueued", answer.id, int(answer.state), answer.version, answer.is_changed)
    if isinstance(answer, Done):
        state, version, due_ms, is_changed = answer
        return ("done", int(state), version, due_ms, is_changed)
    if isinstance(answer, Dequeued):
        return ("dequeued", answer.status.value, tuple(map(plain_lease, answer.leases)))
    parts = tuple(one and (one.id, int(one.state), *one[2:]) for one in answer.answers)
    return ("many", parts, tuple(tuple(one) for one in answer.refusals))


def plain_lease(lease: LeaseGrant) -> Plain:
    epoch, version = lease.token
    times = (lease.deadline_ms, lease.attempt, lease.attempts_left)
    return (lease.id, lease.priority, epoch, version, *times)


def answer_of(plain: Plain, messages: Mapping[str, Message]) -> Answer:
    """The answer of a plain value; lists may replace its tuples."""
    match plain:
        case ["dequeued", str(status), [*leases]]:
            found = cast("list[LeaseFields]", leases)
            reason = PollStatus(status)
            if reason is PollStatus.EMPTY:
                reason = PollStatus.MORE  # messages may have come since the first answer
            return Dequeued(tuple(lease_of(one, messages) for one in found), reason)
        case ["enqueued", str(id), int(state), int(version), bool(is_changed)]:
            return Enqueued(id, State(state), version, is_changed)
        case ["done", int(state), int(version), int(due_ms), bool(is_changed)]:
            return Done(State(state), version, due_ms, is_changed)
        case ["many", [*answers], [*refusals]]:
            parts = cast("list[EnqueuedFields | None]", answers)
            why = cast("list[RefusedFields]", refusals)
            return EnqueuedMany(
                tuple(make_enqueued(one) for one in parts), tuple(Refused(*one) for one in why)
            )
    raise AssertionError(f"no answer has the form {plain!r}")


def find_taken(plain: Plain) -> dict[str, Enqueued]:
    """The messages stored under a request id, by id; `plain` is its answer."""
    if plain is None:
        return {}
    before = cast(EnqueuedMany, answer_of(plain, {}))
    return {one.id: one for one in before.answers if one is not None}


def lease_of(plain: LeaseFields, messages: Mapping[str, Message]) -> LeaseGrant:
    """Return a lease as it was given. `is_valid` says whether the lease still holds."""
    id, priority, epoch, version, deadline_ms, attempt, attempts_left = plain
    token = LeaseToken(epoch, version)
    rest = (deadline_ms, attempt, attempts_left)
    message = messages.get(id)
    held = message.lease if message is not None else None
    if message is None or held is None or held.token != token or message.state is not RUNNING:
        return LeaseGrant(id, b"", priority, (), token, *rest, is_valid=False)
    return LeaseGrant(id, message.payload, priority, message.metadata, token, *rest)


def make_enqueued(plain: EnqueuedFields | None) -> Enqueued | None:
    if plain is None:
        return None
    id, state, version, is_changed = plain
    return Enqueued(id, State(state), version, is_changed)
