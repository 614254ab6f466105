"""The background tasks and timers of one owner.

This module owns `Tasks`. A task is kept until it ends, or until it has ignored its cancellation for
too long, so no owner waits forever for its tasks. Tasks are cancelled in the order of their start,
which makes every run alike; a set would order them by address. No task sees a context variable of
the code that started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any

__all__ = ["TASK_END_S", "Tasks"]

TASK_END_S = 1.0
"""Seconds for which `aclose` waits for the tasks that it has cancelled."""

log = logging.getLogger("millstream.tasks")


class Tasks:
    """The background tasks and timers of one owner, who ends the tasks together.

    Tasks and timers run in empty contexts, so they see no context variable of the code that starts
    them. `len(tasks)` is the number of running tasks, and iterating gives the tasks themselves. A
    part gets an object for itself by `SiloServices.new_tasks()`.

    Args:
        loop: The event loop of the owner.
        new_context: Makes the empty contexts, such as `Env.new_context`.
        owner: The name in the log line about a task that failed. Empty: failures are not logged,
            and the code that starts a task takes its error.
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
        """Start a coroutine as a task.

        Args:
            coro: The coroutine.

        Returns:
            The task.
        """
        task = self._loop.create_task(coro, context=self._new_context())
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Add a task that other code has started. It ends with the tasks of this owner.

        Args:
            task: The task.
        """
        self._running[task] = None
        task.add_done_callback(self._forget)

    def let_go(self, task: asyncio.Task[Any]) -> None:
        """Remove a task. `cancel` and `aclose` leave it alone from now on.

        Args:
            task: The task.
        """
        self._running.pop(task, None)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if self._owner and not task.cancelled() and task.exception() is not None:
            log.error("%s: a background task failed", self._owner, exc_info=task.exception())

    def call_at(self, when_s: float, fn: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function at a time of the loop's clock.

        Args:
            when_s: The time in seconds.
            fn: The function.

        Returns:
            The timer. The caller must cancel it, since `cancel` and `aclose` end tasks only.
        """
        return self._loop.call_at(when_s, fn, context=self._new_context())

    def call_later(self, delay_s: float, fn: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function after a delay.

        Args:
            delay_s: The delay in seconds.
            fn: The function.

        Returns:
            The timer. The caller must cancel it, since `cancel` and `aclose` end tasks only.
        """
        return self._loop.call_later(delay_s, fn, context=self._new_context())

    def cancel(self) -> None:
        """Cancel every task, in the order of their start."""
        for task in self:
            task.cancel()

    async def aclose(self) -> None:
        """Cancel every task, and wait up to one second for them to end.

        A task that still runs after that is logged, and no longer waited for.
        """
        self.cancel()
        if not self._running:
            return
        ended, left = await asyncio.wait(list(self._running), timeout=TASK_END_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # marks the error as retrieved
        for task in left:
            text = "%s: %s ignored its cancellation and still runs; it is no longer awaited"
            log.error(text, self._owner, getattr(task.get_coro(), "__qualname__", "a task"))
