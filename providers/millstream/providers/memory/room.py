"""The room of one in-memory queue: for events and for bytes, first come first served.

Owns: `QueueRoom`, two gates that are passed one after the other. Invariants: what is taken of one
is taken of the other, or given back; who waits for bytes keeps its place before all who come later.
"""

from __future__ import annotations

from .gate import CapacityGate

__all__ = ["QueueRoom"]


class QueueRoom:
    """Room for `events_max` events of `bytes_max` bytes together."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._events = CapacityGate(events_max)
        self._bytes = CapacityGate(bytes_max)

    @property
    def events_taken(self) -> int:
        """Events that have room."""
        return self._events.capacity - self._events.free

    @property
    def bytes_taken(self) -> int:
        """Bytes that have room."""
        return self._bytes.capacity - self._bytes.free

    def try_acquire(self, events: int, size_bytes: int) -> bool:
        """Take room now, or none. Raises ValueError if it could never be had."""
        if not self._events.try_acquire(events):
            return False
        if self._bytes.try_acquire(size_bytes):
            return True
        self._events.release(events)
        return False

    async def acquire(self, events: int, size_bytes: int) -> None:
        """Take room, waiting in turn; use it before the next await.

        Raises ValueError (more than there is), Overloaded (too many wait), QueueUnavailable.
        """
        await self._events.acquire(events)
        try:
            await self._bytes.acquire(size_bytes)
        except BaseException:
            self._events.release(events)
            raise

    def release(self, events: int, size_bytes: int) -> None:
        """Give room back, and admit whom it suffices for."""
        self._bytes.release(size_bytes)
        self._events.release(events)

    def close(self, reason: str) -> None:
        """Fail those who wait, and all who come."""
        self._events.close(reason)
        self._bytes.close(reason)
