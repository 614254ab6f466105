"""The size of messages and lists: splitting, and refusing messages that are too large. Pure.

Owns: `PublishLimits`, `SendLimits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from millstream.runtime.extending import check_fields
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import (
    HEAD_BYTES,
    VALUE_HEAD_BYTES,
    MessageLimits,
    OutMessage,
    content_bytes,
    headers_bytes,
    message_bytes,
)

__all__ = ["PublishLimits", "SendLimits", "check_size", "messages_of", "split_items"]

UNBOUNDED = MessageLimits()
QUEUE_SHARE = 0.75
"""The part of a frame that a message, as its queue counts it, may fill. A message of many small
items takes more bytes in a frame than its items have."""


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """The limits of one message: items and bytes where a list is split, bytes of a single message.

    `queue`: the largest message that the provider's queues accept. `small_bytes`, `small_items`: a
    message within these, counted with a margin, is within all limits.
    """

    items_max: int = 1000
    bytes_max: int = 1 << 20
    message_bytes_max: int = 32 << 20
    queue: MessageLimits = UNBOUNDED
    small_bytes: int = field(init=False)
    small_items: int = field(init=False)

    def __post_init__(self) -> None:
        most = min(self.bytes_max, self.message_bytes_max, self.queue.bytes_max)
        object.__setattr__(self, "small_bytes", most)
        object.__setattr__(self, "small_items", min(self.items_max, self.queue.items_max))

    def within(self, frame_bytes_max: int) -> PublishLimits:
        """The same limits for smaller frames: a message may fill half of a frame.

        As its queue counts, a message has at most `QUEUE_SHARE` of a frame.
        """
        half, most = max(1, frame_bytes_max // 2), int(frame_bytes_max * QUEUE_SHARE)
        return replace(
            self,
            bytes_max=min(self.bytes_max, half),
            message_bytes_max=min(self.message_bytes_max, half),
            queue=replace(self.queue, bytes_max=min(self.queue.bytes_max, max(1, most))),
        )

    def small(
        self,
        stream: StreamId,
        items: Sequence[bytes],
        headers: Mapping[str, str] | None,
        producer: str = "",
    ) -> int:
        """Return the bytes of a message that is certainly below all limits, or -1.

        -1 means that the message is empty, or may be above a limit. The method does not encode the
        names of stream and producer. It counts four bytes for each of their characters.
        """
        count = len(items)
        size = len(items[0]) if count == 1 else sum(map(len, items))
        values = count
        if headers:
            size += headers_bytes(headers)
            values += 2 * len(headers)
        names = 4 * (len(stream[0]) + len(stream[1]) + len(producer))
        most = HEAD_BYTES + names + size + VALUE_HEAD_BYTES * values
        return size if most <= self.small_bytes and 0 < count <= self.small_items else -1


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Limits of the lists that a silo enqueues in one queue, and of the messages that wait for it.

    Raises `ConfigError` if a value is not valid. All values are above 0.

    Attributes:
        batch_messages_max: messages in one call of the adapter.
        batch_bytes_max: bytes in one call of the adapter; a single message may be larger. At most
            half of `RuntimeOptions.frame_bytes_max`, whatever its value.
        waiting_bytes_max: bytes of waiting messages. Beyond that, `publish` raises `QueueFull` at
            once.
        call_limit_s: seconds that one call of the adapter may take. After that, its messages fail
            with `PublishUnknown`, and the waiting ones continue.
    """

    batch_messages_max: int = 1_000
    batch_bytes_max: int = 1 << 20
    waiting_bytes_max: int = 64 << 20
    call_limit_s: float = 10.0

    def __post_init__(self) -> None:
        check_fields(self)


def split_items(
    bodies: Sequence[bytes], limits: PublishLimits, head: OutMessage | None = None
) -> list[Sequence[bytes]]:
    """Parts of at most `items_max` items and `bytes_max` bytes, in order, that queues accept.

    A single item may be larger than the limit of bytes.

    Args:
        head: a message without items, with their stream and headers; None: both count nothing.
    """
    headers = 0 if head is None else headers_bytes(head.headers)
    items_max = min(limits.items_max, limits.queue.items_max)
    bytes_max = min(limits.bytes_max, limits.message_bytes_max - headers)
    room = limits.queue.bytes_max - (0 if head is None else message_bytes(head))
    count, size = len(bodies), sum(map(len, bodies))
    if 0 < count <= items_max and size <= bytes_max and size + VALUE_HEAD_BYTES * count <= room:
        return [bodies]
    parts: list[Sequence[bytes]] = []
    start = size = 0
    for at, body in enumerate(bodies):
        size += len(body)
        count = at - start + 1
        is_larger = size > bytes_max or size + VALUE_HEAD_BYTES * count > room
        if at > start and (count > items_max or is_larger):
            parts.append(bodies[start:at])
            start, size = at, len(body)
    if start < len(bodies):
        parts.append(bodies[start:])
    return parts


def messages_of(
    stream: StreamId,
    bodies: Sequence[bytes],
    headers: Mapping[str, str] | None,
    limits: PublishLimits,
) -> list[Sequence[bytes]]:
    """Split a list of events into messages: the items of each. Raises ValueError: one is too
    large."""
    head = OutMessage(stream, (), headers or {})
    parts = split_items(bodies, limits, head)
    for items in parts:
        check_size(msgspec.structs.replace(head, items=items), limits)
    return parts


def check_size(message: OutMessage, limits: PublishLimits) -> None:
    """Raise ValueError for a message above `message_bytes_max`, or above its queue's limits."""
    size = content_bytes(message.items, message.headers)
    if size > limits.message_bytes_max:
        raise ValueError(
            f"{message.stream}: a message of {size} bytes (items and headers); message_bytes_max "
            f"is {limits.message_bytes_max}, and at most half of frame_bytes_max"
        )
    if why := limits.queue.refusal(message):
        raise ValueError(f"{message.stream}: {why}: publish smaller items, or fewer at a time")
