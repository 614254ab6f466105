"""The moments at which a balancer answers which queues its silo wants.

Owns: the silos that count (`Counting`), and asking again (`Rounds`). Not: the wanted queues, which
each balancer answers. Source: Solace's rebalance delay; Orleans' balancers without the maturity
wait. Invariants: the first answer comes at once. After the death of a silo the next answer comes at
once. Joins are collected for the delay, and at most three times as long. The manager is told only
of changes. While the store is unavailable, the last answer stays valid.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from msgspec import Struct

from millstream.runtime import ConfigError, StorageError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import SiloSet

__all__ = ["CALM_LOOK_S", "LOOK_S", "Counting", "Rounds", "Wish", "check_number"]

log = logging.getLogger("millstream.balancer")

DELAYS_MAX = 3
LOOK_S = 1.0
"""How often the records are read until every queue has its owner."""
CALM_LOOK_S = 10.0
"""How often the records are read after that, in case a queue was moved."""


def check_number(what: str, number: object, *, may_be_zero: bool = True) -> None:
    """Raise ConfigError unless the number is finite and above zero, or zero if that is allowed."""
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf:
        if number > 0 or may_be_zero:
            return
    least = "of at least 0" if may_be_zero else "above 0"
    raise ConfigError(f"{what} is {number!r}; it must be a finite number {least}")


class Wish(Struct, frozen=True):
    """The wanted queues, and the seconds after which the answer may change without a change of
    silos.

    `look_s`: inf: never.
    """

    queues: frozenset[QueueId]
    look_s: float = math.inf


class Counting:
    """The silos that count: a dead silo stops at once, a new one begins after the delay."""

    __slots__ = ("_delay_s", "_first_s", "counted", "due_s")

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._first_s: float  # since when a silo is here that does not count
        self.count(frozenset())

    def see(self, present: frozenset[str], now_s: float) -> None:
        """Record the present silos; `due_s` is when they count."""
        if present == self.counted:
            self.count(present)
        elif self.counted - present:
            self.due_s = now_s  # a silo is gone, and its queues have no reader
        else:
            self._first_s = min(self._first_s, now_s)
            latest_s = self._first_s + DELAYS_MAX * self._delay_s
            self.due_s = min(now_s + self._delay_s, latest_s)

    def count(self, present: frozenset[str]) -> None:
        """Count these silos from now on."""
        self.counted = present
        self.due_s = self._first_s = math.inf


class Rounds:
    """Asks a balancer which queues its silo wants, whenever the answer may have changed."""

    def __init__(
        self,
        silos: SiloSet,
        delay_s: float,
        wanted: Callable[[Iterable[QueueId]], None],
        wish: Callable[[frozenset[str]], Coroutine[Any, Any, Wish]],
    ) -> None:
        self._silos = silos
        self._wanted = wanted
        self._wish = wish
        self._counting = Counting(delay_s)
        self._changed = asyncio.Event()
        self._look_at_s: float
        self._said: frozenset[QueueId] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer, and keep answering."""
        self._unwatch = self._silos.watch(self._see)
        self._counting.count(self._present())
        await self._answer()
        self._task = self._silos.tasks.start(self._go_on())

    async def aclose(self) -> None:
        """Stop answering."""
        self._unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _present(self) -> frozenset[str]:
        return frozenset(self._silos.silos())

    def _see(self) -> None:
        self._counting.see(self._present(), asyncio.get_running_loop().time())
        self._changed.set()

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            next_s = min(self._counting.due_s, self._look_at_s)
            if loop.time() < next_s:
                await self._rest(None if next_s == math.inf else next_s)
                continue
            if loop.time() >= self._counting.due_s:
                self._counting.count(self._present())
            try:
                await self._answer()
            except Exception:
                log.exception("a balancer failed; it is called again in %g s", LOOK_S)
                self._look_at_s = loop.time() + LOOK_S

    async def _rest(self, until_s: float | None) -> None:
        """Wait until that time, or until a silo joins or is gone."""
        self._changed.clear()
        try:
            async with asyncio.timeout_at(until_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _answer(self) -> None:
        counted, loop = self._counting.counted, asyncio.get_running_loop()
        try:
            found = await self._wish(counted) if self._silos.me in counted else Wish(frozenset())
        except StorageError as error:
            text = "the queue records cannot be read, so the balancer moves no queue: %s"
            log.warning(text, error)
            found = Wish(self._said or frozenset(), LOOK_S)
        self._look_at_s = loop.time() + found.look_s
        if found.queues != self._said:
            self._said = found.queues
            self._wanted(found.queues)
