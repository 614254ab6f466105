"""Signs of life on connections.

Owns: one timer for all connections of a process, and what a silence is (`Silence`, pure). Not:
which silos are dead (`prober`). Invariants: silence is counted in looks, so a loop that stood still
accuses nobody; an end that takes what is written to it, or says anything, lives.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from millstream.runtime.tasks import Tasks

__all__ = ["Beating", "Pulse", "Silence"]


class Beating(Protocol):
    """A connection, to the pulse."""

    def check_pulse(self, looks_max: int, /) -> None: ...


class Silence:
    """How often in a row the other end gave no sign."""

    __slots__ = ("_looks", "_taken_bytes")

    def __init__(self) -> None:
        self._looks = 0
        self._taken_bytes = 0

    def look(self, is_heard: bool, waiting_bytes: int, written_bytes: int) -> int:
        """Was it heard since the last look; how much waits in the link, of how much in all?

        What fits into the buffers of the system is no sign of the other end: only while some
        waits, taking more is one. Returns the looks in a row without a sign.
        """
        taken_bytes = written_bytes - waiting_bytes
        has_taken = waiting_bytes > 0 and taken_bytes > self._taken_bytes
        self._taken_bytes = taken_bytes
        self._looks = 0 if is_heard or has_taken else self._looks + 1
        return self._looks


class Pulse:
    """Looks after the connections of one process, every `every_s` while there are any."""

    __slots__ = ("_every_s", "_looks_max", "_peers", "_tasks", "_timer")

    def __init__(self, tasks: Tasks, every_s: float, silent_after_s: float) -> None:
        self._tasks = tasks
        self._every_s = every_s
        self._looks_max = max(1, math.ceil(silent_after_s / every_s))
        self._peers: dict[Beating, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: Beating) -> None:
        """Look after a connection from now on."""
        self._peers[peer] = None
        if self._timer is None:
            self._timer = self._tasks.call_later(self._every_s, self._look)

    def remove(self, peer: Beating) -> None:
        """It is closed."""
        self._peers.pop(peer, None)
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._tasks.call_later(self._every_s, self._look)
        for peer in list(self._peers):
            peer.check_pulse(self._looks_max)
