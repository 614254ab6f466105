"""Enqueueing messages of streams: the whole list, or a prefix of it.

Owns `enqueue`. The form of messages is in `form`, and retries are in `surface`.

Invariants: a refused message is not stored. If nobody knows whether it is stored, the cause is
PublishUnknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.providers.priority.core.errors import (
    OwnerLost,
    PriorityQueueError,
    PriorityQueueFull,
    RequestInvalid,
)
from millstream.providers.priority.surface.given import NewMessage
from millstream.providers.priority.surface.queue import PriorityQueue
from millstream.runtime import (
    EnqueueFailed,
    MillstreamError,
    NotHosted,
    Overloaded,
    PublishUnknown,
    QueueFull,
    QueueUnavailable,
    StreamError,
)
from millstream.runtime.extending import Clock
from millstream.streams import OutMessage, Token

from .form import new_message

__all__ = ["cause_of", "enqueue"]

MESSAGES_MAX = 1_000
"""Messages in one call."""


async def enqueue(
    queue: PriorityQueue, messages: Sequence[OutMessage], clock: Clock, payload_bytes_max: int
) -> list[Token | None]:
    """Store messages in order. They have no tokens until they are leased. Raises EnqueueFailed."""
    ready, refused = form(messages, clock.wall_s(), payload_bytes_max)
    stored, at_once = 0, MESSAGES_MAX
    while stored < len(ready):
        some = ready[stored : stored + at_once]
        try:
            await queue.enqueue_many(some, all_or_nothing=True)
        except (PriorityQueueFull, RequestInvalid) as error:
            if len(some) == 1:
                kind = QueueFull if isinstance(error, PriorityQueueFull) else StreamError
                raise EnqueueFailed([None] * stored, kind(str(error))) from None
            at_once = (len(some) + 1) // 2  # the first ones may be accepted
        except MillstreamError as error:
            raise EnqueueFailed([None] * stored, cause_of(queue.name, error)) from None
        else:
            stored += len(some)
    if refused is not None:
        raise EnqueueFailed([None] * stored, refused)
    return [None] * stored


def form(
    messages: Sequence[OutMessage], wall_s: float, payload_bytes_max: int
) -> tuple[list[NewMessage], StreamError | None]:
    """The messages that can be stored, up to the first one that cannot, and the reason of that
    one.
    """
    found: list[NewMessage] = []
    for message in messages:
        try:
            found.append(new_message(message, wall_s, payload_bytes_max))
        except StreamError as error:
            return found, error
    return found, None


def cause_of(queue: str, error: MillstreamError) -> StreamError:
    """The error for a call that stored nothing; PublishUnknown if it may have stored something."""
    text = f"priority queue {queue!r}: {type(error).__name__}: {error}"
    if isinstance(error, Overloaded):
        return QueueFull(text)
    if isinstance(error, NotHosted):
        return QueueUnavailable(f"{text}: give every silo the part PriorityQueues")
    if isinstance(error, PriorityQueueError) and not isinstance(error, OwnerLost):
        return QueueUnavailable(text)
    return PublishUnknown(text)
