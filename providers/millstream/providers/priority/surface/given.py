"""What programs give, as what is sent: seconds as milliseconds, pairs in order, priorities.

Owns: `NewMessage`, the checks of types, refusals of times as programs gave them. Not: limits, which
the queue knows (the core).
Invariants: a refusal names the queue and the field, and the limit where there is one; what is
shown of a value is short.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from millstream.providers.priority.core.body import (
    Pairs,
    check_flag,
    check_number,
    check_pairs,
    check_request_text,
)
from millstream.providers.priority.core.commands import Dequeue, Enqueue
from millstream.providers.priority.core.core import COUNT_MAX
from millstream.providers.priority.core.errors import PriorityQueueError, RequestInvalid
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import NUMBER_MAX
from millstream.runtime.extending import show_value

from .priorities import Priority, wire_priority

__all__ = ["NewMessage", "Pairs"]

SECONDS_MAX = NUMBER_MAX // 1000
"""What can be said in milliseconds; queues have limits of their own."""
ATTEMPTS_MOST = 1_000_000
"""`attempts_max` of any queue is at most this."""
WIRE_MAX = 2**63 - 1
IN_MS = re.compile(r"(?P<name>lease|invisible|delay)_ms is (-?\d+), not (\d+) to (\d+)$")
LIMITS = {"lease": "lease_ms_max", "invisible": "invisible_ms_max", "delay": "invisible_ms_max"}


class NewMessage(NamedTuple):
    """A message to enqueue with others; the fields are the arguments of `PriorityQueue.enqueue`."""

    payload: bytes
    priority: Priority = None
    id: str | None = None
    metadata: Pairs = ()
    invisible_s: float | None = None
    lease_s: float | None = None
    attempts: int | None = None


def enqueues_of(
    queue: str, messages: Iterable[NewMessage], new_id: Callable[[], str]
) -> tuple[Enqueue, ...]:
    """The commands for messages, no more of which are read than one may send. Raises
    `RequestInvalid`."""
    if not isinstance(messages, Iterable):
        raise RequestInvalid(queue, "messages", f"is {type(messages).__name__}, not iterable")
    given = list(islice(messages, COUNT_MAX + 1))
    check_number(queue, "messages", len(given), 0, COUNT_MAX)
    for new in given:
        if not isinstance(new, NewMessage):
            what = f"has {show_value(new)}, which is no NewMessage"
            raise RequestInvalid(queue, "messages", what)
    return tuple([enqueue_of(queue, new_id, *new) for new in given])


def enqueue_of(
    queue: str,
    new_id: Callable[[], str],
    payload: bytes,
    priority: Priority = None,
    id: str | None = None,
    metadata: Pairs = (),
    invisible_s: float | None = None,
    lease_s: float | None = None,
    attempts: int | None = None,
) -> Enqueue:
    """The command for a message, of the arguments of `PriorityQueue.enqueue`. Raises
    `RequestInvalid`."""
    if not isinstance(payload, bytes):
        raise RequestInvalid(queue, "payload", f"is {type(payload).__name__}, not bytes")
    if attempts is not None and not is_sendable(attempts):
        check_number(queue, "attempts", attempts, 1, ATTEMPTS_MOST)
    if id is not None:
        check_request_text(queue, "id", id)
    return Enqueue(
        new_id() if id is None else id,
        payload,
        wire_priority(queue, priority),
        () if metadata == () else check_pairs(queue, "metadata", metadata),
        None if invisible_s is None else milliseconds(queue, "invisible_s", invisible_s),
        None if lease_s is None else milliseconds(queue, "lease_s", lease_s),
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
    check_request_text(queue, "worker", worker)
    pairs = () if wanted == () else check_pairs(queue, "wanted", wanted)
    lease_ms = None if lease_s is None else milliseconds(queue, "lease_s", lease_s)
    check_flag(queue, "same_value_ok", same_value_ok)
    check_number(queue, "count", count, 1, COUNT_MAX)
    return Dequeue(worker, count, pairs, lease_ms, same_value_ok)


def pairs_of(queue: str, field: str, pairs: Pairs) -> Metadata:
    """Pairs in the order of their keys. Raises `RequestInvalid`."""
    return () if pairs == () else check_pairs(queue, field, pairs)


def is_sendable(value: int) -> bool:
    """Is it a number that the queue itself can judge?"""
    return type(value) is int and -WIRE_MAX <= value <= WIRE_MAX


def check_count(queue: str, count: int) -> int:
    """How many messages, in one call. Raises `RequestInvalid`."""
    check_number(queue, "count", count, 1, COUNT_MAX)
    return count


def whole(queue: str, field: str, value: int) -> int:
    """A number that queues count with. Raises `RequestInvalid`."""
    check_number(queue, field, value, 0, NUMBER_MAX)
    return value


def milliseconds(queue: str, field: str, seconds: float | None) -> int | None:
    """Seconds as whole milliseconds, upwards. Raises `RequestInvalid`."""
    if seconds is None:
        return None
    check_seconds(queue, field, seconds, SECONDS_MAX)
    return math.ceil(seconds * 1000)


def check_seconds(queue: str, field: str, seconds: float, most: float) -> None:
    """Raise `RequestInvalid` for what is no time."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= most:
        text = f"is {show_value(seconds)}, not a number of seconds from 0 to {most}"
        raise RequestInvalid(queue, field, text)


def as_given(error: PriorityQueueError) -> PriorityQueueError:
    """A refusal; of a time by a queue as of the seconds that were given to it."""
    found = IN_MS.search(str(error)) if isinstance(error, RequestInvalid) else None
    if found is None:
        return error
    given, least, most = (f"{int(ms) / 1000:.16g}" for ms in found.groups()[1:])
    limit = f"{LIMITS[found['name']]} is {found[4]}"
    what = f"is {given}, not {least} to {most} seconds: {limit}"
    return RequestInvalid(error.queue, f"{found['name']}_s", what)
