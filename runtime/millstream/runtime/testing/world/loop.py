"""An asyncio event loop with a virtual clock, and hosts that can crash.

This module owns `SimLoop`. Hosts are in `host`, links in `network`, files in `disk`, and the run as
a whole in `simulation`.

- Time moves only when nothing is ready. It moves to the next timer, exactly or up to `early_max_s`
  less. The timers of uvloop fire early as well, because uvloop rounds to milliseconds.
- `call_soon` is first in, first out. There are no sockets and no threads.
- Between `pause(host)` and `resume`, nothing of that host runs, and nothing is lost.
- After `crash(host)`, nothing of that host runs until `shut_down`. All its objects stay referenced,
  because the collector would run the `finally` blocks of a coroutine.

A program that iterates over sets of tasks or of strings has an order that no seed decides.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, NoReturn, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from .env import make_random
from .errors import Deadlock, Livelock, SimulationError, VirtualTimeExceeded
from .host import HOST, Host, describe, host_of, is_alive, name_of, tag_of

__all__ = ["SimLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LIVELOCK_ITERATIONS_MAX = 100_000
EARLY_ITERATIONS_MAX = 50  # without a move of time; real time moves while timers are set again
EXECUTOR_LATENCY_S = (0.0, 0.001)
COLLECT_EVERY_ITERATIONS = 50_000
NO_SOCKETS = "a simulated loop has no sockets: use SimTransport"
NAMED_MAX = 20
SHUT_DOWN_ROUNDS_MAX = 3
SHUT_DOWN_ROUND_S = 60.0
CLOSE_ROUNDS_MAX = 10


class SimLoop(asyncio.BaseEventLoop):
    """An asyncio event loop with a virtual clock. `run` makes it, and `Simulation.loop` is that of
    a run.

    Args:
        seed: Decides how long jobs of executors take.
        max_virtual_s: A wait beyond this virtual time raises VirtualTimeExceeded, in seconds.
        early_max_s: A timer fires up to this much before its time. 0: never early.
        livelock_iterations_max: Iterations without a move of time before Livelock is raised.

    Attributes:
        max_virtual_s: As the argument.
        iterations: The iterations so far.
        is_shutting_down: Whether `shut_down` has begun.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool
    _closed: bool
    _clock_resolution: float
    _thread_id: int | None

    def __init__(
        self,
        seed: int = 0,
        *,
        max_virtual_s: float = math.inf,
        early_max_s: float = 0.0,
        livelock_iterations_max: int = LIVELOCK_ITERATIONS_MAX,
    ) -> None:
        super().__init__()
        self.max_virtual_s = max_virtual_s
        self.iterations = 0
        self.is_shutting_down = False
        self._now = 0.0
        self._early_max_s = early_max_s
        self._still = 0
        self._clock_resolution = self._resolution()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # time, number, timer
        self._timer_number = 0
        self._livelock_iterations_max = livelock_iterations_max
        self._random = make_random(seed, "loop")
        self._early_random = make_random(seed, "early timers")
        self._hosts: WeakKeyDictionary[asyncio.Task[Any], Host | None] = WeakKeyDictionary()
        self._buried: list[asyncio.Handle] = []
        self._kept: list[object] = []
        self._tombstone = asyncio.Handle(_nothing, (), self)
        self._tombstone.cancel()
        self.set_debug(False)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def _resolution(self) -> float:
        """Return how far ahead a timer may be to be due. Exact: `when <= now` and no more."""
        return math.ulp(self._now) + (self._early_max_s if self._is_early else 0.0)

    @property
    def _is_early(self) -> bool:
        """Whether timers may still fire early. Two that wait for the remaining time would never
        end.
        """
        return self._still < EARLY_ITERATIONS_MAX

    def _write_to_self(self) -> None:
        """Do nothing: no other thread may wake this loop."""

    def _run_once(self) -> None:
        """Run one iteration: move time if nothing is ready, then run everything that is ready.

        It is asyncio's own method without selector and debugging, because it takes a quarter of a
        simulation's time.
        """
        self._tick()
        timers, ready, until = self._timers, self._ready, self._now + self._clock_resolution
        while timers and timers[0][0] < until:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _tick(self) -> None:
        self.iterations += 1
        if self.iterations % COLLECT_EVERY_ITERATIONS == 0:
            gc.collect()  # at fixed points, so that finalizers are part of the schedule
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if self._ready or self._stopping:
            self._stay()
        elif not timers:
            raise Deadlock(f"nothing can happen at t={self._now:.6f} s{self._waiting()}")
        elif timers[0][0] > self._now:
            self._jump(timers[0][0])
        else:
            self._stay()

    def _stay(self) -> None:
        self._still += 1
        if self._still == EARLY_ITERATIONS_MAX:
            self._clock_resolution = self._resolution()
        if self._still > self._livelock_iterations_max:
            self._livelock()

    def _jump(self, when: float) -> None:
        if when > self.max_virtual_s:
            raise VirtualTimeExceeded(
                f"the next timer is at {when:.6f} s, max_virtual_s is {self.max_virtual_s:g}"
                + self._waiting()
            )
        assert when > self._now
        # Every other timer fires in time, so a timer set for the remaining time ends the wait.
        if self._early_max_s and self._is_early and self._early_random.random() < 0.5:
            when = max(self._now, when - self._early_random.uniform(0, self._early_max_s))
        self._still = 0 if when > self._now else self._still + 1
        self._now = when
        self._clock_resolution = self._resolution()
        if self._still > self._livelock_iterations_max:
            self._livelock()

    def _livelock(self) -> NoReturn:
        names = Counter(name_of(handle) for handle in self._ready)
        lines = [f"\n  {count} x {name}" for name, count in names.most_common(NAMED_MAX)]
        raise Livelock(
            f"{self._still} iterations at t={self._now:.6f} s, livelock_iterations_max is"
            f" {self._livelock_iterations_max}; ready:" + "".join(lines)
        )

    def _waiting(self) -> str:
        tasks = [task for task in self.tasks() if is_alive(self._hosts.get(task))]
        lines = [
            f"\n  {tag_of(self._hosts.get(task))}{describe(task)}" for task in tasks[:NAMED_MAX]
        ]
        more = len(tasks) - len(lines)
        return "; waiting:" + "".join(lines) + (f"\n  and {more} more" if more else "")

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, on live and crashed hosts, in the order of their
        creation.
        """
        return [task for task in list(self._hosts) if not task.done()]

    def host_of_task(self, task: object) -> Host | None:
        """Return the host on which a task was made; None if it was made on no host.

        Args:
            task: The task.
        """
        return self._hosts.get(task) if isinstance(task, asyncio.Task) else None

    def host_of_context(self, context: dict[str, Any]) -> Host | None:
        """Return the host of an error that an exception handler gets; None if it has none.

        Args:
            context: The context of the exception handler.
        """
        handle = context.get("handle")
        if handle is not None:
            return host_of(handle)
        return self.host_of_task(context.get("task") or context.get("future"))

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next iteration, unless its host has crashed."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = SimHandle(callback, args, self, context)
        host = HOST.get() if context is None else context.get(HOST)
        if host is None or (host.alive and host.waiting is None) or self.is_shutting_down:
            self._ready.append(handle)
        else:
            (self._buried if host.waiting is None else host.waiting).append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after a delay in virtual seconds, unless its host has crashed."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time, unless its host has crashed."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = SimTimer(when, callback, args, self, context)
        host = HOST.get() if context is None else context.get(HOST)
        if host is None or (host.alive and host.waiting is None) or self.is_shutting_down:
            self._arm(timer)
        else:
            (self._kept if host.waiting is None else host.waiting).append(timer)
        return timer

    def _arm(self, timer: asyncio.TimerHandle) -> None:
        self._timer_number += 1  # timers of one time fire in the order in which they were set
        heappush(self._timers, (timer.when(), self._timer_number, timer))

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next iteration. RuntimeError in another thread."""
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            raise RuntimeError("another thread called a simulated loop, so no seed repeats the run")
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task, as asyncio does. The task belongs to the host of its context."""
        task = super().create_task(coro, **options)
        context: Context | None = options.get("context")
        self._hosts[task] = HOST.get() if context is None else context.get(HOST)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function at once, in this thread. Its result arrives a little later.

        Args:
            executor: Ignored.
            func: The function.
            args: Its arguments.
        """
        future: asyncio.Future[T] = self.create_future()
        delay_s = self._random.uniform(*EXECUTOR_LATENCY_S)
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(delay_s, _fail, future, error)
        else:
            self.call_later(delay_s, _finish, future, result)
        return future

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        """Refuse: a simulated loop has no sockets."""
        raise NotImplementedError(NO_SOCKETS)

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Refuse: a simulated loop has no sockets."""
        raise NotImplementedError(NO_SOCKETS)

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """Refuse: a simulated loop has no sockets."""
        raise NotImplementedError(NO_SOCKETS)

    def crash(self, host: Host) -> None:
        """Drop every ready callback and timer of a host, now and from now on.

        A callback of the host that is running continues to its next await. The cost is linear in
        all ready callbacks and timers.

        Args:
            host: The host.
        """
        assert host.alive, f"{host} crashes twice"
        waiting, host.waiting = host.waiting or [], None
        host.alive = False
        for handle in (*waiting, *self._take_ready(host)):
            kept = self._kept if isinstance(handle, asyncio.TimerHandle) else self._buried
            kept.append(handle)
        self._kept.extend(self._take_timers(host))
        self._kept.extend(task for task in self.tasks() if self._hosts[task] is host)

    def pause(self, host: Host) -> None:
        """Let nothing of a host run until `resume`. Its callbacks wait.

        The cost is linear in all ready callbacks and timers.

        Args:
            host: The host.
        """
        assert host.alive and host.waiting is None, f"{host} cannot be paused"
        host.waiting = [*self._take_ready(host), *self._take_timers(host)]

    def resume(self, host: Host) -> None:
        """Run the callbacks that waited, in order. Timers that were due meanwhile fire now.

        Args:
            host: The host.
        """
        waiting, host.waiting = host.waiting or [], None
        for handle in waiting:
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                self._arm(handle)
            else:
                self._ready.append(handle)

    def _take_ready(self, host: Host) -> list[asyncio.Handle]:
        taken = []
        for index, handle in enumerate(list(self._ready)):
            if host_of(handle) is host:
                taken.append(handle)
                self._ready[index] = self._tombstone  # the running iteration has counted it
        return taken

    def _take_timers(self, host: Host) -> list[asyncio.Handle]:
        taken: list[asyncio.Handle] = []
        left: list[tuple[float, int, asyncio.TimerHandle]] = []
        for armed in sorted(self._timers):
            if host_of(armed[2]) is host:
                taken.append(armed[2])
            else:
                left.append(armed)
        self._timers[:] = left  # sorted, so a heap
        return taken

    def keep(self, thing: object) -> None:
        """Hold a reference to an object of a crashed host until the loop closes.

        Args:
            thing: The object.
        """
        self._kept.append(thing)

    def shut_down(self) -> None:
        """Cancel every task, also those of crashed hosts, and close the loop.

        Nothing is logged, because unwinding code of crashed hosts would log meaningless errors.
        Coroutines of tasks that ignore three cancellations are closed, so that the collector does
        not unwind them later.
        """
        self.is_shutting_down = True
        self.max_virtual_s = math.inf
        self.set_exception_handler(lambda loop, context: None)
        with _silence():
            self._unwind()
        self.close()
        self._timers.clear()
        self._kept.clear()

    def _unwind(self) -> None:
        for _ in range(SHUT_DOWN_ROUNDS_MAX):
            tasks = self.tasks()
            for task in tasks:
                task.cancel()
            self._ready.extend(self._buried)  # tasks wait for the wake-ups that were dropped
            self._buried.clear()
            self._run_last(_wait_for(tasks))
        self._run_last(self.shutdown_asyncgens())
        self._run_last(self._close_left())

    async def _close_left(self) -> None:
        """Close the coroutines that cancellation did not end, and those that they start."""
        closed: set[object] = {asyncio.current_task()}
        for _ in range(CLOSE_ROUNDS_MAX):
            left = [task for task in self.tasks() if task not in closed]
            closed.update(left)
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro: Any = task.get_coro()
                with suppress(BaseException):
                    coro.close()
        for handle in self._ready:  # a callback could start a task that nobody closes
            handle.cancel()
        self._timers.clear()

    def _run_last(self, coro: Coroutine[Any, Any, None]) -> None:
        self._still = 0
        with suppress(SimulationError), closing(coro):
            self.run_until_complete(coro)

    def check(self) -> None:
        """Assert that nothing of a crashed host is ready or timed, and that no timer is overdue."""
        handles = [*self._ready, *(timer for _, _, timer in self._timers)]
        assert self.is_shutting_down or all(is_alive(host_of(handle)) for handle in handles)
        assert all(when >= self._now for when, _, _ in self._timers[:1]) or self._ready
        assert self._clock_resolution == self._resolution()


@contextmanager
def _silence() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(level)


async def _wait_for(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.sleep(0)  # let the re-queued callbacks run, even if there is no task
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=SHUT_DOWN_ROUND_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # marks the error as retrieved


def _nothing() -> None:
    raise AssertionError("a dropped callback ran")


def _finish(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class SimHandle(asyncio.Handle):
    """A callback that is ready, created in one step.

    A simulation creates hundreds of thousands of them. asyncio's own class asks the loop three
    times whether it is debugged, which a simulated loop never is.
    """

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimTimer(asyncio.TimerHandle):
    """A callback with a time, created and cancelled in one step."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False  # the loop does not count cancelled timers

    def cancel(self) -> None:
        """Never run the callback. The callback is freed at once, the timer at its time."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]
