"""How large messages and lists of them are: cutting, and refusing what is too large. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.runtime.extending import check_fields
from millstream.streams.contracts.message import (
    VALUE_HEAD_BYTES,
    MessageLimits,
    OutMessage,
    content_bytes,
    headers_bytes,
    message_bytes,
)

__all__ = ["PublishLimits", "SendLimits", "check_size", "split_items"]

UNBOUNDED = MessageLimits()
QUEUE_SHARE = 0.75
"""Of a frame, for a message with the lengths of its items: a message of many small items has more
bytes in a frame than its items have."""


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """What one message may have: items and bytes where a list is cut, bytes where one is given.

    `queue`: what the queues of the provider accept.
    """

    items_max: int = 1000
    bytes_max: int = 1 << 20
    message_bytes_max: int = 32 << 20
    queue: MessageLimits = UNBOUNDED

    def within(self, frame_bytes_max: int) -> PublishLimits:
        """The same where frames are smaller: half of one for what is sent, half for what goes
        with it. As a queue counts, a message has at most `QUEUE_SHARE` of a frame."""
        half, most = max(1, frame_bytes_max // 2), int(frame_bytes_max * QUEUE_SHARE)
        return replace(
            self,
            bytes_max=min(self.bytes_max, half),
            message_bytes_max=min(self.message_bytes_max, half),
            queue=replace(self.queue, bytes_max=min(self.queue.bytes_max, max(1, most))),
        )

    def surely_fits(self, message: OutMessage, content: int) -> bool:
        """Is a message with so many bytes of content far below the limits? Costs little.

        A factor of 16 covers the lengths before items and headers, and characters of four bytes.
        """
        (namespace, key), mark, items = message.stream, message.mark, len(message.items)
        parts = content + items + len(namespace) + len(key)
        if mark is not None:
            parts += len(mark.producer)
        limit = min(self.message_bytes_max, self.queue.bytes_max)
        return 16 * parts + 64 <= limit and items <= self.queue.items_max


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Bounds of one list that is enqueued, and of what waits for it. Raises ConfigError.

    `call_limit_s`: how long one call of the adapter may take; then its messages are unknown.
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
        head: a message without items, of the stream and with the headers of these; None: they
            count nothing.
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


def check_size(message: OutMessage, limits: PublishLimits) -> None:
    """Raise ValueError for a message that is larger than `message_bytes_max`, or than its queue
    accepts."""
    size = content_bytes(message.items, message.headers)
    if limits.surely_fits(message, size):
        return
    if size > limits.message_bytes_max:
        raise ValueError(
            f"{message.stream}: a message of {size} bytes (items and headers); message_bytes_max "
            f"is {limits.message_bytes_max}, and at most half of frame_bytes_max"
        )
    if why := limits.queue.refusal(message):
        raise ValueError(f"{message.stream}: {why}: publish smaller items, or fewer at a time")
