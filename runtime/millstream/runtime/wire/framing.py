"""Bytes to frames and back, and how much of frames that are not whole is held. Pure.

Owns: the frame form (u32 little-endian length, then payload) and its limit (`FrameReader`); the
limit of the frames of many connections together (`FrameRoom`). Not: which connections have a limit
together (`connection`). Invariants: whatever the input, a reader buffers at most `limit_bytes` +
one read; after `FrameError` the reader is dead; whoever waits for room gets it in the order of
asking.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

__all__ = ["HEADER_BYTES", "FrameError", "FrameReader", "FrameRoom", "frame"]

HEADER_BYTES = 4


class FrameError(Exception):
    """The byte stream is not ours, or a frame is too large; the connection must be closed."""


def frame(payload: bytes) -> bytes:
    """Length prefix and payload, joined."""
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameReader:
    """Cuts a byte stream into frame payloads.

    Attributes:
        limit_bytes: the largest payload that is taken; may be changed between feeds.
        need: bytes of the frame that is not whole, its length prefix included, once that is there.
    """

    __slots__ = ("_partial", "limit_bytes", "need")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._partial = bytearray()  # grows in place: parts of a byte each would cost 40 times that
        self.need = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """What is buffered of the frame that is not whole."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return the payloads that are now whole.

        Raises FrameError as soon as a length prefix exceeds the limit. What comes before such a
        frame is returned first, since it may change the limit: `feed(b"")` then goes on.
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
            return [data[HEADER_BYTES:]]  # one whole frame, as most reads give
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
    """Who has room: of how many bytes, and since when."""

    size: int
    since_s: float


class Waiter(NamedTuple):
    """Who waits for room: for how many bytes, and how many are held meanwhile."""

    size: int
    held_bytes: int


class FrameRoom:
    """Room for the frames of many connections, in bytes; each has at most one frame under way.

    A frame that has room is read to its end, so frames in part never keep each other out. One has
    room even if it is larger than the limit, when no other has any.

    Args:
        limit_bytes: of all frames that have room.
        waiting_bytes_max: what may be held of frames that wait for room.
    """

    def __init__(self, limit_bytes: int, waiting_bytes_max: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting_bytes_max = waiting_bytes_max
        self._holders: dict[Hashable, RoomReservation] = {}
        self._waiters: dict[Hashable, Waiter] = {}

    def ask(
        self, who: Hashable, size: int, held_bytes: int, now_s: float
    ) -> Literal["read", "wait", "full"]:
        """Ask for the room of a frame; "full": not even what is held has room."""
        if not self._waiters and self._fits(size):
            self._give(who, size, now_s)
            return "read"
        if held_bytes > self._waiting_bytes_max - sum(w.held_bytes for w in self._waiters.values()):
            return "full"
        self._waiters[who] = Waiter(size, held_bytes)
        return "wait"

    def release(self, who: Hashable, now_s: float) -> list[Hashable]:
        """The frame is whole, or its connection is gone; returns those that may read now."""
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
        """Those that others wait for, and that have had room for so long."""
        if not self._waiters:
            return []
        return [who for who, one in self._holders.items() if one.since_s + within_s <= now_s]

    def next_late_s(self, within_s: float) -> float | None:
        """When to look for late ones again; None while nobody waits."""
        if not self._waiters:
            return None
        return min(one.since_s for one in self._holders.values()) + within_s
