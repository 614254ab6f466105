"""Arguments of programs, converted to the values that are sent.

Seconds become milliseconds, pairs are ordered, and priorities become numbers.

Owns `NewMessage`, the checks of argument types, and error texts in the units that the program used.
The queue itself checks its limits.

Invariant: an error names the queue, the field and, if there is one, the limit. It shows only the
beginning of a long value.
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
"""The largest number of seconds that milliseconds can represent. Queues have lower limits."""
ATTEMPTS_MOST = 1_000_000
"""The upper bound of `attempts_max` of any queue."""
WIRE_MAX = 2**63 - 1
IN_MS = re.compile(r"(?P<name>lease|invisible|delay)_ms is (-?\d+), not (\d+) to (\d+)$")
LIMITS = {"lease": "lease_ms_max", "invisible": "invisible_ms_max", "delay": "invisible_ms_max"}


class NewMessage(NamedTuple):
    """A message for `PriorityQueue.enqueue_many`.

    Attributes:
        payload: The content, at most `payload_bytes_max` of the queue (32,768 bytes by default).
        priority: A whole number, lower is more urgent; or a `PriorityClass`; or None for the time
            of the enqueue.
        id: The message's id, 1 to 256 bytes; None chooses a new one.
        metadata: At most 4 pairs of texts, as a mapping or as pairs.
        invisible_s: How long no worker can lease the message, in seconds; None uses the queue's
            setting.
        lease_s: Length of its leases, in seconds; None uses the queue's setting.
        attempts: How often it may be leased; None uses the queue's setting.
    """

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
    """The commands for messages.

    At most `COUNT_MAX` messages are accepted. Raises `RequestInvalid`.
    """
    if not isinstance(messages, Iterable):
        raise RequestInvalid(queue, "messages", f"is {type(messages).__name__}, not iterable")
    given = list(islice(messages, COUNT_MAX + 1))
    check_number(queue, "messages", len(given), 0, COUNT_MAX)
    for new in given:
        if not isinstance(new, NewMessage):
            what = f"has {show_value(new)}, which is not a NewMessage"
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
    """The command for the arguments of `PriorityQueue.enqueue`. Raises `RequestInvalid`."""
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
    """The command for the arguments of a dequeue. Raises `RequestInvalid`."""
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
    """Whether the number fits into a message, so that the queue itself can check its limit."""
    return type(value) is int and -WIRE_MAX <= value <= WIRE_MAX


def check_count(queue: str, count: int) -> int:
    """Check the number of messages of one call. Raises `RequestInvalid`."""
    check_number(queue, "count", count, 1, COUNT_MAX)
    return count


def whole(queue: str, field: str, value: int) -> int:
    """Check a number that is not negative. Raises `RequestInvalid`."""
    check_number(queue, field, value, 0, NUMBER_MAX)
    return value


def milliseconds(queue: str, field: str, seconds: float | None) -> int | None:
    """Return seconds as whole milliseconds, rounded up. None stays None. Raises
    `RequestInvalid`."""
    if seconds is None:
        return None
    check_seconds(queue, field, seconds, SECONDS_MAX)
    return math.ceil(seconds * 1000)


def check_seconds(queue: str, field: str, seconds: float, most: float) -> None:
    """Raise `RequestInvalid` if the value is not a number of seconds in the range."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= most:
        text = f"is {show_value(seconds)}, not a number of seconds from 0 to {most}"
        raise RequestInvalid(queue, field, text)


def as_given(error: PriorityQueueError) -> PriorityQueueError:
    """The error as the program should see it: a time that the queue refused in milliseconds is
    given in seconds.
    """
    found = IN_MS.search(str(error)) if isinstance(error, RequestInvalid) else None
    if found is None:
        return error
    given, least, most = (f"{int(ms) / 1000:.16g}" for ms in found.groups()[1:])
    limit = f"{LIMITS[found['name']]} is {found[4]}"
    what = f"is {given}, not {least} to {most} seconds: {limit}"
    return RequestInvalid(error.queue, f"{found['name']}_s", what)
