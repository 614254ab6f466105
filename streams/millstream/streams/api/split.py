"""How large messages are: cutting a list of encoded items, refusing what is too large. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.queue import OutMessage

__all__ = ["check_size", "split_items"]


def split_items(bodies: Sequence[bytes], options: StreamOptions) -> list[Sequence[bytes]]:
    """Parts of at most `publish_items_max` items and `publish_bytes_max` bytes, in order.

    A single item may be larger than the limit of bytes.
    """
    parts: list[Sequence[bytes]] = []
    start = size = 0
    for at, body in enumerate(bodies):
        is_full = at - start >= options.publish_items_max
        if at > start and (is_full or size + len(body) > options.publish_bytes_max):
            parts.append(bodies[start:at])
            start, size = at, 0
        size += len(body)
    if start < len(bodies):
        parts.append(bodies[start:])
    return parts


def check_size(message: OutMessage, limit: int) -> None:
    """Raise ValueError for a message that is larger than `message_bytes_max`."""
    size = sum(map(len, message.items))
    if message.headers:
        size += sum(len((name + text).encode()) for name, text in message.headers.items())
    if size > limit:
        raise ValueError(
            f"{message.stream}: a message of {size} bytes (items and headers); "
            f"message_bytes_max is {limit}, and at most half of frame_bytes_max"
        )
