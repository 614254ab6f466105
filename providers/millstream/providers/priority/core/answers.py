"""Answers as plain values, as they are remembered for a repeat of their request, and back.

Invariants: an answer does not hold payloads: a lease of a repeated answer has its message's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from . import errors
from .changes import Plain
from .errors import PriorityQueueError
from .message import RUNNING, LeaseToken, Message, State
from .results import Dequeued, Done, Enqueued, EnqueuedMany, Lease, PollStatus

__all__ = ["Answer", "answer_of", "plain_of"]

Answer = Dequeued | Enqueued | EnqueuedMany | Done
LeaseFields = tuple[str, int, int, int, int, int, int]


def plain_of(answer: Answer | PriorityQueueError) -> Plain:
    match answer:
        case Dequeued(leases, status, _):
            return ("dequeued", status.value, tuple(plain_lease(lease) for lease in leases))
        case Enqueued(id, state, version, is_changed):
            return ("enqueued", id, int(state), version, is_changed)
        case Done(state, version, due_ms, is_changed):
            return ("done", int(state), version, due_ms, is_changed)
        case EnqueuedMany(answers):
            return ("many", tuple(plain_of(one) for one in answers))
    fields = tuple((name, value) for name, value in vars(answer).items())
    return ("error", type(answer).__name__, str(answer), fields)


def plain_lease(lease: Lease) -> Plain:
    epoch, version = lease.token
    times = (lease.deadline_ms, lease.attempt, lease.attempts_left)
    return (lease.id, lease.priority, epoch, version, *times)


def answer_of(plain: Plain, messages: Mapping[str, Message]) -> Answer:
    """The answer again; lists may stand for its tuples."""
    answer = part_of(plain, messages)
    assert not isinstance(answer, PriorityQueueError), "what was refused is not remembered"
    return answer


def part_of(plain: Plain, messages: Mapping[str, Message]) -> Answer | PriorityQueueError:
    match plain:
        case ["dequeued", str(status), [*leases]]:
            found = cast("list[LeaseFields]", leases)
            return Dequeued(tuple(lease_of(one, messages) for one in found), PollStatus(status))
        case ["enqueued", str(id), int(state), int(version), bool(is_changed)]:
            return Enqueued(id, State(state), version, is_changed)
        case ["done", int(state), int(version), int(due_ms), bool(is_changed)]:
            return Done(State(state), version, due_ms, is_changed)
        case ["many", [*answers]]:
            parts = [part_of(one, messages) for one in answers]
            return EnqueuedMany(cast("tuple[Enqueued | PriorityQueueError, ...]", tuple(parts)))
        case ["error", str(name), str(text), [*fields]]:
            return error_of(name, text, dict(cast("list[tuple[str, object]]", fields)))
    raise AssertionError(f"no answer has the form {plain!r}")


def lease_of(plain: LeaseFields, messages: Mapping[str, Message]) -> Lease:
    """A lease as it was given; it is valid if it still holds."""
    id, priority, epoch, version, deadline_ms, attempt, attempts_left = plain
    token = LeaseToken(epoch, version)
    rest = (deadline_ms, attempt, attempts_left)
    message = messages.get(id)
    held = message.lease if message is not None else None
    if message is None or held is None or held.token != token or message.state is not RUNNING:
        return Lease(id, b"", priority, (), token, *rest, is_valid=False)
    return Lease(id, message.payload, priority, message.metadata, token, *rest)


def error_of(name: str, text: str, fields: dict[str, object]) -> PriorityQueueError:
    kind = cast("type[PriorityQueueError]", getattr(errors, name))
    error = kind.__new__(kind)
    error.args = (text,)
    error.__dict__.update(fields)
    return error
