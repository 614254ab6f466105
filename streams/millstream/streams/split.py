"""Cutting a list of encoded items into messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .options import StreamOptions

__all__ = ["split_items"]


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
