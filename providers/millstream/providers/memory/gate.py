"""A capacity gate: producers wait here for room in a bounded queue, in order of arrival.

This module owns `CapacityGate`. The owner decides what the capacity counts, and releases units.
Invariants: 0 <= free <= capacity. A request is admitted whole. While a request waits, no later one
passes it, however small. A request that is cancelled or timed out has taken nothing.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from millstream.runtime import ConfigError, Overloaded, QueueUnavailable

__all__ = ["CapacityGate"]


class CapacityGate:
    """`capacity` units for the tasks of one event loop; at most `waiters_max` may wait."""

    def __init__(self, capacity: int, waiters_max: int = 10_000) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}, it must be at least 1")
        self.capacity = capacity
        self._waiters_max = waiters_max
        self._free = capacity
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # smaller than an empty deque
        self._closed: str | None = None

    @property
    def free(self) -> int:
        """Units that are not taken."""
        return self._free

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiters)

    def try_acquire(self, count: int = 1) -> bool:
        """Take `count` units now, or none. Raises ValueError if `count` exceeds the capacity."""
        if self._closed is not None or not 0 <= count <= self.capacity:
            self._refuse(count)
        if count and (self._waiters or count > self._free):
            return False
        self._free -= count
        return True

    async def acquire(self, count: int = 1) -> None:
        """Take `count` units, after earlier requests; use them before the next await.

        Raises ValueError (more than the capacity), Overloaded (`waiters_max`), QueueUnavailable
        (closed).
        """
        if self.try_acquire(count):
            return
        if len(self._waiters) >= self._waiters_max:
            raise Overloaded("capacity gate", "waiters_max", self._waiters_max)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (count, turn)
        self._waiters.append(waiter)
        try:
            await turn
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    def release(self, count: int = 1) -> None:
        """Free `count` units, and admit waiting requests that now fit.

        Raises ValueError: fewer units are taken, or `count` is negative.
        """
        if not 0 <= count <= self.capacity - self._free:
            raise ValueError(f"count is {count}, but {self.capacity - self._free} units are taken")
        self._free += count
        self._admit()

    def close(self, reason: str) -> None:
        """Fail waiting and later requests; units can still be released."""
        self._closed = reason
        waiters, self._waiters = self._waiters, []
        for _, turn in waiters:
            if not turn.done():
                turn.set_exception(QueueUnavailable(reason))

    def _refuse(self, count: int) -> NoReturn:
        if self._closed is not None:
            raise QueueUnavailable(self._closed)
        raise ValueError(f"count is {count}, but the capacity is {self.capacity}")

    def _admit(self) -> None:
        while self._waiters:
            count, turn = self._waiters[0]
            # A cancelled request leaves here at once, because its task may run later.
            if not turn.done():
                if count > self._free:
                    return
                self._free -= count
                turn.set_result(None)
            self._waiters.pop(0)

    def _abandon(self, waiter: tuple[int, asyncio.Future[None]]) -> None:
        count, turn = waiter
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            # admitted, but cancelled before its task could run
            self._free += count
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
        self._admit()

    def check(self) -> None:
        """Assert the invariants."""
        assert 0 <= self._free <= self.capacity
        alive = [count for count, turn in self._waiters if not turn.done()]
        assert not alive or alive[0] > self._free or self._waiters[0][1].done()
