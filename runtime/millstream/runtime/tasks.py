"""The background tasks of one owner.

Owns: `Tasks`. Invariants: a task is kept until it ends; tasks are told to end in the order of their
start, in every process alike (a set would order them by address).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any

from .turns.request import clean_context

__all__ = ["Tasks"]


class Tasks:
    """Starts tasks in clean contexts, and ends them together."""

    __slots__ = ("_context", "_loop", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = clean_context()
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._running))

    def start(
        self, coro: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Start a task; in a clean context, unless one is given."""
        task = self._loop.create_task(coro, context=context or self._context.copy())
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Take care of a task that was started elsewhere."""
        self._running[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)

    def cancel(self) -> None:
        """Tell every task to end."""
        for task in self:
            task.cancel()

    async def aclose(self) -> None:
        """Tell every task to end, and wait for it."""
        self.cancel()
        await asyncio.gather(*self, return_exceptions=True)
