"""Long-lived tasks that run pieces of work, one after the other.

`RunnerTasks` decides when a runner task is woken and when a further one is started. `Runners` runs
coroutines. Calls that arrive have runners of their own (`calls/callee`).

Invariants:

- Pieces begin in the order in which they were given. No piece waits for another one that has
  suspended.
- While pieces suspend, for example in calls to other silos, more and more of them begin in one loop
  iteration. Their messages then leave together.
- A piece begins in a context without variables of other pieces, and in a task without a
  cancellation.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from millstream.runtime.tasks import Tasks

from .request import current_request

__all__ = ["PARKED_MAX", "RunnerTasks", "Runners"]

PARKED_MAX = 64
"""Number of idle tasks that are kept for later pieces."""
WOKEN_MAX = 32
"""The most runners that are woken at a time. The number doubles while all woken runners suspend."""

Work = TypeVar("Work")


class RunnerTasks(Generic[Work]):
    """Base class of runner tasks and the queue of their work.

    A runner (`_run`) takes work until none is ready, and then parks. Code that makes work ready
    sets `_is_waking`, unless it is set, and calls `_wake`.
    """

    __slots__ = ("_is_closed", "_is_waking", "_loop", "_parked", "_ready", "_tasks", "_woken")

    def __init__(self, tasks: Tasks, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = tasks
        self._loop = loop
        self._ready: deque[Work] = deque()
        self._parked: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._is_closed = False
        self._woken = 0  # runners woken last time; 0 after the queue was empty

    def _wake(self, count: int = 1) -> None:
        self._woken = count
        for _ in range(count):
            parked = self._parked.pop() if self._parked else None
            if parked is not None and not parked.done():
                parked.set_result(None)
            else:
                self._tasks.start(self._run())
        # runs after the runners' next step: work that is left then means that all of them suspended
        self._loop.call_soon(self._check)

    def _check(self) -> None:
        if self._ready:
            self._wake(min(max(1, 2 * self._woken), len(self._ready), WOKEN_MAX))
        else:
            self._is_waking, self._woken = False, 0

    async def _run(self) -> None:
        """Run the work that is ready, and park."""
        raise NotImplementedError


class Runners(RunnerTasks[Coroutine[Any, Any, None]]):
    """Tasks that run short pieces of work again and again, without a new task for each piece.

    A part gets an object for itself by `SiloServices.new_runners()`. The pieces begin in the order
    in which they are given. A piece that suspends does not delay the others. No piece sees a
    context variable that another piece has set.

    Attributes:
        goes_on: Set it to True while a piece of work gives further pieces and will end, or call
            `share`, before it suspends.
        runner: The task that runs the most recently begun piece.
    """

    __slots__ = ("goes_on", "runner")

    def __init__(self, tasks: Tasks, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(tasks, loop)
        self.goes_on = False
        self.runner: asyncio.Task[Any] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a piece of work.

        Args:
            work: The coroutine. It must not raise anything but its cancellation.
        """
        if self._is_closed:
            work.close()
            return
        self._ready.append(work)
        if not self.goes_on:
            self.share()

    def share(self) -> None:
        """Let another task run the waiting pieces, because the running piece is going to
        suspend.
        """
        if self._ready and not self._is_waking:
            self._is_waking = True
            self._wake()

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        current_request.set(None)  # every runner's context has this variable, so `clean` counts it
        clean = len(contextvars.copy_context())
        while True:
            while self._ready:
                work = self._ready.popleft()
                if self._ready and not self._is_waking:
                    self._is_waking = True
                    self._loop.call_soon(self._check)
                self.runner = task
                try:
                    await work
                except GeneratorExit:
                    raise  # the event loop has ended
                except BaseException:
                    self.share()
                    raise
                if current_request.get() is not None:
                    current_request.set(None)
                if task.cancelling() or len(contextvars.copy_context()) > clean:
                    self.share()
                    return  # the next piece begins in a fresh task
            if len(self._parked) >= PARKED_MAX:
                return
            parked = self._loop.create_future()
            self._parked.append(parked)
            await parked

    def leave(self, runner: asyncio.Task[Any]) -> None:
        """Stop waiting for a task that does not end although it was cancelled.

        Args:
            runner: The task.
        """
        self._tasks.let_go(runner)

    def cancel(self) -> None:
        """Cancel every piece that runs. Pieces that have not begun never do."""
        self._is_closed = True
        while self._ready:
            self._ready.popleft().close()
        self._tasks.cancel()

    async def aclose(self) -> None:
        """Cancel every piece that runs, and wait for it to end."""
        self.cancel()
        await self._tasks.aclose()
