"""The timers of activations: each tick is a turn of its activation.

Owns `ActivationTimer`, and the timers of each activation (`Timers`). `definition.timers` checks the
times.

Invariants:

- At most one tick of a timer waits or runs. The next one is scheduled when it has ended.
- A tick obeys the turn rule as any request does.
- No tick starts once the end of the activation has begun, because the turn rule admits none. The
  timers end with the activation.
- An error of a tick ends only this tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.runtime.definition.markers import MARKS, Timeout
from millstream.runtime.definition.timers import TimerSchedule, make_schedule
from millstream.runtime.errors import CallTimeout, ConfigError, Overloaded
from millstream.runtime.tasks import Tasks

from .activation import Activation
from .request import RUNTIME_TASK, Request
from .run import Turns, own_cancellation

__all__ = ["ActivationTimer", "TickSpec", "Timers", "make_tick"]

log = logging.getLogger("millstream.timers")


class TickSpec:
    """The method of a timer, in the form of a `MethodSpec`."""

    __slots__ = ("_method", "label", "timeout_s")
    extension = ""
    writes_states = True
    is_filtered = False
    late = CallTimeout

    def __init__(
        self, method: Callable[[], Coroutine[Any, Any, None]], label: str, timeout_s: float | None
    ) -> None:
        self._method = method
        self.label = label
        self.timeout_s = timeout_s

    def invoke(self, grain: Any) -> Coroutine[Any, Any, None]:
        """Call the method."""
        return self._method()


class Tick:
    """One tick that waits for its turn: an entry of the mailbox."""

    __slots__ = ("_run", "is_withdrawn", "request", "size_bytes")

    def __init__(self, request: Request, run: Callable[[Request], None]) -> None:
        self.request = request
        self.is_withdrawn = False
        self.size_bytes = 0
        self._run = run

    def grant(self) -> bool:
        self._run(self.request)
        return True

    def on_moved(self, silo: str) -> None:
        """Drop the tick: the timer has ended with its activation."""

    def fail(self, error: BaseException) -> None:
        """Drop the tick: the timer has ended with its activation."""


class ActivationTimer:
    """A timer of one activation (`definition.timers.Timer`).

    Args:
        spec: the method that a tick calls.
        tasks: run the ticks.
        others: all timers of the activation; the timer leaves the list when it ends.
    """

    __slots__ = (
        "_activation",
        "_due",
        "_first_s",
        "_is_ticking",
        "_others",
        "_schedule",
        "_spec",
        "_tasks",
        "_turns",
        "_waiting",
    )

    def __init__(
        self,
        activation: Activation,
        spec: TickSpec,
        schedule: TimerSchedule,
        turns: Turns,
        tasks: Tasks,
        others: list[ActivationTimer],
    ) -> None:
        self._activation = activation
        self._others = others
        self._spec = spec
        self._schedule: TimerSchedule | None = schedule  # None once the timer has ended
        self._turns = turns
        self._tasks = tasks
        self._waiting: Tick | None = None
        self._is_ticking = False
        self._first_s: float | None = None  # set by `change` during a tick
        self._due: asyncio.TimerHandle | None = tasks.call_later(schedule.first_s, self._tick)

    def __str__(self) -> str:
        return f"{self._activation}: timer {self._spec.label}"

    # -- the handle (`Timer`)

    def change(self, *, every: float | None, first: float | None = None) -> None:
        old = self._schedule
        if old is None:
            raise ConfigError(f"{self} has ended: start another one by `self.context.timer`")
        new = make_schedule(
            f"{self}: change", every, first, keep_alive=old.keep_alive, interleave=old.interleave
        )
        self._schedule = new
        if self._is_ticking:
            self._first_s = new.first_s
        else:
            self._unschedule()
            self._due = self._tasks.call_later(new.first_s, self._tick)

    def cancel(self) -> None:
        self._schedule = None
        self._unschedule()
        if self in self._others:
            self._others.remove(self)

    def _unschedule(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._waiting is not None:
            self._activation.withdraw(self._waiting)
            self._waiting = None

    # -- a tick

    def _tick(self) -> None:
        """Start a tick, or let it wait for its turn."""
        self._due = None
        schedule, activation = self._schedule, self._activation
        assert schedule is not None, f"{self}: a tick after the end"
        is_interleaving = schedule.interleave or activation.kind.is_reentrant
        request = Request(None, None, None, self._spec, 0.0, 1, RUNTIME_TASK)
        request.is_interleaving = is_interleaving
        request.is_use = schedule.keep_alive
        if activation.may_start(request):
            activation.enter(request)
            self._start(request)
            return
        self._waiting = Tick(request, self._start)
        try:
            activation.queue(self._waiting)
        except Overloaded as error:
            self._waiting = None
            log.warning("%s: a tick is skipped: %s", self, error)
            self._continue()

    def _start(self, request: Request) -> None:
        """Run the tick of a request that has entered the activation."""
        self._waiting = None
        self._is_ticking = True
        self._tasks.start(self._run(request))

    async def _run(self, request: Request) -> None:
        turns = self._turns
        if request.stop_reason:  # the silo ended all turns by force before this task began
            turns.finish(request)
            return
        request.task = turns.find_task()
        seconds = self._spec.timeout_s or turns.options.call_timeout_s
        request.deadline = turns.loop.time() + seconds
        turns.deadlines.add(request, seconds)
        try:
            await turns.run(request, self._work(request), turns.end_failed)
        except asyncio.CancelledError:
            if turns.ended:
                raise
            log.error("%s: a tick failed: %s", self, own_cancellation(request))
        except Exception:
            log.exception("%s: a tick failed", self)
        self._is_ticking = False
        self._continue()

    async def _work(self, request: Request) -> None:
        await self._turns.begin(self._activation, request, ())

    def _continue(self) -> None:
        """Schedule the next tick, or end a timer that has only one."""
        schedule, first_s = self._schedule, self._first_s
        self._first_s = None
        if schedule is None:
            return
        delay_s = schedule.every_s if first_s is None else first_s
        if delay_s is None:
            self.cancel()
        else:
            self._due = self._tasks.call_later(delay_s, self._tick)


class Timers:
    """The timers of all activations of a silo."""

    def __init__(self, turns: Turns, tasks: Tasks) -> None:
        self._turns = turns
        self._tasks = tasks
        self._all: dict[int, list[ActivationTimer]] = {}  # by the id of their activation

    def start_marked(self, activation: Activation) -> None:
        """Start the timers of the marked methods of a grain."""
        for name, schedule, timeout_s in activation.kind.timers:
            method = getattr(activation.grain, name)
            label = f"{activation.kind.name}.{name}"
            self.start(activation, TickSpec(method, label, timeout_s), schedule)

    def start(
        self, activation: Activation, spec: TickSpec, schedule: TimerSchedule
    ) -> ActivationTimer:
        """Start a timer of an activation."""
        others = self._all.setdefault(activation.id, [])
        timer = ActivationTimer(activation, spec, schedule, self._turns, self._tasks, others)
        others.append(timer)
        return timer

    def end(self, activation: Activation) -> None:
        """Cancel the timers of an activation that has ended."""
        for timer in list(self._all.pop(activation.id, ())):
            timer.cancel()


def make_tick(method: Callable[[], Coroutine[Any, Any, None]]) -> TickSpec:
    """Return the spec of a timer that a grain starts at run time."""
    fn = getattr(method, "__func__", method)
    seconds = [mark.seconds for mark in getattr(fn, MARKS, ()) if isinstance(mark, Timeout)]
    label = getattr(method, "__qualname__", None) or type(method).__name__
    return TickSpec(method, label, seconds[0] if seconds else None)
