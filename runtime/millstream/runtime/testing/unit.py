"""A grain as a plain object, for a unit test without a silo, turns or codecs.

This module owns the home of such a grain, and its states. The behaviour of a silo around a call
(one turn at a time, isolation, deadlines, `write="turn"`) is not part of it, so test that in a
cluster. `__init__` has run and `on_activate` has not. The value of a state is the object that the
test gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from millstream.runtime.definition.grain import Contract, Grain, Openable, construct
from millstream.runtime.definition.headers import HeaderSet, stamp_client
from millstream.runtime.definition.names import grain_id, row_key
from millstream.runtime.definition.reminders import (
    Missed,
    Occurrence,
    Reminder,
    make_schedule,
)
from millstream.runtime.definition.state import State, StateField, StoredState
from millstream.runtime.definition.storage import MemoryStateStore
from millstream.runtime.definition.timers import TimerSchedule
from millstream.runtime.definition.timers import make_schedule as make_timer_schedule
from millstream.runtime.env import Env
from millstream.runtime.reminders.grain_reminders import check_handler, list_handlers
from millstream.runtime.reminders.record import ReminderRecord, advance, arm, show, time_of
from millstream.runtime.text import check_text, show_text

__all__ = ["UnitHome", "UnitReminders", "UnitTimer", "grain_of", "home_of", "writes_of"]

C = TypeVar("C", bound=Contract)
G = TypeVar("G", bound=Grain)
H = TypeVar("H")
S = TypeVar("S")
T = TypeVar("T")

Fakes = Mapping[tuple[Any, str], Any]


class UnitTimer:
    """A timer that a grain started in a unit test. No clock ticks: the test awaits `method()`.

    Attributes:
        method: The method that a tick calls.
        every_s: Seconds between ticks, or None for one tick.
        first_s: Seconds to the next tick when the timer was started or changed.
        is_ended: Whether the grain has cancelled the timer.
    """

    def __init__(
        self, method: Callable[[], Coroutine[Any, Any, None]], schedule: TimerSchedule
    ) -> None:
        self.method = method
        self.every_s, self.first_s = schedule.every_s, schedule.first_s
        self.is_ended = False

    def change(self, *, every: float | None, first: float | None = None) -> None:
        """Record new times."""
        new = make_timer_schedule("timer.change", every, first)
        self.every_s, self.first_s = new.every_s, new.first_s

    def cancel(self) -> None:
        """Record the end."""
        self.is_ended = True


class UnitReminders:
    """The reminders that a grain sets in a unit test. No clock delivers them: call `fire`.

    Attributes:
        armed: The reminders that are set, by name. The time of the next occurrence is computed from
            the wall clock.
    """

    def __init__(self, home: UnitHome) -> None:
        self._home = home
        self._records: dict[str, ReminderRecord] = {}
        self._grain: Any = None

    @property
    def armed(self) -> Mapping[str, Reminder]:
        """The reminders that are set, by name."""
        return {name: show(name, self._records[name]) for name in sorted(self._records)}

    def belong_to(self, grain: Grain) -> None:
        """Set the grain whose methods are the handlers."""
        self._grain = grain

    async def set(
        self,
        name: str,
        /,
        *,
        every: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: Missed = "once",
    ) -> Reminder:
        """Record a reminder."""
        where = f"{self._home.grain_id}: context.reminders.set({show_text(repr(name))})"
        check_handler(where, name, list_handlers(type(self._grain).__millstream_type__.marks))
        schedule = make_schedule(where, every, at, cron, time_zone, missed)
        record = arm(schedule, int(Env().wall_s() * 1000), is_marked=False)
        assert record is not None
        self._records[name] = record
        return show(name, record)

    async def cancel(self, name: str, /) -> bool:
        """Remove a reminder, and return whether there was one."""
        return self._records.pop(name, None) is not None

    async def list(self) -> Sequence[Reminder]:
        """Return the reminders that are set, sorted by name."""
        return list(self.armed.values())

    async def fire(self, name: str, *, late_s: float = 0.0, is_missed: bool = False) -> Occurrence:
        """Deliver the next occurrence of a reminder that is set, and advance it.

        Errors of the handler reach the test.

        Args:
            name: The name of the reminder.
            late_s: How late the occurrence is, in seconds.
            is_missed: Whether it counts as missed.

        Returns:
            The occurrence that the handler got.

        Raises:
            LookupError: No reminder of this name is set.
        """
        record = self._records.get(name)
        if record is None or record.due_ms is None:
            armed = ", ".join(map(repr, sorted(self._records))) or "none"
            raise LookupError(f"reminder {name!r} is not set; the grain has set {armed}")
        occurrence = Occurrence(time_of(record.due_ms), record.number, late_s, is_missed)
        await getattr(self._grain, name)(occurrence)
        if self._records.get(name) is record:  # the handler has not changed it
            following = advance(record, record.due_ms)
            if following is None:
                del self._records[name]
            else:
                self._records[name] = following
        return occurrence


class UnitHome:
    """The home of a grain in a unit test. It records the requests of the grain.

    `grain_of` makes it, and `home_of` returns it.

    Attributes:
        is_ending: Whether the grain has called `deactivate_when_idle`.
        is_moving: Whether the grain has called `migrate_when_idle`.
        kept_alive_s: The seconds of each call of `keep_alive`.
        tasks: The tasks that the grain started by `create_task`.
        timers: The timers that the grain started by `context.timer`. Timers of methods with
            `@timer` do not start: call the method.
        reminders: The reminders that the grain has set. Those of marks are not set.
    """

    version = 1
    silo = "unit:0@1"

    def __init__(
        self,
        kind: str,
        key: str,
        grains: Fakes,
        streams: Fakes,
        headers: Mapping[str, str],
        client: str,
    ) -> None:
        self.key, self.grain_id = key, grain_id(kind, key)
        self.runtime = self
        self.is_ending = self.is_moving = False
        self.kept_alive_s: list[float] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.timers: list[UnitTimer] = []
        self.reminders = UnitReminders(self)
        self._grains, self._streams = grains, streams
        self._headers, self._client = headers, client

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return the fake that the test gave for a grain. LookupError if it gave none."""
        return self._find_given("grains", self._grains, cls, cls.__name__, key)  # type: ignore[no-any-return]

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return the fake that the test gave for a stream. LookupError if it gave none."""
        name = getattr(namespace, "name", repr(namespace))
        return self._find_given("streams", self._streams, namespace, name, key)  # type: ignore[no-any-return]

    def _find_given(self, argument: str, fakes: Fakes, of: object, name: str, key: str) -> Any:
        try:
            return fakes[of, key]
        except KeyError:
            raise LookupError(
                f"{self.grain_id} asked for {name} {key!r}: pass grain_of(..., "
                f"{argument}={{({name}, {key!r}): ...}})"
            ) from None

    def headers(self) -> HeaderSet:
        """Return the headers and the client that the test gave."""
        return HeaderSet(dict(self._headers), stamp_client(None, self._client))

    def section(self, is_open: bool) -> AbstractContextManager[None]:
        """Do nothing: calls of a unit test do not wait for each other."""
        return nullcontext()

    def end_when_idle(self) -> None:
        """Record that the grain wants to end."""
        self.is_ending = True

    def move_when_idle(self, to: str | None) -> None:
        """Record that the grain wants to move."""
        self.is_moving = True

    def keep_alive(self, seconds: float, /) -> None:
        """Record the seconds."""
        self.kept_alive_s.append(seconds)

    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start the task in the test's loop. The test must cancel it."""
        task = asyncio.get_running_loop().create_task(coro)
        self.tasks.append(task)
        return task

    def start_timer(
        self, method: Callable[[], Coroutine[Any, Any, None]], schedule: TimerSchedule, /
    ) -> UnitTimer:
        """Record the timer."""
        timer = UnitTimer(method, schedule)
        self.timers.append(timer)
        return timer

    def open_reminders(self) -> UnitReminders:
        """Return the reminders of the grain."""
        return self.reminders

    def check_running(self) -> None:
        """Do nothing: the grain always runs."""

    def on_conflict(self) -> None:
        """Do nothing: nobody else writes."""


class UnitState(State[S]):
    """A state whose row is in memory, and which remembers the written values."""

    def __init__(self, field: StateField[S], home: UnitHome, kind: str) -> None:
        self.store = MemoryStateStore()
        self.row_key = row_key(kind, home.key, field.name)
        self.codec = field.codec
        self.written: list[S] = []
        super().__init__(field, home, self.store, self.row_key, home)

    def give(self, value: S) -> None:
        """Set the value that was stored when the grain was activated."""
        row = StoredState(msgspec.Raw(self.codec.encode(value)), {})
        self.store.put(self.row_key, msgspec.msgpack.encode(row), None, 0)
        _at_once(self.read())
        self.value = value

    async def write(self) -> None:
        value = self.codec.isolate(self.value)
        await super().write()
        self.written.append(value)


def grain_of(
    cls: type[G],
    /,
    key: str = "unit",
    *,
    state: Mapping[str, object] | None = None,
    grains: Fakes | None = None,
    streams: Fakes | None = None,
    headers: Mapping[str, str] | None = None,
    client: str = "",
) -> G:
    """Make a grain as a plain object, to be called directly in a unit test.

    ```python
    device = grain_of(Device, state={"tally": Tally(1000)}, grains={(Meter, "house"): FakeMeter()})
    assert await device.report(5) == 1012
    assert writes_of(device.tally) == [Tally(1005)]
    ```

    There is no silo: calls run directly, without turns, copies or deadlines. `__init__` has run and
    `on_activate` has not.

    Args:
        cls: The grain class.
        key: The key of the grain.
        state: The stored values of its states, by attribute. Other states have their default.
        grains: The objects that `self.grain(cls, key)` returns, by `(cls, key)`.
        streams: The objects that `self.stream(namespace, key)` returns, by `(namespace, key)`.
        headers: The headers of `self.context.headers`.
        client: The name of `self.context.client`.

    Raises:
        TypeError: `cls` is no grain class, there is no such state, or a value does not fit its
            state.
        DefinitionError: The class cannot be a grain.
    """
    if not (isinstance(cls, type) and issubclass(cls, Grain)):
        raise TypeError(f"grain_of({cls!r}): pass a Grain class")
    check_text("the key of a grain", key)
    for name, given in {"state": state, "grains": grains, "streams": streams}.items():
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"grain_of({name}={show_text(repr(given))}): pass a dict")
    for name, fakes in {"grains": grains or {}, "streams": streams or {}}.items():
        for at in fakes:
            if not (isinstance(at, tuple) and len(at) == 2):
                what = show_text(repr(at))
                raise TypeError(f"grain_of({name}=...): {what} is not a pair with a key")
    grain_type = cls.__millstream_type__
    grain_type.resolve()
    home = UnitHome(grain_type.name, key, grains or {}, streams or {}, headers or {}, client)
    states = {
        name: UnitState(field, home, grain_type.name) for name, field in grain_type.states.items()
    }
    for name, value in (state or {}).items():
        if name not in states:
            raise TypeError(f"{cls.__name__} has no state {name!r}; it has {sorted(states)}")
        states[name].give(value)
    made = construct(cls, home, states)
    home.reminders.belong_to(made)
    return made


def home_of(grain: Grain, /) -> UnitHome:
    """Return the home of a grain that `grain_of` made, with the requests of the grain.

    Args:
        grain: The grain.

    Raises:
        TypeError: `grain_of` did not make the grain.
    """
    home: object = grain._millstream
    if not isinstance(home, UnitHome):
        raise TypeError(f"home_of({grain!r}): pass the grain that grain_of() returned")
    return home


def writes_of(state: State[S], /) -> list[S]:
    """Return the values that `write()` has stored, oldest first.

    Args:
        state: A state of a grain that `grain_of` made, such as `device.tally`.

    Raises:
        TypeError: The state belongs to another grain.
    """
    if not isinstance(state, UnitState):
        raise TypeError("writes_of(): pass a state of a grain that grain_of() returned")
    return state.written


def _at_once(coro: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coro.send(None)
    except StopIteration:
        return
    raise AssertionError("a store in memory made its reader wait")
