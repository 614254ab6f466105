"""Bytes to frames and back. Pure.

Owns: the frame form (u32 little-endian length, then payload) and its limit. Invariants: whatever
the input, at most `limit_bytes` + one read is buffered; after `FrameError` the reader is dead.
"""

from __future__ import annotations

__all__ = ["HEADER_BYTES", "FrameError", "FrameReader", "frame"]

HEADER_BYTES = 4


class FrameError(Exception):
    """The byte stream is not ours, or a frame is too large; the connection must be closed."""


def frame(payload: bytes) -> bytes:
    """Length prefix and payload, joined."""
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameReader:
    """Cuts a byte stream into frame payloads.

    Attributes: `limit_bytes`, the largest payload that is taken; may be changed between feeds.
    """

    __slots__ = ("_missing", "_parts", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._missing = HEADER_BYTES  # more than is there, before a frame can be cut

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return the payloads that are now whole.

        Raises FrameError as soon as a length prefix exceeds the limit. What comes before such a
        frame is returned first, since it may change the limit: `feed(b"")` then goes on.
        """
        if (
            not self._parts
            and int.from_bytes(data[:HEADER_BYTES], "little")
            == (len(data) - HEADER_BYTES)
            <= self.limit_bytes
        ):
            return [data[HEADER_BYTES:]]  # one whole frame, as most reads give
        self._parts.append(data)
        self._missing -= len(data)
        return [] if self._missing > 0 else self._cut(b"".join(self._parts))

    def _cut(self, data: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        at, end, from_bytes = 0, len(data), int.from_bytes
        need = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            size = from_bytes(data[at : at + HEADER_BYTES], "little")
            if size > self.limit_bytes:
                if payloads:
                    break
                raise FrameError(
                    f"frame of {size} bytes exceeds frame_bytes_max {self.limit_bytes}"
                )
            if end - at - HEADER_BYTES < size:
                need = size + HEADER_BYTES
                break
            payloads.append(data[at + HEADER_BYTES : at + HEADER_BYTES + size])
            at += HEADER_BYTES + size
        self._missing = need - (end - at)
        self._parts = [rest] if (rest := data[at:]) else []
        return payloads
