"""How large messages and lists of them are: cutting, and refusing what is too large. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.runtime.extending import check_fields
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import content_bytes

__all__ = ["PublishLimits", "SendLimits", "check_size", "split_items"]


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """What one message may have: items and bytes where a list is cut, bytes where one is given."""

    items_max: int = 1000
    bytes_max: int = 1 << 20
    message_bytes_max: int = 32 << 20

    def within(self, frame_bytes_max: int) -> PublishLimits:
        """The same where frames are smaller: half of one for what is sent, half for what goes
        with it."""
        half = max(1, frame_bytes_max // 2)
        return PublishLimits(
            self.items_max, min(self.bytes_max, half), min(self.message_bytes_max, half)
        )


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


def split_items(bodies: Sequence[bytes], limits: PublishLimits) -> list[Sequence[bytes]]:
    """Parts of at most `items_max` items and `bytes_max` bytes, in order.

    A single item may be larger than the limit of bytes.
    """
    if 0 < len(bodies) <= limits.items_max and sum(map(len, bodies)) <= limits.bytes_max:
        return [bodies]
    parts: list[Sequence[bytes]] = []
    start = size = 0
    for at, body in enumerate(bodies):
        is_full = at - start >= limits.items_max
        if at > start and (is_full or size + len(body) > limits.bytes_max):
            parts.append(bodies[start:at])
            start, size = at, 0
        size += len(body)
    if start < len(bodies):
        parts.append(bodies[start:])
    return parts


def check_size(
    stream: StreamId,
    items: Sequence[bytes],
    headers: Mapping[str, str] | None,
    limits: PublishLimits,
) -> None:
    """Raise ValueError for a message that is larger than `message_bytes_max`."""
    size = content_bytes(items, headers)
    if size > limits.message_bytes_max:
        raise ValueError(
            f"{stream}: a message of {size} bytes (items and headers); message_bytes_max "
            f"is {limits.message_bytes_max}, and at most half of frame_bytes_max"
        )
