"""How large messages are: cutting a list of encoded items, refusing what is too large. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.runtime.extending import text_bytes
from millstream.streams.contracts.queue import OutMessage

__all__ = ["PublishLimits", "check_size", "split_items"]


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


def split_items(bodies: Sequence[bytes], limits: PublishLimits) -> list[Sequence[bytes]]:
    """Parts of at most `items_max` items and `bytes_max` bytes, in order.

    A single item may be larger than the limit of bytes.
    """
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


def check_size(message: OutMessage, limits: PublishLimits) -> None:
    """Raise ValueError for a message that is larger than `message_bytes_max`."""
    size = sum(map(len, message.items))
    if message.headers:
        size += text_bytes(message.headers) + text_bytes(message.headers.values())
    if size > limits.message_bytes_max:
        raise ValueError(
            f"{message.stream}: a message of {size} bytes (items and headers); message_bytes_max "
            f"is {limits.message_bytes_max}, and at most half of frame_bytes_max"
        )
