"""What programs give, as what is sent: seconds as milliseconds, pairs in order, priorities.

Owns: `NewMessage`, and the checks of types. Not: limits, which the queue knows (the core).
Invariants: a refusal names the queue and the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from millstream.providers.priority.core.body import (
    Pairs,
    checked_number,
    checked_pairs,
    checked_text,
)
from millstream.providers.priority.core.commands import Dequeue, Enqueue
from millstream.providers.priority.core.errors import RequestInvalid
from millstream.providers.priority.core.message import Metadata

from .priorities import Priority, wire_priority

__all__ = ["NewMessage", "Pairs"]

SECONDS_MAX = 1e9
NUMBER_MAX = 2**53


class NewMessage(NamedTuple):
    """A message to enqueue with others; the fields are the arguments of `PriorityQueue.enqueue`."""

    payload: bytes
    priority: Priority = None
    id: str | None = None
    metadata: Pairs = ()
    invisible_s: float | None = None
    lease_s: float | None = None
    attempts: int | None = None


def enqueue_of(queue: str, new: NewMessage, new_id: Callable[[], str]) -> Enqueue:
    """The command for a message. Raises `RequestInvalid`."""
    payload, priority, id, metadata, invisible_s, lease_s, attempts = new
    if not isinstance(payload, bytes):
        raise RequestInvalid(queue, "payload", f"is {type(payload).__name__}, not bytes")
    if attempts is not None:
        whole(queue, "attempts", attempts)
    return Enqueue(
        id_of(queue, id, new_id),
        payload,
        wire_priority(queue, priority),
        pairs_of(queue, "metadata", metadata),
        milliseconds(queue, "invisible_s", invisible_s),
        milliseconds(queue, "lease_s", lease_s),
        attempts,
    )


def dequeue_of(
    queue: str,
    worker: str,
    count: int,
    wanted: Pairs,
    lease_s: float | None,
    same_value_ok: bool,
) -> Dequeue:
    """The command of a poll. Raises `RequestInvalid`."""
    checked_text(queue, "worker", worker)
    pairs = pairs_of(queue, "wanted", wanted)
    lease_ms = milliseconds(queue, "lease_s", lease_s)
    return Dequeue(worker, whole(queue, "count", count), pairs, lease_ms, bool(same_value_ok))


def id_of(queue: str, id: str | None, new_id: Callable[[], str]) -> str:
    """The id that was given, or a new one."""
    if id is None:
        return new_id()
    checked_text(queue, "id", id)
    return id


def pairs_of(queue: str, field: str, pairs: Pairs) -> Metadata:
    """Pairs in the order of their keys. Raises `RequestInvalid`."""
    return checked_pairs(queue, field, pairs) if pairs else ()


def whole(queue: str, field: str, value: int) -> int:
    """A whole number that the wire can say. Raises `RequestInvalid`."""
    checked_number(queue, field, value, -NUMBER_MAX, NUMBER_MAX)
    return value


def milliseconds(queue: str, field: str, seconds: float | None) -> int | None:
    """Seconds as whole milliseconds, upwards. Raises `RequestInvalid`."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < SECONDS_MAX:
        text = f"is {seconds!r}, not a number of seconds from 0 to {SECONDS_MAX:,.0f}"
        raise RequestInvalid(queue, field, text)
    return math.ceil(seconds * 1000)
