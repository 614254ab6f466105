"""Timers of a grain: the mark `@timer`, the schedule of a timer, and its handle.

Owns the checks of a timer's times and methods. `turns.timers` runs timers.
Source: the grain timers of Orleans (`RegisterGrainTimer`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from millstream.runtime.errors import ConfigError, DefinitionError
from millstream.runtime.text import show_text

from .checks import takes_positional
from .markers import Flag, Mark, Timeout, add_mark, marks_of
from .method import source_of

__all__ = ["Timer", "TimerMark", "TimerSchedule", "make_schedule", "timer"]

TM = TypeVar("TM", bound=Callable[[Any], Coroutine[Any, Any, None]])


class Timer(Protocol):
    """A timer of an activation, as `self.context.timer` returns it.

    The timer ends with its activation.
    """

    def change(self, *, every: float | None, first: float | None = None) -> None:
        """Set new times. The next tick comes `first` seconds from now.

        If a tick runs, the new times apply when the tick ends. A tick that waits for its turn is
        withdrawn.

        Args:
            every: Seconds from the end of a tick to the next one. None: only one more tick.
            first: Seconds to the next tick. None: `every`.

        Raises:
            ConfigError: A time is not valid, or the timer has ended.
        """
        ...

    def cancel(self) -> None:
        """End the timer. No further tick starts; a tick that runs ends normally.

        A repeated call does nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class TimerSchedule:
    """The checked times of a timer, and how its ticks run.

    Attributes:
        every_s: seconds from the end of a tick to the next one; None: one tick only.
        first_s: seconds to the first tick.
        keep_alive: a tick counts as a use of the activation.
        interleave: a tick may start at any await point of other turns.
    """

    every_s: float | None
    first_s: float
    keep_alive: bool = False
    interleave: bool = False


def make_schedule(
    where: str,
    every: float | None,
    first: float | None,
    *,
    keep_alive: bool = False,
    interleave: bool = False,
) -> TimerSchedule:
    """Check the times of a timer. Raises ConfigError; `where` begins its text."""
    if every is not None and not (is_time(every) and every > 0):
        raise ConfigError(
            f"{where}: every={show_text(repr(every))}: write a positive, finite number of seconds"
        )
    if first is None and every is None:
        raise ConfigError(f"{where}: write `every` for repeated ticks, or `first` for one tick")
    if first is not None and not (is_time(first) and first >= 0):
        raise ConfigError(
            f"{where}: first={show_text(repr(first))}: write a finite number of seconds, at least 0"
        )
    first_s = every if first is None else first
    assert first_s is not None
    return TimerSchedule(
        None if every is None else float(every), float(first_s), bool(keep_alive), bool(interleave)
    )


def is_time(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class TimerMark(Mark):
    """The mark of a method that a timer of each activation calls."""

    schedule: TimerSchedule
    makes_local = True

    def __str__(self) -> str:
        return "`@timer(...)`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Refuse methods that a timer cannot call."""
        subject = f"{source_of(fn)}: {owner.__name__}.{name}"
        if not inspect.iscoroutinefunction(fn) or not takes_positional(fn, 1):
            raise DefinitionError(f"{subject}: a timer calls `async def {name}(self) -> None`")
        others = [mark for mark in marks_of(owner, name) if mark is not self]
        for mark in others:
            if isinstance(mark, TimerMark):
                raise DefinitionError(f"{subject}: a method has at most one `@timer`")
            if mark == Flag("always_interleave"):
                raise DefinitionError(
                    f"{subject}: write `@timer(..., interleave=True)` instead of {mark}"
                )
            if not isinstance(mark, Timeout):
                raise DefinitionError(f"{subject}: {mark} has no effect on a timer; remove it")
        if not getattr(owner, "__millstream_hosted__", False):
            raise DefinitionError(
                f"{subject}: a contract has no timers; mark the method of the grain"
            )


def timer(
    every: float,
    *,
    first: float | None = None,
    keep_alive: bool = False,
    interleave: bool = False,
) -> Callable[[TM], TM]:
    """Call a method of each activation again and again.

    ```python
    class Sensor(Grain):
        @timer(every=5.0)
        async def flush(self) -> None:
            ...
    ```

    A tick is a turn: it waits for other turns, unless it interleaves, and other turns wait for it.
    Ticks of one timer never overlap, because the period is measured from the end of a tick. An
    exception is logged, and the timer continues. The timer starts when `on_activate` has ended, and
    stops before `on_deactivate`. A tick has the deadline of its method's `@timeout`, or else
    `RuntimeOptions.call_timeout_s`. References cannot call the method. `self.context.timer` starts
    a timer while the grain runs.

    Args:
        every: Seconds from the end of a tick to the next one, positive and finite.
        first: Seconds from the activation to the first tick; 0: at once. None: `every`.
        keep_alive: True: a tick counts as a use, so an activation with a tick in each `idle_after`
            is not collected.
        interleave: True: a tick may start at any await point of other turns.

    Raises:
        ConfigError: A time is not valid.
    """
    schedule = make_schedule(
        "timer(...)", every, first, keep_alive=keep_alive, interleave=interleave
    )

    def mark(method: TM) -> TM:
        add_mark(method, TimerMark(schedule))
        return method

    return mark
