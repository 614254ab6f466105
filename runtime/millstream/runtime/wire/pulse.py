"""Signs of life on connections.

`Pulse` owns one timer for all connections of a process, and `Silence` decides when a peer is
silent. `prober` decides which silos are dead. Silence is counted in looks of the timer: an event
loop that was blocked makes no looks, so it accuses no peer. A peer is alive if it sends anything,
or takes bytes that were written to it.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from millstream.runtime.tasks import Tasks

__all__ = ["Beating", "Pulse", "Silence"]


class Beating(Protocol):
    """A connection, as the pulse sees it."""

    def check_pulse(self, looks_max: int, /) -> None: ...


class Silence:
    """Counts successive looks without a sign of life."""

    __slots__ = ("_looks", "_taken_bytes")

    def __init__(self) -> None:
        self._looks = 0
        self._taken_bytes = 0

    def look(self, is_heard: bool, waiting_bytes: int, written_bytes: int) -> int:
        """Record one look, and return the number of successive looks without a sign of life.

        `waiting_bytes` of `written_bytes` are still in the link. Bytes that left the link are a
        sign of life only while others wait there: the rest may only fill the system's buffers.
        """
        taken_bytes = written_bytes - waiting_bytes
        has_taken = waiting_bytes > 0 and taken_bytes > self._taken_bytes
        self._taken_bytes = taken_bytes
        self._looks = 0 if is_heard or has_taken else self._looks + 1
        return self._looks


class Pulse:
    """Checks the connections of one process every `every_s` seconds while there are any."""

    __slots__ = ("_every_s", "_looks_max", "_peers", "_tasks", "_timer")

    def __init__(self, tasks: Tasks, every_s: float, silent_after_s: float) -> None:
        self._tasks = tasks
        self._every_s = every_s
        self._looks_max = max(1, math.ceil(silent_after_s / every_s))
        self._peers: dict[Beating, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: Beating) -> None:
        """Check this connection from now on."""
        self._peers[peer] = None
        if self._timer is None:
            self._timer = self._tasks.call_later(self._every_s, self._look)

    def remove(self, peer: Beating) -> None:
        """Stop checking a closed connection."""
        self._peers.pop(peer, None)
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._tasks.call_later(self._every_s, self._look)
        for peer in list(self._peers):
            peer.check_pulse(self._looks_max)
