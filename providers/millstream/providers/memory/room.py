"""The capacity of one queue in memory: events and bytes, in order of arrival.

This module owns `QueueRoom`, which passes two gates one after the other. Invariants: units are
taken from both gates or from neither. A request that waits for bytes keeps its place before all
later ones.
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
        """The number of events that have room."""
        return self._events.capacity - self._events.free

    @property
    def bytes_taken(self) -> int:
        """The number of bytes that have room."""
        return self._bytes.capacity - self._bytes.free

    def try_acquire(self, events: int, size_bytes: int) -> bool:
        """Take room now, or none. Raises ValueError if there is never so much."""
        if not self._events.try_acquire(events):
            return False
        if self._bytes.try_acquire(size_bytes):
            return True
        self._events.release(events)
        return False

    async def acquire(self, events: int, size_bytes: int) -> None:
        """Take room, in order of arrival; use it before the next await.

        Raises ValueError (more than the capacity), Overloaded (too many wait), QueueUnavailable.
        """
        await self._events.acquire(events)
        try:
            await self._bytes.acquire(size_bytes)
        except BaseException:
            self._events.release(events)
            raise

    def release(self, events: int, size_bytes: int) -> None:
        """Free the room of these events, and admit waiting requests that now fit."""
        self._bytes.release(size_bytes)
        self._events.release(events)

    def close(self, reason: str) -> None:
        """Fail waiting and later requests."""
        self._events.close(reason)
        self._bytes.close(reason)
