"""Frames: cutting a byte stream into payloads, and the memory for incomplete frames. Pure.

A frame is a length (u32, little-endian) followed by that many bytes of payload. `FrameReader`
limits the frames of one connection. `FrameRoom` limits the incomplete frames of many connections
together; `connection` decides which connections share one.

Invariants:

- For every input, a reader buffers at most `limit_bytes` plus one read.
- A reader that raised `FrameError` must not be used again.
- Connections that wait for room get it in the order in which they asked.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

__all__ = ["HEADER_BYTES", "FrameError", "FrameReader", "FrameRoom", "frame"]

HEADER_BYTES = 4
"""Size of the length prefix of a frame."""


class FrameError(Exception):
    """The received bytes are no valid frame, or a frame is too large.

    The connection must be closed, because the reader cannot find the next frame.
    """


def frame(payload: bytes) -> bytes:
    """Return a payload as one frame: its length (u32, little-endian), then the payload.

    Args:
        payload: the encoded messages, as `encode_messages` returns them.

    Returns:
        The bytes to send.
    """
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameReader:
    """Cuts a stream of bytes into the payloads of its frames.

    A reader buffers at most `limit_bytes` plus the size of one read. It must not be used after a
    FrameError.

    Args:
        limit_bytes: size of the largest payload that the reader accepts.

    Attributes:
        limit_bytes: the same limit. It may be changed between two calls of `feed`.
        need: size of the incomplete frame, length prefix included; 4 while the prefix is
            incomplete.
    """

    __slots__ = ("_partial", "limit_bytes", "need")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._partial = bytearray()  # grows in place; a list of one-byte parts takes 40 times that
        self.need = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes that are buffered of the incomplete frame."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the payloads that are complete.

        If complete frames come before a frame that is too large, `feed` returns these first. The
        caller may then raise `limit_bytes` and continue with `feed(b"")`.

        Args:
            data: bytes as they were received, in any portions.

        Returns:
            The payloads in order; empty if no frame is complete.

        Raises:
            FrameError: the length prefix of the next frame exceeds `limit_bytes`.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self.need:
                return []
            return self._cut(memoryview(self._partial))
        if (
            int.from_bytes(data[:HEADER_BYTES], "little")
            == (len(data) - HEADER_BYTES)
            <= self.limit_bytes
        ):
            return [data[HEADER_BYTES:]]  # exactly one frame, the common case
        return self._cut(data)

    def _cut(self, data: bytes | memoryview) -> list[bytes]:
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
            payloads.append(bytes(data[at + HEADER_BYTES : at + HEADER_BYTES + size]))
            at += HEADER_BYTES + size
        self.need = need
        self._partial = bytearray(data[at:])
        return payloads


class RoomReservation(NamedTuple):
    """The reservation of one connection: its bytes and the time of its admission."""

    size: int
    since_s: float


class Waiter(NamedTuple):
    """A connection that waits for room: the bytes of its frame, and the bytes buffered of it."""

    size: int
    held_bytes: int


class FrameRoom:
    """Memory for the incomplete frames of many connections. Each connection has at most one.

    An admitted frame is read to its end, so incomplete frames never block each other. If no other
    frame is admitted, a frame larger than the limit is admitted too.

    Args:
        limit_bytes: bytes of all admitted frames together.
        waiting_bytes_max: bytes that may be buffered of frames that wait for room.
    """

    def __init__(self, limit_bytes: int, waiting_bytes_max: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting_bytes_max = waiting_bytes_max
        self._holders: dict[Hashable, RoomReservation] = {}
        self._waiters: dict[Hashable, Waiter] = {}

    def ask(
        self, who: Hashable, size: int, held_bytes: int, now_s: float
    ) -> Literal["read", "wait", "full"]:
        """Ask for room for a frame.

        The result "full" means that there is no room even for the bytes that are buffered of it.
        """
        if not self._waiters and self._fits(size):
            self._give(who, size, now_s)
            return "read"
        if held_bytes > self._waiting_bytes_max - sum(w.held_bytes for w in self._waiters.values()):
            return "full"
        self._waiters[who] = Waiter(size, held_bytes)
        return "wait"

    def release(self, who: Hashable, now_s: float) -> list[Hashable]:
        """Free the room of a complete frame or a closed connection.

        Returns the connections that are admitted now.
        """
        self._holders.pop(who, None)
        self._waiters.pop(who, None)
        admitted: list[Hashable] = []
        while self._waiters:
            first, waiter = next(iter(self._waiters.items()))
            if not self._fits(waiter.size):
                break
            del self._waiters[first]
            self._give(first, waiter.size, now_s)
            admitted.append(first)
        return admitted

    def _fits(self, size: int) -> bool:
        free_bytes = self._limit_bytes - sum(one.size for one in self._holders.values())
        return not self._holders or size <= free_bytes

    def _give(self, who: Hashable, size: int, now_s: float) -> None:
        self._holders[who] = RoomReservation(size, now_s)

    def late(self, now_s: float, within_s: float) -> list[Hashable]:
        """Return the admitted connections that exceed `within_s` while other connections wait."""
        if not self._waiters:
            return []
        return [who for who, one in self._holders.items() if one.since_s + within_s <= now_s]

    def next_late_s(self, within_s: float) -> float | None:
        """Return the time of the next check for late frames, or None while no connection waits."""
        if not self._waiters:
            return None
        return min(one.since_s for one in self._holders.values()) + within_s
