"""The background tasks and timers of one owner.

Owns: `Tasks`. Invariants: a task is kept until it ends, or until it has ignored its cancellation
for too long, so that no owner waits for ever for its tasks; tasks are told to end in the order of
their start, in every process alike (a set would order them by address); none sees a variable of
whoever started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any

__all__ = ["TASK_END_S", "Tasks"]

TASK_END_S = 1.0
"""How long `aclose` waits for tasks that it has cancelled."""

log = logging.getLogger("millstream.tasks")


class Tasks:
    """Starts tasks and timers in empty contexts, and ends the tasks together.

    Args:
        new_context: makes them; `Env.new_context`.
        owner: shown where a task fails, which nobody awaits; empty: who starts tasks sees to that.
    """

    __slots__ = ("_loop", "_new_context", "_owner", "_running")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        new_context: Callable[[], Context],
        owner: str = "",
    ) -> None:
        self._loop = loop
        self._owner = owner
        self._new_context = new_context
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._running))

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task."""
        task = self._loop.create_task(coro, context=self._new_context())
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Take care of a task that was started elsewhere."""
        self._running[task] = None
        task.add_done_callback(self._forget)

    def let_go(self, task: asyncio.Task[Any]) -> None:
        """Take care of a task no longer: it is not told to end, and not waited for."""
        self._running.pop(task, None)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if self._owner and not task.cancelled() and task.exception() is not None:
            log.error("%s: a background task failed", self._owner, exc_info=task.exception())

    def call_at(self, when_s: float, fn: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function at a time of the loop's clock; the caller cancels it."""
        return self._loop.call_at(when_s, fn, context=self._new_context())

    def call_later(self, delay_s: float, fn: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function after a delay; the caller cancels it."""
        return self._loop.call_later(delay_s, fn, context=self._new_context())

    def cancel(self) -> None:
        """Tell every task to end."""
        for task in self:
            task.cancel()

    async def aclose(self) -> None:
        """Tell every task to end, and wait for it, at most `TASK_END_S`; others are left behind."""
        self.cancel()
        if not self._running:
            return
        ended, left = await asyncio.wait(list(self._running), timeout=TASK_END_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # read: nobody else does
        for task in left:
            text = "%s: %s does not end although it was cancelled; it is left behind"
            log.error(text, self._owner, getattr(task.get_coro(), "__qualname__", "a task"))
